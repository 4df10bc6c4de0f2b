"""The paper's prompt filter and its tags, with every point it leaves open as a named setting.

TIGER's alignment pool drops prompts of "fewer than five words", of "more than sixty words", and
"short pure yes/no questions", and gives the rest coarse tags (arXiv 2607.11131, section on data).
What a word is, what is short, and how a tag is found are not said: the defaults here are this
project's choice, and `dataclasses.asdict` of the filter belongs beside the numbers it gave.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from tiger_jax.data.examples import Example
from tiger_jax.data.json_lines import RecordError
from tiger_jax.data.visual import IMAGE_TOKEN, VIDEO_TOKEN
from tiger_jax.errors import UserError

KEPT = "kept"
UNREADABLE = "unreadable"
_PUNCTUATION = ".,;:!?\"'()[]"


@dataclass(frozen=True)
class TagRule:
    """`tag` for prompts that match `pattern` (any case) or come from one of `sources`."""

    tag: str
    pattern: str
    sources: tuple[str, ...] = ()

    def __post_init__(self):
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise UserError(
                f"tag {self.tag}: expected a regular expression, got {self.pattern!r} ({error})"
            ) from None


TAG_RULES = (
    TagRule("count", r"\bhow many\b|\bnumber of\b|\bcount\b", ("tallyqa",)),
    TagRule(
        "ocr",
        r"\b(read|written|text|word|letter|sign|label|title|brand|say[s]?)\b",
        ("textvqa", "docvqa"),
    ),
    TagRule(
        "reasoning",
        r"\b(why|explain|reason|infer|because|likely|difference|ratio|average|sum)\b",
        ("scienceqa", "chartqa"),
    ),
    TagRule("description", r"\b(describe|caption|description|detail|summari[sz]e)\b"),
)
FORMAT_SUFFIXES = (  # what public loaders put after a question to ask for a short answer
    "Answer the question using a single word or phrase.",
    "Answer the question using a single number.",
    "Answer the question with a single word.",
    "Answer with the option's letter from the given choices directly.",
    "Provide a one-sentence caption for the provided image.",
)
YES_NO_OPENERS = (
    "is", "are", "was", "were", "am", "do", "does", "did", "has", "have", "had", "can", "could",
    "will", "would", "should", "may", "might", "must",
)  # fmt: skip


@dataclass(frozen=True)
class PromptFilter:
    """Keeps prompts of min_words..max_words words that are no short yes/no question.

    Words are counted with `str.split`.
    """

    min_words: int = 5
    max_words: int = 60
    count_words_of: str = "question"
    """The bare "question", or the "prompt" as written without its placeholders."""
    drop_yes_no: bool = True
    yes_no_below: int = 10
    """A yes/no question is short with fewer words than this."""
    yes_no_openers: tuple[str, ...] = YES_NO_OPENERS
    """Its first word; stored answers are not looked at, as half of one source has none."""
    alternative_words: tuple[str, ...] = ("or",)
    """A question with one of them offers a choice, so it is no pure yes/no question."""
    drop_text_only: bool = True
    format_suffixes: tuple[str, ...] = FORMAT_SUFFIXES
    hint_prefixes: tuple[str, ...] = ("Reference OCR token:",)
    """Lines of a prompt that are hints, not question."""
    tag_rules: tuple[TagRule, ...] = TAG_RULES
    """The first that matches gives the one tag of a prompt."""
    other_tag: str = "visual_qa"

    def __post_init__(self):
        if not self.min_words <= self.max_words:
            raise UserError(
                f"prompt filter: expected min_words <= max_words, "
                f"got {self.min_words} and {self.max_words}"
            )
        if self.count_words_of not in ("question", "prompt"):
            raise UserError(
                f"prompt filter: count_words_of: expected 'question' or 'prompt', "
                f"got {self.count_words_of!r}"
            )

    def apply(
        self, examples: Iterable[Example | RecordError]
    ) -> tuple[list[Example], "FilterReport"]:
        """The examples that stay, tagged, and the counts; unreadable lines are only counted."""
        kept, report = [], FilterReport()
        for example in examples:
            if isinstance(example, RecordError):
                report.outcomes[UNREADABLE] += 1
                continue
            reason = self.reason_to_drop(example)
            report.count(example.source, reason or KEPT)
            if reason is None:
                tag = self.tag(example)
                report.tags[tag] += 1
                kept.append(replace(example, tag=tag))
        return kept, report

    def reason_to_drop(self, example: Example) -> str | None:
        """The first of text_only, too_short, too_long, yes_no that holds; None keeps it."""
        question, words = self.question(example.prompt), self.words(example)
        if self.drop_text_only and not (example.images or example.videos):
            return "text_only"
        if words < self.min_words:
            return "too_short"
        if words > self.max_words:
            return "too_long"
        return "yes_no" if self.drop_yes_no and self._is_short_yes_no(question) else None

    def words(self, example: Example) -> int:
        """Words that are counted: those of `count_words_of`."""
        prompt = example.prompt
        asked = self.question(prompt) if self.count_words_of == "question" else prompt
        return len(_without_marks(asked).split())

    def tag(self, example: Example) -> str:
        """One tag; a source counts up to its first "/", in any case."""
        question = self.question(example.prompt)
        source = example.source.split("/")[0].casefold()
        for rule in self.tag_rules:
            if source in rule.sources or re.search(rule.pattern, question, re.IGNORECASE):
                return rule.tag
        return self.other_tag

    def question(self, prompt: str) -> str:
        """The bare question: no placeholders, hint lines or format suffixes.

        A suffix that is the whole prompt is the question itself and stays.
        """
        lines = [line.strip() for line in _without_marks(prompt).splitlines()]
        asked = "\n".join(line for line in lines if not line.startswith(self.hint_prefixes)).strip()
        while suffix := next(filter(asked.endswith, self.format_suffixes), None):
            before = asked.removesuffix(suffix).rstrip()
            if not before:
                break
            asked = before
        return asked

    def _is_short_yes_no(self, question: str) -> bool:
        words = [word.strip(_PUNCTUATION).lower() for word in question.split()]
        return (
            0 < len(words) < self.yes_no_below
            and words[0] in self.yes_no_openers
            and not set(words) & set(self.alternative_words)
        )


def _without_marks(prompt: str) -> str:
    return prompt.replace(IMAGE_TOKEN, " ").replace(VIDEO_TOKEN, " ")


@dataclass(frozen=True)
class FilterReport:
    """Counts of one pass: by outcome ("kept" or why not), by outcome in each source, by tag.

    Lines that could not be read have no source: they stand in `outcomes` alone.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    sources: dict[str, Counter[str]] = field(default_factory=dict)
    tags: Counter[str] = field(default_factory=Counter)

    def count(self, source: str, outcome: str) -> None:
        """Add one example."""
        self.outcomes[outcome] += 1
        self.sources.setdefault(source, Counter())[outcome] += 1

    @property
    def kept(self) -> int:
        """Examples that stay."""
        return self.outcomes[KEPT]

    @property
    def dropped(self) -> int:
        """Lines that do not."""
        return self.outcomes.total() - self.kept

    def as_dict(self) -> dict:
        """The counts as JSON would keep them."""
        return {
            "outcomes": dict(self.outcomes),
            "sources": {source: dict(counts) for source, counts in self.sources.items()},
            "tags": dict(self.tags),
        }

    def lines(self) -> list[str]:
        """The counts for a reader: the whole, each source, the tags."""
        rows = [("all", self.outcomes), *sorted(self.sources.items())]
        text = [
            f"{source}: kept {counts[KEPT]} of {counts.total()}"
            + "".join(f", {why} {n}" for why, n in sorted(counts.items()) if why != KEPT)
            for source, counts in rows
        ]
        tags = ", ".join(f"{tag} {n}" for tag, n in self.tags.most_common())
        return [*text, f"tags: {tags}"] if tags else text
