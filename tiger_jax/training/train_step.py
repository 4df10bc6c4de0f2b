"""One update of the weights: sum gradients over micro-batches, divide once, apply once.

Every objective (supervised, distillation, policy gradient) gives a `LossSums`: a SUM over its
units (tokens, cells, blocks) together with their number. Dividing only at the end makes eight
micro-batches of one equal one batch of eight, whatever the answers' lengths; means of means would
not. A batch is any pytree, so the weights of a frozen second model can travel in it.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array

from tiger_jax.sharding.rules import ParamRule, constrain_state
from tiger_jax.training.train_state import TrainState

Metrics = dict[str, tuple[Array, Array]]
"""(sum, count) of each metric, float32 scalars."""


@struct.dataclass
class LossSums:
    """The loss of one micro-batch before any division."""

    loss: Any
    """Sum over all units."""
    weight: Any
    """Number of units."""
    metrics: Any = struct.field(default_factory=dict)
    """Other (sum, count) pairs to report."""


LossFunction = Callable[[Any, Any, Array], LossSums]
"""(params, batch, key) -> LossSums; pure."""


@struct.dataclass
class GradientSums:
    """What the micro-batches of one step have added up to."""

    gradients: Any
    weight: Any
    metrics: Any
    micro: Any
    """Micro-batches in it; folded into the key of the next one."""


@dataclasses.dataclass(frozen=True)
class TrainStep:
    """The jitted parts of a step."""

    start: Callable
    """(state, batch) -> GradientSums of the first micro-batch."""
    add: Callable
    """(state, sums, batch) -> sums; donates the sums."""
    apply: Callable
    """(state, sums) -> (state, metrics); donates the state."""

    def compiled(self) -> int:
        """Programs compiled so far: a few per batch shape, or shapes are out of hand."""
        return sum(part._cache_size() for part in (self.start, self.add, self.apply))

    def __call__(self, state: TrainState, batches: list[Any]) -> tuple[TrainState, Metrics]:
        """Run all micro-batches and the update; nothing waits for the device."""
        sums = self.start(state, batches[0])
        for batch in batches[1:]:
            sums = self.add(state, sums, batch)
        return self.apply(state, sums)


def make_train_step(
    loss_function: LossFunction, optimizer: optax.GradientTransformation, frozen: Any = None,
    rules: tuple[ParamRule, ...] = (),
) -> TrainStep:  # fmt: skip
    """Jit the parts.

    Args:
        frozen: a tree of bool over the parameters; True gets no gradient.
        rules: of the parameters. Gradients follow them: left alone, XLA sums whole gradients on
            every device (an all-reduce) where each needs its own part (a reduce-scatter).
    """

    def gradient_sums(state: TrainState, batch: Any, micro: Array) -> GradientSums:
        key = jax.random.fold_in(state.step_key(), micro)

        def total(params: Any) -> tuple[Array, LossSums]:
            sums = loss_function(_stop_frozen(params, frozen), batch, key)
            return sums.loss, sums

        gradients, sums = jax.grad(total, has_aux=True)(state.params)
        gradients = constrain_state(gradients, state.params, rules)
        metrics = {"loss": (sums.loss, sums.weight), **sums.metrics}
        return GradientSums(gradients, sums.weight, metrics, micro + 1)

    def start(state: TrainState, batch: Any) -> GradientSums:
        return gradient_sums(state, batch, jnp.zeros((), jnp.int32))

    def add(state: TrainState, sums: GradientSums, batch: Any) -> GradientSums:
        new = gradient_sums(state, batch, sums.micro)
        return jax.tree.map(jnp.add, sums, new).replace(micro=new.micro)

    def apply(state: TrainState, sums: GradientSums) -> tuple[TrainState, Metrics]:
        scale = 1.0 / jnp.maximum(sums.weight, 1.0)
        gradients = jax.tree.map(lambda g: g * scale, sums.gradients)
        updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        metrics = {**sums.metrics, **_gradient_norms(gradients)}
        after = state.replace(params=params, opt_state=opt_state, step=state.step + 1)
        return constrain_state(after, state.params, rules), metrics

    return TrainStep(
        start=jax.jit(start), add=jax.jit(add, donate_argnums=1),
        apply=jax.jit(apply, donate_argnums=0),
    )  # fmt: skip


def make_eval_step(loss_function: LossFunction) -> Callable[[Any, Any], Metrics]:
    """(params, batch) -> (sum, count) metrics without gradients, under a fixed key."""

    def evaluate(params: Any, batch: Any) -> Metrics:
        sums = loss_function(params, batch, jax.random.key(0))
        return {"loss": (sums.loss, sums.weight), **sums.metrics}

    return jax.jit(evaluate)


def _stop_frozen(params: Any, frozen: Any) -> Any:
    if frozen is None:
        return params
    return jax.tree.map(
        lambda leaf, stop: jax.lax.stop_gradient(leaf) if stop else leaf, params, frozen
    )


def _gradient_norms(gradients: Any) -> Metrics:
    """The global norm; with a router, its norm and that of everything else too."""
    one = jnp.ones(())
    norms = {"gradient_norm": (optax.global_norm(gradients), one)}
    if "router" in gradients:
        rest = {name: part for name, part in gradients.items() if name != "router"}
        norms["gradient_norm_router"] = (optax.global_norm(gradients["router"]), one)
        norms["gradient_norm_drafter"] = (optax.global_norm(rest), one)
    return norms
