"""Training a drafter: the verifier answers, its answers are cached, the drafter learns from them.

What `objectives` is for supervised training: the objectives `distill` (KD) and `align` (GRPO).
"""

import dataclasses
import hashlib
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax

from tiger_jax.data import mixtures
from tiger_jax.data.draft_batches import BLOCK_MULTIPLE, PackDrafts, TeachExample
from tiger_jax.data.draft_examples import AskQuestions
from tiger_jax.data.examples import DroppedExample, read_examples
from tiger_jax.data.filters import PromptFilter
from tiger_jax.data.json_lines import RecordError
from tiger_jax.data.mixtures import Records, SceneSource
from tiger_jax.data.pool import PoolSource, is_pool
from tiger_jax.data.record_cache import RecordCache
from tiger_jax.data.teacher_cache import TeacherCache
from tiger_jax.draft_samples import accepted_texts
from tiger_jax.errors import UserError
from tiger_jax.frozen_verifier import FrozenVerifier
from tiger_jax.models.interface import VisionLanguageModel
from tiger_jax.objectives import Objective, scene_sources
from tiger_jax.routing.router import LOOK_ONCE, RouterConfig
from tiger_jax.sharding import processes
from tiger_jax.teacher import Teacher
from tiger_jax.training import align_step, rollout, run_folder
from tiger_jax.training.distill_step import OnlineTeacher, make_distill_loss
from tiger_jax.training.draft_batch import draft_batch
from tiger_jax.training.draft_blocks import BlockDrafter, decoder_rows
from tiger_jax.training.teacher_pass import TeacherSettings
from tiger_jax.weights.fingerprint import fingerprint
from tiger_jax.weights.router_io import write_router

RESPONSES = ("verifier", "reference")
SHARED_DISK_SECONDS = 60
NAMED_DROPS = 5
"""Messages of examples that cannot be used, of each source; the rest is counted."""


@dataclasses.dataclass(frozen=True)
class Lessons:
    """Prompts with the verifier's answers, ready to be drawn from."""

    verifier: FrozenVerifier
    settings: TeacherSettings
    cache: TeacherCache
    ask: AskQuestions
    sources: tuple[Any, ...]
    held_out: tuple[Any, ...]
    teacher_batch: int = 64
    """Prompts that the verifier answers at a time; its pass over whole examples takes a quarter."""
    dropped: dict[tuple[str, str], str] = dataclasses.field(default_factory=dict)
    """What training left out so far: (source, id) -> why."""

    @classmethod
    def prepare(cls, config: Any) -> "Lessons":
        """Read the sources and let the verifier answer what the cache lacks.

        Raises:
            UserError: unreadable folders or files, or nothing to learn from.
        """
        sources = read_sources(config)
        verifier = FrozenVerifier.find(config)
        settings = TeacherSettings(**config.teacher.to_dict())
        described = {
            "verifier": fingerprint(verifier.folder), "dtype": config.compute_dtype,
            "response": config.response,
        }  # fmt: skip
        lessons = cls(
            verifier, settings,
            cache=TeacherCache(config.cache_dir, described | dataclasses.asdict(settings)),
            ask=AskQuestions(
                verifier.processor, reference=config.response == "reference",
                max_length=config.max_length,
            ),
            sources=sources,
            held_out=(
                *(source for source, _ in scene_sources(config, held_out=True)),
                *_read_files(config, config.held_out_examples),
            ),
            teacher_batch=config.teacher_batch,
        )  # fmt: skip
        for source in (*lessons.sources, *lessons.held_out):
            lessons.fill(source)
        return lessons

    def fill(self, source: Records) -> None:
        """Let the verifier answer what is missing."""
        size = self.teacher_batch

        def answer(*work: Any) -> None:
            engine = self.verifier.engine(self.verifier.answer_mesh)
            Teacher(engine, self.settings, size, max(1, size // 4)).fill(self.cache, *work)

        self.complete(source, self.cache, answer, "answered")

    def complete(self, source: Records, cache: RecordCache, fill: Callable, done: str) -> None:
        """Fill a cache with what it lacks of a source; a note in it saves looking again, unless
        there was something to say of examples that cannot be used. Several processes share the
        work.

        Args:
            fill: called with (place -> example, keys, progress).
            done: what the verifier has done to an example then.
        """
        # What becomes of a record is also the processor's matter: its files may have changed.
        digest = hashlib.sha256(repr((source, self.ask)).encode()).hexdigest()
        note = cache.folder / f"filled-{digest[:16]}"
        noted = processes.from_main(note.exists())
        if not noted:
            print(f"looking through {len(source)} examples", file=sys.stderr)
            places, dropped = self._usable(source)
            keys = list(places)[jax.process_index() :: jax.process_count()]
            if processes.is_main():
                _say_dropped(f"{len(dropped)} of {len(source)} examples cannot be used", dropped)
            if missing := len(cache.missing(keys)):
                progress = _FillProgress(missing, done)
                fill(lambda i: self.ask(source[places[keys[i]]]), keys, progress)
            processes.barrier(f"{note.name} {done}")
            _await_answers(cache, list(places))
            if processes.is_main() and not dropped:
                note.touch()
        cache.refresh()  # after the look at the note: it may be another run's

    def _usable(self, source: Records) -> tuple[dict[str, int], list[str]]:
        """(key -> place of what can be asked, why the others cannot)."""
        places, dropped = {}, []
        for place in range(len(source)):
            example = self.ask(source[place])
            if isinstance(example, DroppedExample):
                dropped.append(f"{example.source}: {example.id}: {example.message}")
            else:
                places[example.key] = place
        return places, dropped

    def say_dropped(self) -> None:
        """What training left out, if anything."""
        lines = [f"{source}: {name}: {why}" for (source, name), why in self.dropped.items()]
        _say_dropped(f"training left out {len(lines)} examples", lines)

    def stream(self, config: Any, router: RouterConfig, held_out: bool, cuts: int) -> Any:
        """Endless shuffled batches, or the held-out ones once through, in order.

        Args:
            cuts: random prefixes of an example; 0 = blocks that hold every token.
        """
        teach = TeachExample(self.ask, self.cache, config.draft_length, 0 if held_out else cuts)
        pack = PackDrafts(
            self.verifier.config, config.draft_length, router.pooled_tokens, router.stream_query,
            block_multiple=min(cuts or BLOCK_MULTIPLE, BLOCK_MULTIPLE),
        )  # fmt: skip
        sources = self.held_out if held_out else self.sources
        return mixtures.draft_batches(
            [(source, 1) for source in sources], teach, pack, config.batch,
            seed=None if held_out else config.seed, num_epochs=1 if held_out else None,
            num_workers=0 if held_out else config.workers, dropped=self.dropped,
        )  # fmt: skip


def _await_answers(cache: RecordCache, keys: list[str]) -> None:
    """Until this process sees what the others have written: a shared disk may be late, and an
    example that only some of them know would give them different batches. Raises UserError."""
    for _ in range(SHARED_DISK_SECONDS):
        cache.refresh()
        if not cache.missing(keys):
            return
        time.sleep(1)
    raise UserError(f"{cache.folder}: expected all {len(keys)} answers on the disk that the "
                    f"processes share, {len(cache.missing(keys))} are not there")  # fmt: skip


def _say_dropped(summary: str, lines: list[str]) -> None:
    if not lines:
        return
    more = [f"  and {len(lines) - NAMED_DROPS} more"] if len(lines) > NAMED_DROPS else []
    shown = [f"  {' '.join(line.split())}" for line in lines[:NAMED_DROPS]]
    print("\n".join([f"{summary}:", *shown, *more]), file=sys.stderr)


class _FillProgress:
    """Says how many answers are in, once a shard."""

    def __init__(self, wanted: int, verb: str) -> None:
        self._wanted, self._done, self._verb = wanted, 0, verb

    def __call__(self, count: int) -> None:
        self._done += count
        print(f"verifier {self._verb} {self._done} of {self._wanted} examples", file=sys.stderr)


def router_config(config: Any) -> RouterConfig:
    """The router that a config describes. Raises UserError."""
    router = RouterConfig(**config.router.to_dict())
    if router.selector in LOOK_ONCE:
        raise UserError(
            f"selector: {router.selector} has nothing to train; expected one of tiger, "
            "image_only, random, full"
        )
    return router


def prompt_filter(config: Any) -> PromptFilter | None:
    """The filter of own examples; None where all are kept. Raises UserError."""
    fields = config.filter.to_dict()
    return PromptFilter(**fields) if fields.pop("enabled") else None


def align_settings(config: Any) -> align_step.AlignSettings:
    """How acceptance is rewarded. Raises UserError."""
    settings = align_step.AlignSettings(**config.align.to_dict(), route_weight=config.route_weight)
    if settings.objective == "expected_acceptance":
        check_own_draws(config)
    return settings


def check_own_draws(config: Any) -> None:
    """UserError unless the responses are the verifier's own draws at temperature 1."""
    if config.teacher.temperature != 1 or config.response != "verifier":
        raise UserError(
            "objective: expected_acceptance needs the verifier's own draws: expected response "
            f"'verifier' and teacher.temperature 1, got {config.response!r} and "
            f"{config.teacher.temperature:g}"
        )


def check_settings(config: Any) -> None:
    """UserError for the first setting of a drafter's training that cannot be."""
    if config.response not in RESPONSES:
        raise UserError(
            f"response: expected one of {', '.join(RESPONSES)}, got {config.response!r}"
        )
    lowest = {
        "draft_length": 1, "prefixes": 1, "teacher_batch": 1, "max_length": 0, "route_weight": 0,
        "teacher.window": 1, "teacher.kept_tokens": 1, "teacher.kept_rows": 1,
        "teacher.max_new_tokens": 1, "teacher.temperature": 0, "cuts": 0, "features.kept_rows": 1,
        "loss.route_weight": 0,
    }  # fmt: skip
    for name, low in lowest.items():
        group, _, field = name.rpartition(".")
        fields = config.get(group, {}) if group else config
        if field in fields and not fields[field] >= low:
            raise UserError(f"{name}: expected at least {low}, got {fields[field]}")
    router_config(config)
    prompt_filter(config)
    if config.objective == "align":
        align_settings(config)


def distill_objective(config: Any, model: VisionLanguageModel, folder: Path) -> Objective:
    """Laws of the verifier, and where it looks (method.md 4.1)."""
    drafter = BlockDrafter(model, router_config(config))
    lessons = Lessons.prepare(config)
    loss = make_distill_loss(drafter, config.route_weight)

    lessons.verifier.release(keep=lessons.verifier.mesh if config.online_teacher else None)

    def make_step(update: Any, initial: Callable[..., Any]) -> Any:
        del initial
        if not config.online_teacher:
            return update
        return OnlineTeacher(update, lessons.verifier.engine(), lessons.settings)

    return _drafter_objective(
        config, drafter, folder, lessons, loss, unit_metric="kl", make_step=make_step
    )


def align_objective(config: Any, model: VisionLanguageModel, folder: Path) -> Objective:
    """The accepted prefix (method.md 4.2)."""
    drafter = BlockDrafter(model, router_config(config))
    settings = align_settings(config)
    lessons = Lessons.prepare(config)
    value = align_step.make_expected_acceptance_loss(drafter, settings)
    if settings.objective == "expected_acceptance":
        lessons.verifier.release()
        return _drafter_objective(
            config, drafter, folder, lessons, value, unit_metric="token_acceptance"
        )
    lessons.verifier.release(keep=lessons.verifier.mesh)
    end_ids = lessons.verifier.config.eos_token_ids

    def make_step(update: Any, initial: Callable[..., Any]) -> align_step.AlignmentStep:
        return align_step.AlignmentStep(
            drafter=drafter, settings=settings, verifier=lessons.verifier.engine(),
            end_ids=end_ids, reference_params=initial(model.dtype), update=update,
            gather=partial(rollout.gather_weights, rules=drafter.rules, dtype=model.dtype),
        )  # fmt: skip

    return dataclasses.replace(
        _drafter_objective(
            config, drafter, folder, lessons,
            align_step.make_grpo_loss(drafter, settings, end_ids),
            unit_metric="token_acceptance", make_step=make_step, cuts=config.prefixes,
            samples=settings.samples,
        ),
        held_out_loss=value,
        reference=fingerprint(run_folder.export_folder(config.init_from or folder)),
    )  # fmt: skip


def _drafter_objective(
    config: Any, drafter: BlockDrafter, folder: Path, lessons: Lessons, loss: Any, *,
    unit_metric: str, make_step: Callable | None = None, cuts: int = 0, samples: int = 1,
) -> Objective:  # fmt: skip
    routed = drafter.config.routed_tokens if drafter.config.routes else 0

    def step_flops(batch: Any) -> float:
        return 6.0 * drafter.model.decoder_weights * decoder_rows(batch, routed, samples)

    def export(params: Any, target: Path) -> None:
        weights = {name: part for name, part in params.items() if name != "router"}
        router = jax.tree.map(processes.fetch, params.get("router"))
        finish = partial(write_router, config=drafter.config, params=router)
        run_folder.export_params(
            weights, folder, target, finish=finish if drafter.config.routes else None
        )
        lessons.say_dropped()

    return Objective(
        init_params=drafter.init_params, rules=drafter.rules, loss=loss,
        stream=lambda held_out: lessons.stream(config, drafter.config, held_out, cuts),
        to_batch=lambda batch: draft_batch(batch._asdict()),
        export=export, unit="tokens", unit_metric=unit_metric, init_from=str(folder),
        kinds=_question_kinds(lessons.held_out), step_flops=step_flops,
        samples=partial(accepted_texts, drafter, lessons.verifier.processor.decode),
        **({"make_step": make_step} if make_step else {}),
    )  # fmt: skip


def _question_kinds(held_out: tuple[Any, ...]) -> tuple[str, ...]:
    """Scenes ask the same kinds of questions in the same order, and so do clips: "read+event" is
    the first of both. Of files nothing is known."""
    if not held_out or not all(isinstance(source, SceneSource) for source in held_out):
        return ()
    asked = zip(*(source[0].qa for source in held_out), strict=True)
    return tuple("+".join(pair.kind for pair in same) for same in asked)


def read_sources(config: Any) -> tuple[Records, ...]:
    """Scenes, pools, JSON Lines files; lines that cannot be used are counted and said.

    Raises:
        UserError: a file that cannot be read, or nothing to learn from.
    """
    sources = [source for source, _ in scene_sources(config, held_out=False)]
    sources += _read_files(config, config.examples)
    if not sources:
        raise UserError("scenes, examples: expected something to learn from, got nothing")
    return tuple(sources)


def _read_files(config: Any, paths: Sequence[str]) -> list[Records]:
    """Pools as they are, and usable records of JSON Lines files: a source for each that has any."""
    sources: list[Records] = []
    rule = prompt_filter(config)
    for path in paths:
        if is_pool(path):
            sources.append(PoolSource.open(path))
            continue
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
    return sources
