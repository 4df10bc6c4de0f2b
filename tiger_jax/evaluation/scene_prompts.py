"""Held-out scenes and clips as prompts, from memory: no picture is written to disk."""

import dataclasses
from collections.abc import Iterator, Sequence

from tiger_jax.data.batches import make_prompt
from tiger_jax.data.clip_language import CLIP_KINDS
from tiger_jax.data.clips import Clip, make_clip
from tiger_jax.data.examples import shown_in
from tiger_jax.data.prompts import build_prompt
from tiger_jax.data.records import Request
from tiger_jax.data.scene_language import KINDS as SCENE_KINDS
from tiger_jax.data.scenes import HELD_OUT, QA, Scene, make_scene
from tiger_jax.decoding.engine import Options
from tiger_jax.pipeline import Pipeline, Prepared

KINDS = (*SCENE_KINDS, *CLIP_KINDS)
"""Of questions, about pictures and about clips."""


@dataclasses.dataclass(frozen=True)
class SceneQuestion:
    """One question about one held-out picture or video."""

    scene: Scene | Clip
    qa: QA
    picture: str
    """Name of the picture: what standard errors are clustered by."""

    @property
    def id(self) -> str:
        """Name of the question."""
        return f"{self.picture} {self.qa.kind}"

    def is_correct(self, answer: str) -> bool:
        """Whether an answer states exactly the right facts."""
        return self.scene.is_correct(self.qa.kind, self.qa.question, answer)


def questions(
    count: int, seed: int, kinds: Sequence[str], difficulty: str = "easy"
) -> Iterator[SceneQuestion]:
    """The questions of `kinds` about the first `count` held-out pictures, "easy" or "hard", and
    about as many clips where some of the kinds are theirs."""
    for make, name, asked in ((make_scene, "", SCENE_KINDS), (make_clip, " clip", CLIP_KINDS)):
        if set(kinds).isdisjoint(asked):
            continue
        for index in range(HELD_OUT, HELD_OUT + count):
            scene = make(seed, index, hard=difficulty == "hard")
            for qa in scene.qa:
                if qa.kind in kinds:
                    yield SceneQuestion(scene, qa, picture=f"{difficulty}{name} {index}")


def prompt_text(pipeline: Pipeline, question: SceneQuestion) -> str:
    """The rendered prompt, its picture still one placeholder."""
    shown = map(len, shown_in(question.scene))
    return build_prompt(pipeline.processor, question.qa.question, *shown)


def prepare(pipeline: Pipeline, question: SceneQuestion, options: Options) -> Prepared:
    """What `Pipeline.prepare` gives for a picture that lies in a file."""
    text, shown = prompt_text(pipeline, question), shown_in(question.scene)
    inputs = make_prompt(
        pipeline.processor, pipeline.config, text, shown.images, videos=shown.videos
    )
    return Prepared(Request(id=question.id, prompt=question.qa.question), inputs, options)
