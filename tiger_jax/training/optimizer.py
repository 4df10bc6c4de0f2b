"""AdamW with warm-up, cosine decay, clipping, and regex lists for what decays and what is frozen.

Parameters and moments are float32 whatever the compute dtype is: at a learning rate of 5e-6 most
bfloat16 updates would round away.
"""

import dataclasses
import re
from typing import Any

import optax
from flax import traverse_util

from tiger_jax.errors import UserError

NO_DECAY = (r".*/bias", r".*norm\d?/scale", r".*embedding", r"image_newline")
"""Paths without weight decay: biases, norms, embedding tables, the newline row."""


@dataclasses.dataclass(frozen=True)
class OptimizerSettings:
    """What one AdamW run needs."""

    learning_rate: float
    """Peak, reached after the warm-up."""
    steps: int
    warmup: int = 0
    """Steps of linear warm-up from 0."""
    final_fraction: float = 0.0
    """Learning rate at the end of the cosine, as a share of the peak."""
    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.98
    clip: float = 1.0
    """Largest global gradient norm; 0 does not clip."""
    freeze: tuple[str, ...] = ()
    """Regexes on parameter paths; what they match from the start gets no gradient."""


def learning_rate_schedule(settings: OptimizerSettings) -> optax.Schedule:
    """Linear warm-up, then cosine to final_fraction * peak at the last step.

    Raises:
        UserError: the run is not longer than its warm-up.
    """
    if settings.steps <= settings.warmup:
        raise UserError(
            f"warmup: expected fewer warm-up steps than the {settings.steps} steps of the run, "
            f"got {settings.warmup}"
        )
    return optax.warmup_cosine_decay_schedule(
        init_value=0.0 if settings.warmup else settings.learning_rate,
        peak_value=settings.learning_rate,
        warmup_steps=settings.warmup,
        decay_steps=settings.steps,
        end_value=settings.learning_rate * settings.final_fraction,
    )


def make_optimizer(settings: OptimizerSettings) -> optax.GradientTransformation:
    """Clip by the global norm of what is trained, then AdamW; frozen parameters stay."""
    adamw = optax.adamw(
        learning_rate_schedule(settings), b1=settings.beta1, b2=settings.beta2,
        weight_decay=settings.weight_decay, mask=decay_mask,
    )  # fmt: skip
    clip = [optax.clip_by_global_norm(settings.clip)] if settings.clip else []
    transform = optax.chain(*clip, adamw)
    if not settings.freeze:
        return transform
    return optax.partition(
        {True: optax.set_to_zero(), False: transform},
        lambda params: frozen_mask(params, settings.freeze),
    )


def decay_mask(params: Any) -> Any:
    """True for each parameter that weight decay pulls to zero."""
    return _by_path(params, lambda path: not any(re.fullmatch(rule, path) for rule in NO_DECAY))


def frozen_mask(params: Any, freeze: tuple[str, ...]) -> Any:
    """True for each parameter that a regex of `freeze` matches at the start of its path.

    Raises:
        UserError: a regex that matches no parameter.
    """
    paths = list(traverse_util.flatten_dict(params, sep="/"))
    for rule in freeze:
        if not any(re.match(rule, path) for path in paths):
            raise UserError(f"freeze: {rule!r} matches no parameter, the first is {paths[0]}")
    return _by_path(params, lambda path: any(re.match(rule, path) for rule in freeze))


def _by_path(params: Any, value) -> Any:
    flat = traverse_util.flatten_dict(params, sep="/", keep_empty_nodes=True)
    return traverse_util.unflatten_dict({path: value(path) for path in flat}, sep="/")
