"""What a training run carries from step to step, made without a full copy on any device."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct, traverse_util
from jax.sharding import Mesh
from jax.typing import DTypeLike
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


def create_params(
    init_params: Callable[[Array], Any], seed: int, mesh: Mesh,
    rules: tuple[sharding_rules.ParamRule, ...], dtype: DTypeLike = jnp.float32,
) -> Any:  # fmt: skip
    """Random weights, each made on the devices that own a part of it.

    `init_params(key)` is traced, so real weights cannot come from it.
    """

    def init() -> Any:
        return cast(init_params(_keys(seed)[0]), dtype)

    abstract = jax.eval_shape(init)
    axes = sharding_rules.logical_axes(abstract, rules)
    return jax.jit(init, out_shardings=sharding_rules.tree_shardings(abstract, axes, mesh))()


def start_state(
    params: Any, optimizer: optax.GradientTransformation, seed: int, mesh: Mesh,
    rules: tuple[sharding_rules.ParamRule, ...],
) -> TrainState:  # fmt: skip
    """The state of a run's first step; takes over the float32 weights, which must not be used
    again."""

    def start(params: Any) -> TrainState:
        return _fresh(params, optimizer, seed)

    shardings = state_shardings(jax.eval_shape(start, params), mesh, rules)
    return jax.jit(start, out_shardings=shardings, donate_argnums=0)(params)


def create_state(
    init_params: Callable[[Array], Any], optimizer: optax.GradientTransformation, seed: int,
    mesh: Mesh, rules: tuple[sharding_rules.ParamRule, ...],
) -> TrainState:  # fmt: skip
    """A fresh state with random weights."""
    params = create_params(init_params, seed, mesh, rules)
    return start_state(params, optimizer, seed, mesh, rules)


def abstract_state(
    init_params: Callable[[Array], Any], optimizer: optax.GradientTransformation,
    mesh: Mesh, rules: tuple[sharding_rules.ParamRule, ...],
) -> TrainState:  # fmt: skip
    """Shapes, dtypes and shardings of `create_state`: the target that a checkpoint is read into."""

    def init() -> TrainState:
        return _fresh(cast(init_params(_keys(0)[0]), jnp.float32), optimizer, 0)

    abstract = jax.eval_shape(init)
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        abstract, state_shardings(abstract, mesh, rules),
    )  # fmt: skip


def state_shardings(
    abstract: TrainState, mesh: Mesh, rules: tuple[sharding_rules.ParamRule, ...]
) -> TrainState:
    """A NamedSharding for each leaf of the state."""
    axes = sharding_rules.logical_axes(abstract.params, rules)
    return sharding_rules.tree_shardings(abstract, axes, mesh)


def _fresh(params: Any, optimizer: optax.GradientTransformation, seed: int) -> TrainState:
    return TrainState(
        params=params, opt_state=optimizer.init(params), step=jnp.zeros((), jnp.int32),
        key=jax.random.key_data(_keys(seed)[1]),
    )  # fmt: skip


def _keys(seed: int) -> Array:
    """(key of the weights, key of the run)."""
    return jax.random.split(jax.random.key(seed))


def cast(params: Any, dtype: DTypeLike) -> Any:
    """The weights for passes that compute in `dtype` (`compute_dtype`)."""
    flat = traverse_util.flatten_dict(params, sep="/")
    found = {path: leaf.astype(compute_dtype(path, leaf, dtype)) for path, leaf in flat.items()}
    return traverse_util.unflatten_dict(found, sep="/")


def compute_dtype(path: str, leaf: Any, dtype: DTypeLike) -> DTypeLike:
    """What a weight may be rounded to without changing a pass that computes in `dtype`: that for
    matrices of a model; float32 for a router, and for vectors, which norms read in float32."""
    return dtype if leaf.ndim > 1 and not path.startswith("router/") else jnp.float32
