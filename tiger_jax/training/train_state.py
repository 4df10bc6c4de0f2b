"""What a training run carries from step to step, made without a full copy on any device."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax.sharding import Mesh
from jaxtyping import Array

from tiger_jax.sharding import rules as sharding_rules


@struct.dataclass
class TrainState:
    """Weights, optimizer and random key. All of it is checkpointed; nothing else is carried."""

    params: Any
    """Float32 masters, a nested dict."""
    opt_state: Any
    """Optax state, moments in float32."""
    step: Any
    """int32 []: updates made so far."""
    key: Any
    """uint32 [2]: raw threefry key of the run; step n folds n into it, so it never changes."""

    def step_key(self) -> Array:
        """The key of the step that comes next."""
        return jax.random.fold_in(jax.random.wrap_key_data(self.key), self.step)


def create_state(
    init_params: Callable[[Array], Any], optimizer: optax.GradientTransformation, seed: int,
    mesh: Mesh, rules: tuple[sharding_rules.ParamRule, ...],
) -> TrainState:  # fmt: skip
    """A fresh state on `mesh`, each weight made on the devices that own a part of it.

    `init_params(key)` gives the float32 parameters; it is traced, so real weights cannot come from
    it: replace `params` afterwards (`place_params`).
    """
    init = _initialiser(init_params, optimizer, seed)
    return jax.jit(init, out_shardings=state_shardings(init, mesh, rules))()


def abstract_state(
    init_params: Callable[[Array], Any], optimizer: optax.GradientTransformation,
    mesh: Mesh, rules: tuple[sharding_rules.ParamRule, ...],
) -> TrainState:  # fmt: skip
    """Shapes, dtypes and shardings of `create_state`: the target that a checkpoint is read into."""
    init = _initialiser(init_params, optimizer, 0)
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        jax.eval_shape(init), state_shardings(init, mesh, rules),
    )  # fmt: skip


def state_shardings(
    init: Callable[[], TrainState], mesh: Mesh, rules: tuple[sharding_rules.ParamRule, ...]
) -> TrainState:
    """A NamedSharding for each leaf of the state."""
    abstract = jax.eval_shape(init)
    axes = sharding_rules.logical_axes(abstract.params, rules)
    return sharding_rules.tree_shardings(abstract, axes, mesh)


def place_params(state: TrainState, params: Any) -> TrainState:
    """The state with other weights, placed and cast as its own ones are."""
    placed = jax.tree.map(
        lambda old, new: jax.device_put(new, old.sharding).astype(old.dtype), state.params, params
    )
    return state.replace(params=placed)


def _initialiser(
    init_params: Callable[[Array], Any], optimizer: optax.GradientTransformation, seed: int
) -> Callable[[], TrainState]:
    def init() -> TrainState:
        weights_key, run_key = jax.random.split(jax.random.key(seed))
        params = jax.tree.map(lambda x: x.astype(jnp.float32), init_params(weights_key))
        return TrainState(
            params=params,
            opt_state=optimizer.init(params),
            step=jnp.zeros((), jnp.int32),
            key=jax.random.key_data(run_key),
        )

    return init
