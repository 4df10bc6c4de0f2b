"""What each kind of training brings to the loop: weights, batches, a step, and an export.

sft       answers to questions about scenes (the verifier, or a drafter's first weights)
tower     what the cells of a picture hold (the vision tower alone)
distill   a drafter learns the verifier's laws, its router the verifier's attention  (KD)
align     a drafter learns to be accepted: grpo, grpo_exact or expected_acceptance   (GRPO)
head      a draft head learns from the verifier's own states
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from tiger_jax.data import clip_language, mixtures, scene_language, scenes
from tiger_jax.data.processor import Processor
from tiger_jax.errors import UserError
from tiger_jax.models.interface import VisionLanguageModel
from tiger_jax.sharding import rules as sharding_rules
from tiger_jax.training import run_folder, sft_step, tower_step, train_step

OBJECTIVES = ("sft", "tower", "distill", "align", "head")
DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


@dataclasses.dataclass(frozen=True)
class Objective:
    """What one kind of training brings to the loop."""

    init_params: Callable[[jax.Array], Any]
    rules: tuple[sharding_rules.ParamRule, ...]
    loss: train_step.LossFunction
    """Of the update."""
    stream: Callable[[bool], Any]
    """held_out -> batches of the data package; the held-out ones once through, in order."""
    to_batch: Callable[[Any], Any]
    """Host batch of the data package -> batch of the loss function."""
    export: Callable[[Any, Path], None]
    """(trained parameters, target folder): write what others open."""
    unit: str
    """What throughput is counted in."""
    unit_metric: str
    """The metric whose count that is."""
    make_step: Callable[[train_step.TrainStep, Callable[..., Any]], Any] = lambda update, _: update
    """(jitted update, dtype -> initial parameters) -> what the loop calls: more than the update,
    where samples come first."""
    init_from: str = ""
    """Folder of the first weights where the config names none; "" = random ones."""
    read_params: Callable[[str, Any], Any] = run_folder.initial_params
    """(folder, fresh parameters) -> those of the folder in their place."""
    complete: Callable[[Any], Any] = lambda batch: batch
    """Adds what is on the devices already to a placed batch."""
    held_out_loss: train_step.LossFunction | None = None
    """What is evaluated on held-out batches; None: the loss itself."""
    kinds: tuple[str, ...] = ()
    """Of question 0, 1, .. of every held-out example, where they are known."""
    samples: Callable[[Any, Any], dict[str, str]] | None = None
    """(parameters, placed held-out batch) -> texts to look at."""
    step_flops: Callable[[Any], float] = lambda batch: 0.0
    """Of the update on a placed micro-batch, on all devices: 6 a weight and token; 0 = unknown."""
    reference: str = ""
    """Fingerprint of the frozen weights that the loss compares with."""


def sft_objective(config, model: VisionLanguageModel, folder: Path) -> Objective:
    """Answers to packed questions; the whole model."""
    balance = config.balance
    return Objective(
        init_params=model.init_params, rules=model.rules,
        loss=sft_step.make_sft_loss(model), stream=_scene_stream(config, folder),
        to_batch=lambda batch: sft_step.pack_batch(**batch._asdict(), balance=balance),
        export=lambda params, target: run_folder.export_params(params, folder, target),
        unit="tokens", unit_metric="token_accuracy",
    )  # fmt: skip


def tower_objective(config, model: VisionLanguageModel, folder: Path) -> Objective:
    """Contents of picture cells; the vision tower alone, the rest of the export is random."""
    cells = mixtures.SceneSource.grid[0]

    def init_params(key: jax.Array) -> Any:
        classes = {"content": scenes.NUM_CONTENT_CLASSES, "color": scenes.NUM_COLOR_CLASSES}
        return tower_step.init_tower_params(model, key, classes | {"place": cells * cells})

    def export(params: Any, target: Path) -> None:
        rest = jax.jit(model.init_params)(jax.random.key(config.seed))
        whole = rest | {"vision_tower": params["vision_tower"]}
        run_folder.export_params(whole, folder, target)

    return Objective(
        init_params=init_params, rules=(*model.tower_rules, *tower_step.HEAD_RULES),
        loss=tower_step.make_tower_loss(model, cells), stream=_scene_stream(config, folder),
        to_batch=lambda batch: tower_step.CellBatch(**batch._asdict()), export=export,
        unit="cells", unit_metric="loss",
    )  # fmt: skip


def check_scenes(config) -> None:
    """UserError for the first field of a scene config that no run can have."""
    kinds = {
        "extra_questions": scene_language.KINDS, "extra_clip_questions": clip_language.CLIP_KINDS
    }  # fmt: skip
    for name, known in kinds.items():
        if unknown := set(config.get(name, ())) - set(known):
            wanted = ", ".join(known)
            raise UserError(f"{name}: expected some of {wanted}, got {sorted(unknown)[0]!r}")
    if not 0 <= config.get("clip_share", 0.0) <= 1:
        raise UserError(f"clip_share: expected 0..1, got {config.clip_share}")


def scene_sources(config, *, held_out: bool) -> list[tuple[mixtures.SceneSource, float]]:
    """Training pictures and clips with their shares, or those that no training sees."""
    count = config.held_out_scenes if held_out else config.scenes
    plain = held_out or config.objective == "tower"
    found, clip_share = [], config.get("clip_share", 0.0)
    for name, share in (("extra_questions", 1 - clip_share), ("extra_clip_questions", clip_share)):
        source = mixtures.SceneSource(
            num_scenes=round(count * share), seed=config.seed,
            first_index=scenes.HELD_OUT if held_out else 0, hard_share=config.hard_share,
            extra=() if plain else tuple(config.get(name, ())),
            clips=name == "extra_clip_questions",
        )  # fmt: skip
        if len(source):
            found.append((source, share))
    return found


def _scene_stream(config, folder: Path) -> Callable[[bool], Any]:
    processor = Processor.from_folder(folder)

    def stream(held_out: bool) -> Any:
        return mixtures.scene_batches(
            processor, scene_sources(config, held_out=held_out), config.batch, config.objective,
            shuffle_seed=None if held_out else config.seed, num_epochs=1 if held_out else None,
            num_workers=0 if held_out else config.workers,
        )  # fmt: skip

    return stream
