"""Train a model: python -m tiger_jax.train --config configs/sft.py [--config.steps=200 ...]

The config file says what is trained, on what and for how long; each of its fields can be set on
the command line as --config.FIELD=VALUE. The same command again goes on where the run stopped.
Ctrl-C and SIGTERM save a checkpoint and exit.
"""

import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
from absl import flags, logging

from tiger_jax import command_line, runtime
from tiger_jax.data import mixtures, scene_drawing, scene_folder, scene_language, scenes
from tiger_jax.data.processor import Processor
from tiger_jax.errors import UserError
from tiger_jax.models.config import read_config
from tiger_jax.models.interface import VisionLanguageModel, build_model
from tiger_jax.sharding import mesh as meshes
from tiger_jax.sharding import rules as sharding_rules
from tiger_jax.training import (
    loop,
    optimizer,
    run_folder,
    sft_step,
    tower_step,
    train_state,
    train_step,
)
from tiger_jax.training.checkpoint import RunCheckpoints
from tiger_jax.training.interruption import StopRequest
from tiger_jax.training.metric_log import MetricLog
from tiger_jax.training.progress import Progress

OBJECTIVES = ("sft", "tower")
ROLES = ("verifier", "drafter")
DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


@dataclasses.dataclass(frozen=True)
class Objective:
    """What one kind of training brings to the loop."""

    init_params: Callable[[jax.Array], Any]
    rules: tuple[sharding_rules.ParamRule, ...]
    loss: train_step.LossFunction
    to_batch: Callable[[Any], Any]
    """Host batch of the data package -> batch of the loss function."""
    full_params: Callable[[Any], Any]
    """Trained parameters -> all parameters of the model, for the export."""
    unit: str
    """What throughput is counted in."""
    unit_metric: str
    """The metric whose count that is."""


def sft_objective(model: VisionLanguageModel, balance: float) -> Objective:
    """Answers to packed questions; the whole model."""
    return Objective(
        init_params=model.init_params, rules=sharding_rules.LLAVA_NEXT_RULES,
        loss=sft_step.make_sft_loss(model),
        to_batch=lambda batch: sft_step.pack_batch(**batch._asdict(), balance=balance),
        full_params=lambda params: params, unit="tokens",
        unit_metric="token_accuracy",
    )  # fmt: skip


def tower_objective(model: VisionLanguageModel, seed: int) -> Objective:
    """Contents of picture cells; the vision tower alone, the rest of the export is random."""
    cells = model.config.vision.image_size // scene_drawing.CELL

    def init_params(key: jax.Array) -> Any:
        classes = {"content": scenes.NUM_CONTENT_CLASSES, "color": scenes.NUM_COLOR_CLASSES}
        return tower_step.init_tower_params(model, key, classes | {"place": cells * cells})

    def full_params(params: Any) -> Any:
        rest = jax.jit(model.init_params)(jax.random.key(seed))
        return rest | {"vision_tower": params["vision_tower"]}

    return Objective(
        init_params=init_params, rules=tower_step.TOWER_RULES,
        loss=tower_step.make_tower_loss(model, cells),
        to_batch=lambda batch: tower_step.CellBatch(**batch._asdict()),
        full_params=full_params, unit="cells", unit_metric="loss",
    )  # fmt: skip


def train(config: ml_collections.ConfigDict) -> int:
    """Run a config to its end or to a signal; returns the last step.

    Raises:
        UserError: anything in the config that cannot be, before the first step.
        NonFiniteLoss: the run diverged; its newest checkpoint is from before.
    """
    _check_config(config)
    mesh = meshes.make_mesh(config.mesh.to_dict())
    parts = sharding_rules.batch_parts(mesh)
    if config.batch % parts:
        raise UserError(f"batch: expected a multiple of data * fsdp = {parts}, got {config.batch}")
    folder = run_folder.open_run_folder(config.run_dir, config.to_dict(), resume=config.resume)
    model_folder = config.model or scene_folder.write_tiny_folder(
        folder / run_folder.MODEL, config.role
    )
    model = build_model(read_config(model_folder), DTYPES[config.compute_dtype])
    objective = (
        sft_objective(model, config.balance)
        if config.objective == "sft"
        else tower_objective(model, config.seed)
    )
    with jax.set_mesh(mesh):
        return _train_on_mesh(config, mesh, Path(folder), Path(model_folder), objective)


def _train_on_mesh(config, mesh, folder: Path, model_folder: Path, objective: Objective) -> int:
    transform = optimizer.make_optimizer(_optimizer_settings(config))
    abstract = train_state.abstract_state(objective.init_params, transform, mesh, objective.rules)
    processor = Processor.from_folder(model_folder)
    stream = iter(_stream(config, processor, held_out=False))
    checkpoints = RunCheckpoints(folder, keep=config.keep)
    progress = Progress(config.steps, unit=objective.unit)
    log = MetricLog(folder / run_folder.TENSORBOARD)
    if checkpoints.latest_step() is not None:
        state, position = checkpoints.restore(abstract)
        stream.set_state(position)
        progress.line(f"resumed {folder} at step {int(state.step)}")
    else:
        state = _fresh_state(config, mesh, transform, objective)
    frozen = optimizer.frozen_mask(abstract.params, config.freeze) if config.freeze else None
    step = train_step.make_train_step(objective.loss, transform, frozen)
    place = _placer(mesh, objective)
    observers = loop.Observers(
        checkpoints, log, progress, _evaluator(config, processor, objective, place)
    )
    with StopRequest() as stop:
        settings = _loop_settings(config, objective)
        state = loop.run_loop(state, step, stream, settings, observers, place=place, stop=stop)
    last = int(state.step)
    if last == config.steps:
        target = Path(config.export_to or folder / run_folder.EXPORT)
        run_folder.export_params(objective.full_params(state.params), model_folder, target)
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
    params = state.params
    if config.init_from:
        params = run_folder.initial_params(config.init_from, params)
    if config.tower_from:
        params = run_folder.initial_params(config.tower_from, params, ("vision_tower/",))
    return train_state.place_params(state, params)


def _stream(config, processor: Processor, *, held_out: bool) -> Any:
    """Batches of this process; the held-out ones once through, in order."""
    source = mixtures.SceneSource(
        num_scenes=config.held_out_scenes if held_out else config.scenes, seed=config.seed,
        first_index=scenes.HELD_OUT if held_out else 0, hard_share=config.hard_share,
        extra=() if held_out or config.objective == "tower" else tuple(config.extra_questions),
    )  # fmt: skip
    return mixtures.scene_batches(
        processor, source, config.batch, config.objective,
        shuffle_seed=None if held_out else config.seed, num_epochs=1 if held_out else None,
        num_workers=0 if held_out else config.workers,
    )  # fmt: skip


def _placer(mesh, objective: Objective) -> Callable[[Any], Any]:
    """Pack a host batch and put it on the mesh, split by pictures."""
    sharding = sharding_rules.batch_sharding(mesh)
    return lambda batch: jax.device_put(objective.to_batch(batch), sharding)


def _evaluator(config, processor: Processor, objective: Objective, place) -> Callable | None:
    if config.held_out_scenes < config.batch:
        return None
    evaluate = train_step.make_eval_step(objective.loss)
    batches: list = []  # drawn once, at the first evaluation

    def scores(params: Any) -> dict[str, float]:
        if not batches:
            batches.extend(_stream(config, processor, held_out=True))
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
    choices = {"objective": OBJECTIVES, "role": ROLES, "compute_dtype": tuple(DTYPES)}
    for name, allowed in choices.items():
        if config[name] not in allowed:
            raise UserError(f"{name}: expected one of {', '.join(allowed)}, got {config[name]!r}")
    for name in ("steps", "batch", "accumulate", "keep", "scenes"):
        if config[name] < 1:
            raise UserError(f"{name}: expected at least 1, got {config[name]}")
    unknown = set(config.get("extra_questions", ())) - set(scene_language.KINDS)
    if unknown:
        kinds = ", ".join(scene_language.KINDS)
        raise UserError(f"extra_questions: expected some of {kinds}, got {sorted(unknown)[0]!r}")
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
