"""A traced answer as people read it: texts for tokens, names and strengths for routed patches.

Both forms of a trace, the page and the pictures, are drawn from this.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from tiger_jax.data.processor import Processor
from tiger_jax.decoding.engine import Output
from tiger_jax.decoding.stopping import Detokenize
from tiger_jax.decoding.trace import Round, RoutedRow, within
from tiger_jax.models.patch_boxes import Box
from tiger_jax.pipeline import Pipeline, Prepared
from tiger_jax.traces.views import Shown, View, shown_in

ACCEPTED, REJECTED, REPLACEMENT, BONUS, UNJUDGED = (
    "accepted", "rejected", "replacement", "bonus", "unjudged"
)  # fmt: skip
MOST_COMMITTED = 600
"""Tokens of the answer so far that a round repeats: all of them, thousands of times, would make
pages of long answers far larger than what they show."""
_BEFORE = 16
"""Tokens before a piece that decide its text: a first word loses its space, half a character waits
for its other half."""


@dataclasses.dataclass(frozen=True)
class Token:
    """One token of a round."""

    text: str
    fate: str
    """ACCEPTED, REJECTED, REPLACEMENT (the verifier's, in a rejected one's place), BONUS (the
    verifier's, behind a draft that was accepted whole), or UNJUDGED (behind the answer's end)."""

    @property
    def is_own(self) -> bool:
        """Whether it is the verifier's."""
        return self.fate in (REPLACEMENT, BONUS)


@dataclasses.dataclass(frozen=True)
class Mark:
    """One routed visual token."""

    rank: int
    """1 is the best score."""
    score: float
    strength: float
    """0..1: where the score lies between the round's lowest and highest."""
    view: int
    place: str
    box: Box | None


@dataclasses.dataclass(frozen=True)
class RoundStory:
    """One round."""

    number: int
    committed: str
    tokens: tuple[Token, ...]
    """The draft, judged, with the verifier's token where it stands."""
    likeliest: tuple[str, ...]
    """Of a tree whose likeliest path was not the accepted one: that path."""
    accepted: int
    drafted: int
    """Tokens of the judged path."""
    nodes: int
    """Tokens drafted, all branches together."""
    milliseconds: float
    compiled: bool
    marks: tuple[Mark, ...] | None
    """By rank; None for a drafter that does not route."""
    agrees: bool

    @property
    def views(self) -> list[int]:
        """Those that have a routed token, in order."""
        return sorted({mark.view for mark in self.marks or ()})


@dataclasses.dataclass(frozen=True)
class Story:
    """One request."""

    id: str
    prompt: str
    answer: str = ""
    error: str | None = None
    finish: str | None = None
    tokens: int = 0
    views: tuple[View, ...] = ()
    pooled: int = 0
    """Pooled tokens of a view that the drafter always sees; 0: none."""
    rounds: tuple[RoundStory, ...] = ()
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Those of the request: temperature and seed."""


def tell(pipeline: Pipeline, prepared: Prepared, output: Output, rounds: Sequence[Round]) -> Story:
    """The story of one answer.

    Raises:
        UserError: its pictures can no longer be read.
    """
    shown = shown_in(pipeline.processor, prepared.request, prepared.inputs, pipeline.video)
    rounds = within(rounds, len(output.tokens))
    told = [
        _tell_round(number, made, pipeline.processor, output.tokens, shown)
        for number, made in enumerate(rounds, 1)
    ]
    return Story(
        id=prepared.request.id, prompt=prepared.request.prompt, answer=output.text,
        finish=output.finish_reason, tokens=len(output.tokens), views=shown.views,
        pooled=pooled_tokens(pipeline), rounds=tuple(told), settings=option_settings(prepared),
    )  # fmt: skip


def option_settings(prepared: Prepared) -> dict[str, Any]:
    """How one answer was drawn."""
    options = prepared.options
    settings = {"T": options.temperature, "seed": options.seed}
    if options.top_p < 1:
        settings["top p"] = options.top_p
    if options.top_k:
        settings["top k"] = options.top_k
    return settings


def number_text(value: float | int) -> str:
    """A setting in short; whole numbers, such as seeds, digit by digit."""
    return str(value) if isinstance(value, int) else f"{value:g}"


def committed_text(detokenize: Detokenize, tokens: Sequence[int]) -> str:
    """The answer so far; of a long one its last MOST_COMMITTED tokens."""
    text = detokenize(tokens[-MOST_COMMITTED:])
    if len(tokens) <= MOST_COMMITTED:
        return text.strip()
    return "\u2026" + text.lstrip("\ufffd").rstrip()  # it may begin within a character


def pooled_tokens(pipeline: Pipeline) -> int:
    """Pooled tokens of a view in the stream that the drafter reads."""
    query, pooled = getattr(pipeline.engine.drafter, "stream_needs", ("", 0))
    return pooled if query == "visual" else 0


def pieces(processor: Processor, before: Sequence[int], tokens: Sequence[int]) -> list[str]:
    """The text that each of `tokens` adds behind `before`; of one that adds none, such as an end
    token or half a character, its name in the vocabulary."""
    whole = [*before[-_BEFORE:], *tokens]
    texts = []
    for end in range(len(whole) - len(tokens) + 1, len(whole) + 1):
        first = max(end - 1 - _BEFORE, 0)
        old, new = processor.decode(whole[first : end - 1]), processor.decode(whole[first:end])
        text = new[len(old) :] if new.startswith(old) else ""
        if not text or "\ufffd" in text:
            text = str(processor.tokenizer.convert_ids_to_tokens(whole[end - 1]))
        texts.append(text)
    return texts


def _tell_round(
    number: int, made: Round, processor: Processor, answer: Sequence[int], shown: Shown
) -> RoundStory:
    before = answer[: made.start]
    path = [*made.accepted, *made.rejected]
    count = len(made.accepted)
    texts = pieces(processor, before, path)
    behind = UNJUDGED if made.ended else REJECTED
    tokens = [Token(text, ACCEPTED) for text in texts[:count]]
    if made.next_token is not None:
        own = pieces(processor, [*before, *made.accepted], [made.next_token])[0]
        tokens.append(Token(own, BONUS if made.is_bonus else REPLACEMENT))
    # The refused token stands before the one that replaces it.
    refused = [Token(text, behind) for text in texts[count:]]
    tokens[count:count] = refused[:1]
    tokens += refused[1:]
    other = made.likeliest if made.likeliest != tuple(path) else ()
    return RoundStory(
        number=number, committed=committed_text(processor.decode, before), tokens=tuple(tokens),
        likeliest=tuple(pieces(processor, before, other)), accepted=count, drafted=len(path),
        nodes=made.nodes, milliseconds=made.seconds * 1000, compiled=made.compiled,
        marks=None if made.routed is None else rank_marks(made.routed, shown),
        agrees=made.agrees,
    )  # fmt: skip


def rank_marks(routed: Sequence[RoutedRow], shown: Shown) -> tuple[Mark, ...]:
    """Routed tokens by falling score, ties in the order of the prompt."""
    ordered = sorted(routed, key=lambda row: -row.score)
    if not ordered:
        return ()
    high, low = ordered[0].score, ordered[-1].score
    marks = []
    for rank, row in enumerate(ordered, 1):
        view, patch = shown.patches[row.row]
        strength = (row.score - low) / (high - low) if high > low else 1.0
        marks.append(Mark(rank, row.score, strength, view, patch.name, patch.box))
    return tuple(marks)
