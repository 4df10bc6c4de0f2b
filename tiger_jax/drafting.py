"""Training a drafter: the verifier answers, its answers are cached, the drafter learns from them.

What `objectives` is for supervised training: the objectives `distill` (KD) and `align` (GRPO).
"""

import dataclasses
import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from tiger_jax.data import mixtures
from tiger_jax.data.draft_batches import PackDrafts, TeachExample
from tiger_jax.data.draft_examples import AskQuestions, DraftExample
from tiger_jax.data.examples import read_examples
from tiger_jax.data.filters import PromptFilter
from tiger_jax.data.json_lines import RecordError
from tiger_jax.data.mixtures import Records
from tiger_jax.data.teacher_cache import TeacherCache
from tiger_jax.errors import UserError
from tiger_jax.models.interface import VisionLanguageModel
from tiger_jax.objectives import Objective, scene_source
from tiger_jax.pipeline import Pipeline
from tiger_jax.routing.router import RouterConfig, init_router
from tiger_jax.sharding import rules as sharding_rules
from tiger_jax.teacher import Teacher
from tiger_jax.training import align_step, run_folder
from tiger_jax.training.distill_step import OnlineTeacher, make_distill_loss
from tiger_jax.training.draft_batch import draft_batch
from tiger_jax.training.draft_blocks import BlockDrafter
from tiger_jax.training.teacher_pass import TeacherSettings
from tiger_jax.weights.fingerprint import fingerprint
from tiger_jax.weights.router_io import write_router

RESPONSES = ("verifier", "reference")


@dataclasses.dataclass(frozen=True)
class Lessons:
    """Prompts with the verifier's answers, ready to be drawn from."""

    verifier: Pipeline
    settings: TeacherSettings
    cache: TeacherCache
    ask: AskQuestions
    sources: tuple[Any, ...]
    held_out: tuple[Any, ...]

    @classmethod
    def prepare(cls, config: Any) -> "Lessons":
        """Read the sources and let the verifier answer what the cache lacks.

        Raises:
            UserError: unreadable folders or files, or nothing to learn from.
        """
        if config.response not in RESPONSES:
            raise UserError(
                f"response: expected one of {', '.join(RESPONSES)}, got {config.response!r}"
            )
        sources = read_sources(config)
        folder, dtype = verifier_folder(config), config.compute_dtype
        settings = TeacherSettings(**config.teacher.to_dict())
        described = {"verifier": fingerprint(folder), "dtype": dtype, "response": config.response}
        verifier = Pipeline.load(folder, dtype=jnp.dtype(dtype))
        lessons = cls(
            verifier, settings,
            cache=TeacherCache(config.cache_dir, described | dataclasses.asdict(settings)),
            ask=AskQuestions(verifier.processor, reference=config.response == "reference"),
            sources=sources,
            held_out=(scene_source(config, held_out=True),) if config.held_out_scenes else (),
        )  # fmt: skip
        for source in (*lessons.sources, *lessons.held_out):
            lessons.fill(source)
        return lessons

    def fill(self, source: Records) -> None:
        """Let the verifier answer what is missing; a note in the cache saves looking again."""
        digest = hashlib.sha256(repr(source).encode()).hexdigest()
        note = self.cache.folder / f"filled-{digest[:16]}"
        if note.exists():
            return
        asked = ((place, self.ask(source[place])) for place in range(len(source)))
        places = {e.key: place for place, e in asked if isinstance(e, DraftExample)}
        keys = list(places)
        progress = _FillProgress(len(self.cache.missing(keys)))
        Teacher(self.verifier.engine, self.settings).fill(
            self.cache, lambda i: self.ask(source[places[keys[i]]]), keys, progress
        )
        note.touch()

    def stream(self, config: Any, router: RouterConfig, held_out: bool, cuts: int) -> Any:
        """Endless shuffled batches, or the held-out ones once through, in order.

        Args:
            cuts: random prefixes of an example; 0 = blocks that hold every token.
        """
        teach = TeachExample(self.ask, self.cache, config.draft_length, 0 if held_out else cuts)
        pack = PackDrafts(
            self.verifier.config, config.draft_length, router.pooled_tokens, router.stream_query
        )
        sources = self.held_out if held_out else self.sources
        return mixtures.draft_batches(
            [(source, 1) for source in sources], teach, pack, config.batch,
            seed=None if held_out else config.seed, num_epochs=1 if held_out else None,
            num_workers=0 if held_out else config.workers,
        )  # fmt: skip


class _FillProgress:
    """Says how many answers are in, once a shard."""

    def __init__(self, wanted: int) -> None:
        self._wanted, self._done = wanted, 0

    def __call__(self, count: int) -> None:
        self._done += count
        print(f"verifier answered {self._done} of {self._wanted} examples", file=sys.stderr)


def verifier_folder(config: Any) -> Path:
    """The verifier's folder. Raises UserError if there is none."""
    folder = run_folder.export_folder(config.verifier)
    if not (folder / "config.json").is_file():
        raise UserError(f"verifier: expected a Hugging Face folder, got {config.verifier!r}")
    return folder


def router_config(config: Any) -> RouterConfig:
    """The router that a config describes. Raises UserError."""
    return RouterConfig(**config.router.to_dict())


def distill_objective(config: Any, model: VisionLanguageModel, folder: Path) -> Objective:
    """Laws of the verifier, and where it looks (method.md 4.1)."""
    drafter = BlockDrafter(model, router_config(config))
    lessons = Lessons.prepare(config)
    loss = make_distill_loss(drafter, config.route_weight)

    def make_step(update: Any, initial: Callable[[], Any]) -> Any:
        del initial
        if not config.online_teacher:
            return update
        engine = lessons.verifier.engine
        return OnlineTeacher(update, engine.model, engine.params, lessons.settings)

    return _drafter_objective(
        config, drafter, folder, lessons, loss, unit_metric="kl", make_step=make_step
    )


def align_objective(config: Any, model: VisionLanguageModel, folder: Path) -> Objective:
    """The accepted prefix (method.md 4.2)."""
    drafter = BlockDrafter(model, router_config(config))
    settings = align_step.AlignSettings(**config.align.to_dict(), route_weight=config.route_weight)
    lessons = Lessons.prepare(config)
    value = align_step.make_expected_acceptance_loss(drafter, settings)
    if settings.objective == "expected_acceptance":
        return _drafter_objective(config, drafter, folder, lessons, value, unit_metric="expected_A")
    engine = lessons.verifier.engine
    end_ids = lessons.verifier.config.eos_token_ids

    def make_step(update: Any, initial: Callable[[], Any]) -> align_step.AlignmentStep:
        return align_step.AlignmentStep(
            drafter=drafter, settings=settings, verifier=engine.model, end_ids=end_ids,
            drawable=jnp.asarray(engine.drawable), verifier_params=engine.params,
            reference_params=initial(), update=update,
        )  # fmt: skip

    return dataclasses.replace(
        _drafter_objective(
            config, drafter, folder, lessons,
            align_step.make_grpo_loss(drafter, settings, end_ids),
            unit_metric="reward", make_step=make_step, cuts=config.prefixes,
        ),
        held_out_loss=value,
    )  # fmt: skip


def _drafter_objective(
    config: Any, drafter: BlockDrafter, folder: Path, lessons: Lessons, loss: Any, *,
    unit_metric: str, make_step: Callable | None = None, cuts: int = 0,
) -> Objective:  # fmt: skip
    width = drafter.model.config.text.hidden_size

    def init_params(key: jax.Array) -> Any:
        params = drafter.model.init_params(key)
        if not drafter.config.routes:
            return params
        return params | {
            "router": init_router(jax.random.fold_in(key, 1), width, drafter.config.looks)
        }

    def export(params: Any, target: Path) -> None:
        weights = {name: part for name, part in params.items() if name != "router"}
        run_folder.export_params(weights, folder, target)
        if drafter.config.routes:
            write_router(target, drafter.config, params["router"])

    rules = sharding_rules.LLAVA_NEXT_RULES
    return Objective(
        init_params=init_params,
        rules=(*rules, *sharding_rules.ROUTER_RULES) if drafter.config.routes else rules,
        loss=loss,
        stream=lambda held_out: lessons.stream(config, drafter.config, held_out, cuts),
        to_batch=lambda batch: draft_batch(batch._asdict()),
        export=export, unit="tokens", unit_metric=unit_metric, init_from=str(folder),
        **({"make_step": make_step} if make_step else {}),
    )  # fmt: skip


def read_sources(config: Any) -> tuple[Records, ...]:
    """Scenes, JSON Lines files, or both; lines that cannot be used are counted and said.

    Raises:
        UserError: a file that cannot be read, or nothing to learn from.
    """
    sources: list[Records] = [scene_source(config, held_out=False)] if config.scenes else []
    rule = PromptFilter(**config.filter.to_dict()) if config.filter else None
    for path in config.examples:
        records = read_examples(path)
        usable = [record for record in records if not isinstance(record, RecordError)]
        for record in records:
            if isinstance(record, RecordError):
                print(f"{path}: line {record.line}: {record.message}", file=sys.stderr)
        if rule:
            usable, report = rule.apply(usable)
            print("\n".join(report.lines()), file=sys.stderr)
        if usable:
            sources.append(usable)
    if not sources:
        raise UserError("scenes, examples: expected something to learn from, got nothing")
    return tuple(sources)
