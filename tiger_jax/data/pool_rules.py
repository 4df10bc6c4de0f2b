"""Which records of a public data set may stand in a training pool, and as what they stand there.

Rules are asked in a fixed order and the first that holds counts, so that the counts before and
after each of them add up. Everything the paper leaves open is a field here.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from tiger_jax.data.examples import Example
from tiger_jax.data.filters import PromptFilter
from tiger_jax.data.public import prompts
from tiger_jax.data.public.llava import BOX
from tiger_jax.data.public.prompt_styles import question_and_options
from tiger_jax.data.public.record import PublicRecord
from tiger_jax.errors import UserError

RULES = (
    "outside_subset", "text_only", "box", "evaluation_picture", "too_short", "too_long", "yes_no",
    "same_picture",
)  # fmt: skip
"""Reasons to leave a record out, in the order in which they are asked for."""
PROMPTS = ("question", "score", "speed")
ANSWERS = {"kd": "target", "grpo": "ground_truth"}
"""What a pool's records call their answer."""
_COCO = re.compile(r"(?:COCO_(?:train|val|test)\d{4}_)?(\d{12})")


@dataclass(frozen=True)
class SourceRules:
    """What a source's records must be, whatever the pool."""

    image_prefixes: tuple[str, ...] = ()
    """How a picture's name in the data set must begin ("coco/"); () takes all. A bare COCO file
    name is in "coco/": LLaVA-Instruct-150K writes no folder."""
    pictures_only: bool = True
    drop_boxes: bool = True
    """Leave out coordinates ("[0.1, 0.2, 0.3, 0.4]") in question or answer: they are those of a
    padded square."""
    one_per_picture: bool = False
    """Of the questions about one picture only that which the seed ranks first."""


@dataclass(frozen=True)
class PoolRules:
    """Rules of one source in one pool: `reason_to_drop` for each record, in any order."""

    source: SourceRules = field(default_factory=SourceRules)
    prompts: PromptFilter | None = None
    """The filter of the alignment pool; None keeps prompts of any length."""
    evaluation: Mapping[str, str] = field(default_factory=dict)
    """`picture_ids` of evaluation data -> the data set that has them."""

    def reason_to_drop(self, record: PublicRecord) -> str | None:
        """The first of `RULES` that holds ("same_picture" is not asked here); None keeps it."""
        if not self._in_subset(record):
            return "outside_subset"
        if self.source.pictures_only and not record.images:
            return "text_only"
        if self.source.drop_boxes and has_box(record):
            return "box"
        if self.leaks_from(record):
            return "evaluation_picture"
        return self.prompts.reason_to_drop(as_example(record)) if self.prompts else None

    def leaks_from(self, record: PublicRecord) -> str | None:
        """The evaluation data set that shows one of the record's pictures."""
        found = (self.evaluation.get(name) for name in sorted(picture_ids(record)))
        return next(filter(None, found), None)

    def _in_subset(self, record: PublicRecord) -> bool:
        wanted = self.source.image_prefixes
        return not wanted or not record.images or picture_name(record).startswith(wanted)


def as_example(record: PublicRecord) -> Example:
    """What the prompt filter looks at; its pictures are only counted."""
    images = tuple(picture.name for picture in record.images)
    return Example(record.uid, record.question, images, record.source)


def has_box(record: PublicRecord) -> bool:
    """Whether question or answers hold the coordinates of a box."""
    return any(BOX.search(text) for text in (record.question, *record.answers))


def picture_name(record: PublicRecord, place: int = 0) -> str:
    """What the data set calls a picture: "coco/train2017/000000033471.jpg"; "" where it has none.

    A COCO picture without a folder is in "coco/".
    """
    if name := record.meta.get("image"):
        return str(name)
    path = record.images[place].path
    if not path:
        return ""
    file = PurePosixPath(path).name
    folder = record.meta.get("image_folder")
    if folder is None:
        return file
    if not folder and _COCO.fullmatch(PurePosixPath(file).stem):
        folder = "coco"
    return f"{folder}/{file}" if folder else file


def picture_ids(record: PublicRecord) -> frozenset[str]:
    """Names under which other data sets know the record's pictures: "coco:33471", "vg:2410408".

    COCO's are the same over its years and splits; Visual Genome, OpenImages (TextVQA) and the rest
    have numbers of their own. A picture without any of these is "source:name".
    """
    meta = record.meta
    if record.source == "coco_captions":
        return frozenset({f"coco:{meta['image_id']}"})
    if record.source == "textvqa":
        return frozenset({f"openimages:{meta['image_id']}"})
    if record.source == "scienceqa":  # every picture is called image.png
        problem = "/".join(record.uid.split("/")[1:-1])
        return frozenset({f"scienceqa:{problem}"} if record.images else ())
    names = (picture_name(record, place) for place in range(len(record.images)))
    return frozenset(_picture_id(record.source, name) for name in names if name)


def _picture_id(source: str, name: str) -> str:
    path = PurePosixPath(name)
    if found := _COCO.fullmatch(path.stem):
        return f"coco:{int(found[1])}"
    if any(part.lower().startswith("vg") for part in path.parts[:-1]):
        return f"vg:{path.stem}"
    if "textvqa" in path.parts:
        return f"openimages:{path.stem}"
    return f"{source}:{path.name}"


@dataclass(frozen=True)
class PoolPrompt:
    """How a record is put to the models."""

    form: str = "question"
    """The bare "question"; or that of a benchmark, which asks for a "score" (short answers) or
    "speed" (long ones)."""
    style: str = "lmms"
    """Whose prompts "score" takes: public.prompts.score_prompt."""
    choices: bool = True
    """Write the choices under a bare question that has any, each with its letter."""

    def __post_init__(self) -> None:
        if self.form not in PROMPTS:
            raise UserError(f"prompt.form: expected one of {', '.join(PROMPTS)}, got {self.form!r}")

    def text(self, record: PublicRecord) -> str:
        """The prompt; pictures go in front of it."""
        if self.form != "question":
            return self._asked(record)
        if not (self.choices and record.choices):
            return record.question
        return question_and_options(record)

    def _asked(self, record: PublicRecord) -> str:
        if self.form == "score":
            return prompts.score_prompt(record, style=self.style).text
        return prompts.speed_prompt(record).text


def pool_record(
    record: PublicRecord, pool: str, images: list[str], prompt: PoolPrompt,
    tags: PromptFilter, answer: Callable[[PublicRecord], str | None],
) -> dict:  # fmt: skip
    """The JSON object of one example.

    Args:
        pool: kd or grpo.
        images: hashes of its pictures, in order.
        tags: counts its words and finds its tag; whether it would drop the prompt is not asked.
        answer: the text to keep with it, if any.
    """
    asked = as_example(record)
    return {
        "uid": record.uid,
        "source": record.source,
        "split": record.split,
        "images": images,
        "prompt": prompt.text(record),
        ANSWERS[pool]: answer(record),
        "tags": [tags.tag(asked)],
        "n_words": tags.words(asked),
    }


def gold_answer(record: PublicRecord) -> str | None:
    """The one gold, else the first of several; None where the data set hides them."""
    if record.ground_truth is not None:
        return record.ground_truth
    return record.answers[0] if record.answers else None
