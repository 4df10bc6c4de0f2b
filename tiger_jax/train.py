"""Train a model: python -m tiger_jax.train --config configs/sft.py [--config.steps=200 ...]

configs/
    kd.py      a drafter learns to draft from a few routed visual tokens  (knowledge distillation)
    grpo.py    it learns to be accepted                                   (acceptance alignment)
    head.py    a draft head on the verifier's own states: tiger_head, eagle2, eagle3, vispec, medusa
    sft.py     answers about scenes: the embedded verifier, or a drafter's first weights
    tower.py   what a picture holds: the vision tower that sft.py starts with

kd.py and grpo.py take a pair's name: --config configs/kd.py:llava_next

--dry_run compiles all programs at full size from abstract weights and says whether they fit.

The config file says what is trained, on what and for how long; each of its fields can be set on
the command line as --config.FIELD=VALUE. The same command again goes on where the run stopped.
Ctrl-C and SIGTERM save a checkpoint and exit.
"""

import sys
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
from absl import flags, logging

from tiger_jax import (
    command_line,
    distributed,
    drafting,
    head_dry_run,
    head_methods,
    head_training,
    objectives,
    runtime,
)
from tiger_jax.data import scene_folder
from tiger_jax.data.pool import pool_hashes
from tiger_jax.dry_run.cards import card_of
from tiger_jax.dry_run.training import report_training
from tiger_jax.errors import UserError
from tiger_jax.frozen_verifier import verifier_folder
from tiger_jax.models.config_reader import read_config
from tiger_jax.models.interface import build_model
from tiger_jax.objectives import Objective
from tiger_jax.sharding import mesh as meshes
from tiger_jax.sharding import processes
from tiger_jax.sharding import rules as sharding_rules
from tiger_jax.training import loop, optimizer, run_folder, train_state, train_step
from tiger_jax.training.checkpoint import RunCheckpoints
from tiger_jax.training.interruption import StopRequest
from tiger_jax.training.kinds import kind_metrics
from tiger_jax.training.metric_log import MetricLog
from tiger_jax.training.profile import StepProfile
from tiger_jax.training.progress import Progress, StepCost
from tiger_jax.training.run_facts import record_start

DRY_RUN = "--dry_run"
ROLES = ("verifier", "drafter")
MAKERS = {
    "sft": objectives.sft_objective,
    "tower": objectives.tower_objective,
    "distill": drafting.distill_objective,
    "align": drafting.align_objective,
    "head": head_training.head_objective,
}


def train(config: ml_collections.ConfigDict) -> int:
    """Run a config to its end or to a signal; returns the last step.

    Raises:
        UserError: anything in the config that cannot be, before the first step.
        NonFiniteLoss: the run diverged; its newest checkpoint is from before.
    """
    if config.objective == "head":
        head_methods.resolve(config)
    _check_config(config)
    if config.objective == "head":
        config.model = str(verifier_folder(config))  # its states are what is read
    mesh = meshes.make_mesh(config.mesh.to_dict())
    sharding_rules.check_batch(config.batch, mesh)
    pools = pool_hashes(config.get("examples", ()))
    settings = config.to_dict() | ({"pools": pools} if pools else {})
    folder = run_folder.open_run_folder(config.run_dir, settings, resume=config.resume)
    model_folder = config.model or folder / run_folder.MODEL
    if not config.model:
        if processes.is_main():
            scene_folder.write_tiny_folder(model_folder, config.role, config.pair)
        processes.barrier("model folder")
    dtype = objectives.DTYPES[config.compute_dtype]
    model = build_model(read_config(model_folder), dtype, config.get("remat", False))
    objective = MAKERS[config.objective](config, model, Path(model_folder))
    with jax.set_mesh(mesh):
        return _train_on_mesh(config, mesh, Path(folder), objective)


def _train_on_mesh(config, mesh, folder: Path, objective: Objective) -> int:
    profile = StepProfile.parse(config.profile, folder)
    settings = _optimizer_settings(config)
    transform = optimizer.make_optimizer(settings)
    abstract = train_state.abstract_state(objective.init_params, transform, mesh, objective.rules)
    stream = iter(objective.stream(False))
    checkpoints = RunCheckpoints(
        folder, keep=config.keep, keep_best=config.keep_best, reference=objective.reference
    )
    checkpoints.check_room(abstract)
    main = processes.is_main()
    progress = Progress(config.steps, unit=objective.unit, active=main)
    if checkpoints.latest_step() is not None:
        state, position = checkpoints.restore(abstract)
        stream.set_state(position)
        progress.line(f"resumed {folder} at step {int(state.step)}")
    else:
        state = _fresh_state(config, mesh, transform, objective)
    if main:
        record_start(folder, step=int(state.step))
    frozen = optimizer.frozen_mask(abstract.params, config.freeze) if config.freeze else None
    update = train_step.make_train_step(objective.loss, transform, frozen, objective.rules)
    step = objective.make_step(update, partial(_initial_params, config, objective, mesh))
    held_out = HeldOut(config, objective, mesh)
    if not held_out:
        progress.line(f"no held-out evaluation: {config.held_out_scenes} held_out_scenes make "
                      f"no batch of {config.batch}")  # fmt: skip
    log = MetricLog(folder / run_folder.TENSORBOARD, active=main)
    observers = loop.Observers(
        checkpoints, log, progress, held_out.scores if held_out else None,
        held_out.samples if held_out and objective.samples else None,
        optimizer.learning_rate_schedule(settings), profile,
    )  # fmt: skip
    place = partial(_place, mesh, objective)
    with StopRequest() as stop:
        state = loop.run_loop(
            state, step, stream, _loop_settings(config, objective), observers,
            place=_Costed(place, progress, objective, config.accumulate), stop=stop,
        )  # fmt: skip
    last = int(state.step)
    if last == config.steps:
        target = Path(config.export_to or folder / run_folder.EXPORT)
        objective.export(state.params, target)
        progress.line(f"exported {target}")
    else:
        progress.line(f"stopped at step {last}; the same command goes on from there")
    progress.line(f"compiled {step.compiled()} programs")
    checkpoints.close()
    log.close()
    return last


def _fresh_state(config, mesh, transform, objective: Objective) -> train_state.TrainState:
    params = _initial_params(config, objective, mesh)
    return train_state.start_state(params, transform, config.seed, mesh, objective.rules)


def _initial_params(config, objective: Objective, mesh, dtype: Any = jnp.float32) -> Any:
    """The weights that a run starts from, on the mesh: random ones, those of its folders in their
    place."""
    params = train_state.create_params(
        objective.init_params, config.seed, mesh, objective.rules, dtype
    )
    if start := config.init_from or objective.init_from:
        params = objective.read_params(start, params)
    if config.tower_from:
        params = run_folder.initial_params(config.tower_from, params, ("vision_tower/",))
    return params


def _place(mesh, objective: Objective, batch: Any) -> Any:
    """Pack a host batch and put it on the mesh, split by pictures."""
    return objective.complete(sharding_rules.place_batch(objective.to_batch(batch), mesh))


class _Costed:
    """Places batches; the first one says what a step costs a known card."""

    def __init__(self, place: Callable, progress: Progress, objective: Objective, micro: int):
        self._place, self._progress, self._micro = place, progress, micro
        self._flops = objective.step_flops
        self._card = card_of(jax.devices()[0].device_kind)

    def __call__(self, batch: Any) -> Any:
        placed = self._place(batch)
        if self._card and not self._progress.cost.flops:
            flops = self._flops(placed) * self._micro / jax.device_count()
            self._progress.cost = StepCost(flops=flops, peak_flops=self._card.peak_flops)
        return placed


class HeldOut:
    """Held-out batches, drawn once; false where there are none."""

    def __init__(self, config, objective: Objective, mesh):
        self._objective, self._place = objective, partial(_place, mesh, objective)
        self._enough = config.held_out_scenes >= config.batch or config.get("held_out_examples")
        self._evaluate = train_step.make_eval_step(objective.held_out_loss or objective.loss)

    def __bool__(self) -> bool:
        return bool(self._enough)

    @cached_property
    def _batches(self) -> list[Any]:
        return list(self._objective.stream(True))

    def scores(self, params: Any) -> dict[str, float]:
        """Means of all metrics, and of A by kind of prompt."""
        parts = []
        for batch in self._batches:
            placed = self._place(batch)
            parts.append(self._evaluate(params, placed))
            if self._objective.kinds:
                kinds = self._objective.kinds
                parts.append(kind_metrics(self._evaluate, params, placed, kinds))
        return loop.metric_means(loop.add_metrics(parts))

    def samples(self, params: Any) -> dict[str, str]:
        """Texts to look at."""
        return {
            name: text for batch in self._batches[:1]
            for name, text in self._objective.samples(params, self._place(batch)).items()
        }  # fmt: skip


def _optimizer_settings(config) -> optimizer.OptimizerSettings:
    return optimizer.OptimizerSettings(
        learning_rate=config.learning_rate, steps=config.steps, warmup=config.warmup,
        final_fraction=config.final_fraction, weight_decay=config.weight_decay, clip=config.clip,
        freeze=tuple(config.freeze),
    )  # fmt: skip


def _loop_settings(config, objective: Objective) -> loop.LoopSettings:
    return loop.LoopSettings(
        steps=config.steps, accumulate=config.accumulate, log_every=config.log_every,
        checkpoint_every=config.checkpoint_every, evaluate_every=config.evaluate_every,
        unit_metric=objective.unit_metric,
    )  # fmt: skip


def _check_config(config) -> None:
    """Raise UserError for the first field that no run can have."""
    choices = {"objective": tuple(MAKERS), "role": ROLES, "compute_dtype": tuple(objectives.DTYPES)}
    for name, allowed in choices.items():
        if name in config and config[name] not in allowed:
            raise UserError(f"{name}: expected one of {', '.join(allowed)}, got {config[name]!r}")
    for name in ("steps", "batch", "accumulate", "keep"):
        if config[name] < 1:
            raise UserError(f"{name}: expected at least 1, got {config[name]}")
    objectives.check_scenes(config)
    if config.objective in ("distill", "align", "head"):
        drafting.check_settings(config)
    if config.objective == "head":
        head_training.check_head(config)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point: 0 done, 75 stopped by a signal, 1 diverged or does not fit, 2 bad input, 3
    another process of the run is gone."""
    argv = list(sys.argv[1:] if argv is None else argv)
    logging.set_verbosity(logging.WARNING)
    flags.FLAGS.mark_as_parsed()  # grain's worker processes ask for it
    try:
        if command_line.wants_help(argv):
            print(command_line.help_text(argv, __doc__))
            return 0
        config = command_line.parse([word for word in argv if word != DRY_RUN])
        runtime.configure()
        if DRY_RUN in argv or config.get("dry_run"):
            return _dry_run(config)
        distributed.initialise(distributed.expected_devices(config.mesh))
        last = train(config)
    except (UserError, loop.NonFiniteLoss) as error:
        print(f"error: {error}", file=sys.stderr)
        return distributed.leave(2 if isinstance(error, UserError) else 1)
    return distributed.leave(0 if last == config.steps else distributed.STOPPED)


def _dry_run(config) -> int:
    if config.objective == "head":
        head_methods.resolve(config)
        _check_config(config)
        config.dry_run = config.dry_run or "13b"
        print(head_dry_run.report(config))
        return 0
    text, fits = report_training(config)
    print(text)
    return 0 if fits else 1


if __name__ == "__main__":
    sys.exit(main())
