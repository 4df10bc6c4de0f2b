"""Train a model: python -m tiger_jax.train --config configs/sft.py [--config.steps=200 ...]

configs/
    kd.py      a drafter learns to draft from a few routed visual tokens  (knowledge distillation)
    grpo.py    it learns to be accepted                                   (acceptance alignment)
    head.py    a draft head on the verifier's own states: tiger_head, eagle2, eagle3, vispec, medusa
    sft.py     answers about scenes: the embedded verifier, or a drafter's first weights
    tower.py   what a picture holds: the vision tower that sft.py starts with

kd.py and grpo.py take a pair's name: --config configs/kd.py:llava_next

The config file says what is trained, on what and for how long; each of its fields can be set on
the command line as --config.FIELD=VALUE. The same command again goes on where the run stopped.
Ctrl-C and SIGTERM save a checkpoint and exit.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import ml_collections
from absl import flags, logging

from tiger_jax import (
    command_line,
    drafting,
    head_dry_run,
    head_methods,
    head_training,
    objectives,
    runtime,
)
from tiger_jax.data import scene_folder
from tiger_jax.errors import UserError
from tiger_jax.models.config import read_config
from tiger_jax.models.interface import build_model
from tiger_jax.objectives import Objective
from tiger_jax.sharding import mesh as meshes
from tiger_jax.sharding import rules as sharding_rules
from tiger_jax.training import loop, optimizer, run_folder, train_state, train_step
from tiger_jax.training.checkpoint import RunCheckpoints
from tiger_jax.training.interruption import StopRequest
from tiger_jax.training.metric_log import MetricLog
from tiger_jax.training.progress import Progress

ROLES = ("verifier", "drafter")
MAKERS = {
    "sft": objectives.sft_objective,
    "tower": objectives.tower_objective,
    "distill": drafting.distill_objective,
    "align": drafting.align_objective,
    "head": head_training.head_objective,
}


def train(config: ml_collections.ConfigDict) -> int:
    """Run a config to its end or to a signal; returns the last step. A dry run makes none.

    Raises:
        UserError: anything in the config that cannot be, before the first step.
        NonFiniteLoss: the run diverged; its newest checkpoint is from before.
    """
    if config.objective == "head":
        head_methods.resolve(config)
    _check_config(config)
    if config.get("dry_run"):
        print(head_dry_run.report(config))
        return 0
    if config.objective == "head":
        config.model = str(drafting.verifier_folder(config))  # its states are what is read
    mesh = meshes.make_mesh(config.mesh.to_dict())
    parts = sharding_rules.batch_parts(mesh)
    if config.batch % parts:
        raise UserError(f"batch: expected a multiple of data * fsdp = {parts}, got {config.batch}")
    folder = run_folder.open_run_folder(config.run_dir, config.to_dict(), resume=config.resume)
    model_folder = config.model or scene_folder.write_tiny_folder(
        folder / run_folder.MODEL, config.role
    )
    model = build_model(read_config(model_folder), objectives.DTYPES[config.compute_dtype])
    objective = MAKERS[config.objective](config, model, Path(model_folder))
    with jax.set_mesh(mesh):
        return _train_on_mesh(config, mesh, Path(folder), objective)


def _train_on_mesh(config, mesh, folder: Path, objective: Objective) -> int:
    transform = optimizer.make_optimizer(_optimizer_settings(config))
    abstract = train_state.abstract_state(objective.init_params, transform, mesh, objective.rules)
    stream = iter(objective.stream(False))
    checkpoints = RunCheckpoints(folder, keep=config.keep)
    progress = Progress(config.steps, unit=objective.unit)
    if checkpoints.latest_step() is not None:
        state, position = checkpoints.restore(abstract)
        stream.set_state(position)
        progress.line(f"resumed {folder} at step {int(state.step)}")
    else:
        state = _fresh_state(config, mesh, transform, objective)
    frozen = optimizer.frozen_mask(abstract.params, config.freeze) if config.freeze else None
    update = train_step.make_train_step(objective.loss, transform, frozen)
    step = objective.make_step(
        update, lambda: _fresh_state(config, mesh, transform, objective).params
    )
    place = _placer(mesh, objective)
    evaluate = _evaluator(config, objective, place)
    if evaluate is None:
        progress.line(f"no held-out evaluation: {config.held_out_scenes} held_out_scenes make "
                      f"no batch of {config.batch}")  # fmt: skip
    log = MetricLog(folder / run_folder.TENSORBOARD)
    observers = loop.Observers(checkpoints, log, progress, evaluate)
    with StopRequest() as stop:
        settings = _loop_settings(config, objective)
        state = loop.run_loop(state, step, stream, settings, observers, place=place, stop=stop)
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
    state = train_state.create_state(
        objective.init_params, transform, config.seed, mesh, objective.rules
    )
    return train_state.place_params(state, _initial_params(config, objective, state.params))


def _initial_params(config, objective: Objective, params: Any) -> Any:
    """The weights that a run starts from, in the place of those of `params`."""
    if start := config.init_from or objective.init_from:
        params = objective.read_params(start, params)
    if config.tower_from:
        params = run_folder.initial_params(config.tower_from, params, ("vision_tower/",))
    return params


def _placer(mesh, objective: Objective) -> Callable[[Any], Any]:
    """Pack a host batch and put it on the mesh, split by pictures."""
    sharding = sharding_rules.batch_sharding(mesh)

    def place(batch: Any) -> Any:
        return objective.complete(jax.device_put(objective.to_batch(batch), sharding))

    return place


def _evaluator(config, objective: Objective, place) -> Callable | None:
    if config.held_out_scenes < config.batch:
        return None
    evaluate = train_step.make_eval_step(objective.held_out_loss or objective.loss)
    batches: list = []  # drawn once, at the first evaluation

    def scores(params: Any) -> dict[str, float]:
        if not batches:
            batches.extend(objective.stream(True))
        parts = [evaluate(params, place(batch)) for batch in batches]
        return loop.metric_means(loop.add_metrics(parts))

    return scores


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
    if jax.process_count() > 1:
        raise UserError(f"train: expected one process, got {jax.process_count()}")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point: 0 done or stopped cleanly, 1 diverged, 2 bad input."""
    argv = sys.argv[1:] if argv is None else argv
    logging.set_verbosity(logging.WARNING)
    flags.FLAGS.mark_as_parsed()  # grain's worker processes ask for it
    try:
        if command_line.wants_help(argv):
            print(command_line.help_text(argv, __doc__))
            return 0
        config = command_line.parse(argv)
        runtime.configure()
        train(config)
    except (UserError, loop.NonFiniteLoss) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
