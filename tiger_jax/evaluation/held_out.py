"""Pictures that nothing was trained on, and what a verifier says of them."""

import dataclasses
from pathlib import Path
from typing import Any

from tiger_jax.data.draft_examples import AskQuestions, DraftExample
from tiger_jax.data.mixtures import SceneSource
from tiger_jax.data.processor import Processor
from tiger_jax.data.scenes import HELD_OUT
from tiger_jax.data.teacher_cache import TeacherCache
from tiger_jax.evaluation import exact_pass
from tiger_jax.evaluation.exact_pass import Spoken
from tiger_jax.evaluation.progress import Counter
from tiger_jax.pipeline import Pipeline
from tiger_jax.teacher import Teacher
from tiger_jax.training.teacher_pass import TeacherSettings
from tiger_jax.weights.fingerprint import fingerprint


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """Pictures that nothing was trained on, with all their questions."""

    examples: tuple[DraftExample, ...]
    kinds: tuple[tuple[str, ...], ...]
    """Kind of each question of each picture."""

    @classmethod
    def load(cls, config: Any, processor: Processor) -> "HeldOut":
        """`scenes` held-out pictures of the stream `seed`, and `clips` of its clips, from number
        `first_scene` on."""
        first, ask = HELD_OUT + config.first_scene, AskQuestions(processor)
        sources = [
            SceneSource(count, config.seed, first, config.hard_share, clips=clips)
            for count, clips in ((config.scenes, False), (config.clips, True))
        ]
        scenes = [source[place] for source in sources for place in range(len(source))]
        return cls(
            tuple(ask(scene) for scene in scenes),
            tuple(tuple(pair.kind for pair in scene.qa) for scene in scenes),
        )

    @property
    def prompts(self) -> list[tuple[int, int, str]]:
        """(picture, question, kind) of every prompt, in order."""
        return [(p, q, kind) for p, kinds in enumerate(self.kinds) for q, kind in enumerate(kinds)]


def teacher_cache(root: str, verifier: Path, dtype: str, settings: TeacherSettings) -> TeacherCache:
    """The folder of this verifier's answers under these settings, as training keeps it."""
    named = {"verifier": fingerprint(verifier), "dtype": dtype, "response": "verifier"}
    return TeacherCache(root, named | dataclasses.asdict(settings))


def ask(
    config: Any, folder: Path, dtype: str, verifier: Pipeline, held_out: HeldOut,
    temperature: float,
) -> list[Spoken]:  # fmt: skip
    """What the verifier says of every picture, with log p_T; it is asked what no cache knows."""
    settings = TeacherSettings(
        temperature=float(temperature), seed=config.seed, max_new_tokens=config.max_new_tokens
    )
    cache = teacher_cache(config.cache_dir, folder, dtype, settings)
    keys = [example.key for example in held_out.examples]
    if missing := cache.missing(keys):
        counter = Counter(len(missing), f"pictures answered at T = {temperature:g}")
        teacher = Teacher(
            verifier.engine, settings,
            decode_batch=min(config.teacher_batch, len(held_out.prompts)),
            pass_batch=min(16, len(keys)),
        )  # fmt: skip
        teacher.fill(cache, lambda place: held_out.examples[place], keys, counter.add)
    items = [exact_pass.spoken(e, cache[e.key]) for e in held_out.examples]
    return exact_pass.with_logprobs(verifier.engine, items, temperature, config.batch_size)
