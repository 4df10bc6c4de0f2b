"""What a benchmark asks: questions of public data sets, of held-out scenes, of a user's own file.

A source is read as often as one likes, one question in memory at a time. `light` drops a question's
pictures: what is kept of all questions, for their answers to be scored.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from tiger_jax.data.batches import make_prompt
from tiger_jax.data.clips import make_clip
from tiger_jax.data.examples import Pictures, load_pictures, open_picture, shown_in
from tiger_jax.data.json_lines import (
    RecordError,
    check_fields,
    identifier,
    read_json_lines,
    text,
    texts,
)
from tiger_jax.data.prompts import build_prompt
from tiger_jax.data.public import prompts
from tiger_jax.data.public.dataset import Dataset
from tiger_jax.data.public.record import Fault, Picture, PublicRecord
from tiger_jax.data.records import Request
from tiger_jax.data.scenes import HELD_OUT, make_scene
from tiger_jax.data.videos import Video, VideoSampling
from tiger_jax.decoding.engine import Options
from tiger_jax.errors import UserError
from tiger_jax.evaluation.benchmark_config import EXAMPLES, SCENES, SCORE, SPEED
from tiger_jax.evaluation.scene_prompts import SCENE_KINDS, SceneQuestion
from tiger_jax.metrics.item import Item
from tiger_jax.pipeline import Pipeline, Prepared

GROUPED = ("mmbench", "nlvr2")
"""Data sets with metrics over whole groups: the rotations of a question, the pairs of a sentence.
"""


@dataclasses.dataclass(frozen=True)
class Question:
    """One prompt, what it shows, and what is right."""

    uid: str
    group: str
    """What is sampled whole."""
    text: str
    max_new_tokens: int
    images: tuple[Picture | str | np.ndarray, ...] = ()
    videos: tuple[Video | str, ...] = ()
    gold: Any = None
    """What its source needs to score an answer."""
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Whose wording the prompt is, and whether it holds subtitles or OCR tokens."""
    shown: tuple[str, ...] = ()
    """Of a light question, what tells its pictures and videos from others."""

    @property
    def light(self) -> "Question":
        """Without its pictures."""
        shown = tuple(map(_mark, (*self.images, *self.videos)))
        return dataclasses.replace(self, images=(), videos=(), shown=shown)


class ScenePlace(NamedTuple):
    """A question about a held-out scene or clip, from which all of it follows."""

    seed: int
    index: int
    kind: str
    hard: bool

    @property
    def asked(self) -> SceneQuestion:
        """The question with its picture."""
        make = make_scene if self.kind in SCENE_KINDS else make_clip
        scene = make(self.seed, self.index, hard=self.hard)
        (qa,) = (qa for qa in scene.qa if qa.kind == self.kind)
        return SceneQuestion(scene, qa, picture=str(self.index))


@runtime_checkable
class Source(Protocol):
    """Questions in a fixed order; each iteration starts at the first one again."""

    name: str
    split: str

    def __iter__(self) -> Iterator[Question | Fault]: ...


@dataclasses.dataclass(frozen=True)
class PublicSource:
    """A split of a public data set, with the prompts of a mode."""

    dataset: Dataset
    mode: str
    where: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of `meta` and the values that are asked about."""
    max_new_tokens: int = 0
    """Of an answer; 0: as the prompt says."""

    @property
    def name(self) -> str:
        """Of the data set."""
        return self.dataset.reader.name

    @property
    def split(self) -> str:
        """As its reader names it."""
        return self.dataset.split

    def __iter__(self) -> Iterator[Question | Fault]:
        """Of a question's rotations, `speed` asks one: they would be the same answer again."""
        for record in self.dataset:
            if isinstance(record, Fault):
                yield record
            elif self._wanted(record):
                yield self._question(record)

    def _question(self, record: PublicRecord) -> Question | Fault:
        try:
            question = _public_question(record, self.mode)
        except UserError as error:  # of its subtitles
            return Fault(record.uid, "unreadable text", str(error))
        tokens = self.max_new_tokens or question.max_new_tokens
        return dataclasses.replace(question, max_new_tokens=tokens)

    def _wanted(self, record: PublicRecord) -> bool:
        if self.mode == SPEED and record.meta.get("rotation"):
            return False
        return all(record.meta.get(name) == value for name, value in self.where.items())


@dataclasses.dataclass(frozen=True)
class SceneSource:
    """Held-out scenes and clips of the project's own, with exact answers."""

    count: int
    """Pictures; and as many clips where some of the kinds are theirs."""
    seed: int
    first: int
    """Number of the first one among those held out."""
    kinds: tuple[str, ...]
    max_new_tokens: int = 96
    hard: bool = False
    name: str = SCENES
    split: str = "held_out"

    def __iter__(self) -> Iterator[Question | Fault]:
        """Kind by kind: answers of one kind end at about the same time."""
        for kind in self.kinds:
            for index in range(HELD_OUT + self.first, HELD_OUT + self.first + self.count):
                place = ScenePlace(self.seed, index, kind, self.hard)
                asked = place.asked
                shown = shown_in(asked.scene)
                uid = f"{SCENES}/held_out/{index}/{kind}"
                yield Question(
                    uid, uid, asked.qa.question, self.max_new_tokens, tuple(shown.images),
                    tuple(shown.videos), place,
                )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class _AnsweredExample:
    id: str
    prompt: str
    answer: tuple[str, ...]
    images: tuple[str, ...] = ()
    videos: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class ExampleSource:
    """A user's JSON Lines: {"prompt": ..., "images": [...], "answer": text or list of texts}.

    Paths are relative to the file; `id` and `videos` may be given too.
    """

    path: Path
    max_new_tokens: int
    name: str = EXAMPLES
    split: str = "file"

    def __iter__(self) -> Iterator[Question | Fault]:
        """A line that is no example is a fault."""
        for record in read_json_lines(self.path, "examples with answers", _answered):
            if isinstance(record, RecordError):
                place = f"{self.path.name}:{record.line}"
                yield Fault(record.id or place, "bad line", f"{place}: {record.message}")
                continue
            folder = self.path.parent
            yield Question(
                f"{EXAMPLES}/{record.id}", f"{EXAMPLES}/{record.id}", record.prompt,
                self.max_new_tokens, tuple(str(folder / path) for path in record.images),
                tuple(str(folder / path) for path in record.videos), record.answer,
            )  # fmt: skip


def prepare(
    pipeline: Pipeline, question: Question, options: Options, video: VideoSampling
) -> Prepared:
    """Open a question's pictures and make its prompt.

    Raises:
        UserError: a picture that cannot be used, or a prompt that is too long.
    """
    processor = pipeline.processor
    request = Request(
        id=question.uid, prompt=question.text,
        videos=tuple(item for item in question.videos if isinstance(item, str)),
        fps=video.fps, max_frames=video.max_frames,
    )  # fmt: skip
    shown = Pictures(
        [
            image if isinstance(image, np.ndarray) else open_picture(image)
            for image in question.images
        ],
        [item for item in question.videos if not isinstance(item, str)]
        or load_pictures(request, processor, pipeline.video).videos,
    )
    rendered = build_prompt(processor, question.text, *map(len, shown))
    inputs = make_prompt(
        processor, pipeline.config, rendered, shown.images, videos=shown.videos
    )  # fmt: skip
    return Prepared(request, inputs, options)


def _mark(item: Picture | str | np.ndarray | Video) -> str:
    """Name and size of a file, which is not opened and may lie elsewhere tomorrow; a hash of
    what is in memory."""
    if isinstance(item, Picture):
        item = item.path if item.data is None else item.data
    if isinstance(item, str):
        return f"{Path(item).name} {Path(item).stat().st_size}"
    held = item.pictures if isinstance(item, Video) else item
    return hashlib.sha256(held if isinstance(held, bytes) else held.tobytes()).hexdigest()[:16]


def _public_question(record: PublicRecord, mode: str) -> Question:
    ask: Callable = prompts.score_prompt if mode == SCORE else prompts.speed_prompt
    asked = ask(record)
    gold = Item(
        record.uid, None, record.answers, record.ground_truth, record.choices, record.meta,
        n_images=len(record.images),
    )  # fmt: skip
    group = record.meta.get("group") if record.source in GROUPED else None
    return Question(
        record.uid, record.uid if group is None else str(group), asked.text,
        asked.max_new_tokens, asked.images, () if asked.video is None else (asked.video,), gold,
        {"style": asked.style, "subtitles": asked.subtitles_used, "ocr": asked.ocr_used},
    )  # fmt: skip


def _answered(fields: dict, default_id: str) -> _AnsweredExample:
    values = check_fields(fields, _CHECKS, required=("prompt", "answer"))
    return _AnsweredExample(**{"id": default_id} | values)


_CHECKS = {
    "id": identifier, "prompt": text, "answer": texts, "images": texts, "videos": texts,
}  # fmt: skip
