"""A checkpoint folder (Hugging Face or Orbax) -> parameters on the devices, in their sharding.

    headers of all shards -> one report of all faults -> tensor by tensor: read, reshape, place

Nothing is read before the headers fit the model, and one host tensor is alive at a time, so a 13B
checkpoint (26.7 GB) needs little more host memory than its largest tensor. `open_params` stops
before the last step: converters take the tensors one by one from there.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from tiger_jax.errors import UserError
from tiger_jax.models import interface
from tiger_jax.models.config import ModelConfig
from tiger_jax.weights import orbax_io, safetensors_io
from tiger_jax.weights.families import Family, family_of
from tiger_jax.weights.load_plan import plan_load

Params = dict[str, Any]
Shardings = Mapping[str, Any] | jax.sharding.Sharding | None


def load_params(
    folder: str | Path,
    config: ModelConfig,
    *,
    dtype: Any = None,
    shardings: Shardings = None,
    vision_tower: str | Path | None = None,
) -> Params:
    """Reads the weights of a folder, whichever layout it has.

    Args:
        folder: Hugging Face folder, in any layout that the config's family has, or Orbax folder.
        config: the model's configuration; it decides which names and shapes must be there.
        dtype: cast every weight to it on the host; None keeps each one's stored dtype.
        shardings: a nested dict of Shardings like the parameters, or one Sharding for all; None
            puts everything on the default device.
        vision_tower: file or folder of the tower, for original-format files that lack it.

    Raises:
        UserError: unreadable files, or a checkpoint that does not fit (all faults in one line).
    """
    abstract = interface.build_model(config).abstract_params()
    targets = _flat_shardings(abstract, shardings)
    if orbax_io.is_orbax_folder(folder):
        _refuse_tower(folder, vision_tower)
        default = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        flat = {path: target or default for path, target in targets.items()}
        return orbax_io.restore_params(folder, abstract, dtype=dtype, shardings=flat)
    stored = _open_hf(folder, family_of(config), abstract, dtype, vision_tower)
    params = {path: _place(stored.read(path), targets[path]) for path in stored.leaves}
    return traverse_util.unflatten_dict(params, sep="/")


@dataclasses.dataclass(frozen=True)
class StoredParams:
    """Weights that fit the model and still lie in their folder."""

    leaves: Mapping[str, jax.ShapeDtypeStruct]
    """Parameter path -> shape and dtype, in the order of the files."""
    read: Callable[[str], np.ndarray]
    """Parameter path -> that weight as `leaves` says, on the host."""


def open_params(
    folder: str | Path,
    config: ModelConfig,
    *,
    dtype: Any = None,
    vision_tower: str | Path | None = None,
) -> StoredParams:
    """As `load_params`, which see, without reading any weight."""
    abstract = interface.build_model(config).abstract_params()
    if not orbax_io.is_orbax_folder(folder):
        return _open_hf(folder, family_of(config), abstract, dtype, vision_tower)
    _refuse_tower(folder, vision_tower)
    stored = orbax_io.stored_leaves(folder, abstract)

    def read(path: str) -> np.ndarray:
        return _cast(orbax_io.read_tensor(folder, path, stored[path]), dtype)

    leaves = {
        path: jax.ShapeDtypeStruct(leaf.shape, jnp.dtype(dtype or leaf.dtype))
        for path, leaf in stored.items()
    }
    return StoredParams(leaves, read)


def _open_hf(
    folder: str | Path,
    family: Family,
    abstract: Mapping[str, Any],
    dtype: Any,
    vision_tower: str | Path | None,
) -> StoredParams:
    plan = plan_load(folder, family, abstract, vision_tower=vision_tower)
    items = {item.entry.path: item for item in plan}

    def read(path: str) -> np.ndarray:
        item = items[path]
        place = Path(item.stored.file), item.stored.name
        ((_, _, value),) = safetensors_io.iterate_tensors([place])
        return _cast(item.entry.op.to_jax(value), dtype)

    leaves = {
        path: jax.ShapeDtypeStruct(item.entry.jax_shape, jnp.dtype(dtype or item.stored.dtype))
        for path, item in items.items()
    }
    return StoredParams(leaves, read)


def _cast(value: np.ndarray, dtype: Any) -> np.ndarray:
    return value if dtype is None else value.astype(jnp.dtype(dtype))


def _refuse_tower(folder: str | Path, vision_tower: str | Path | None) -> None:
    if vision_tower is not None:
        raise UserError(f"{folder}: Orbax folders hold their tower; drop {vision_tower}")


def _flat_shardings(abstract: Mapping[str, Any], shardings: Shardings) -> dict[str, Any]:
    """Parameter path -> Sharding or None. Raises ValueError naming the paths that have none."""
    paths = traverse_util.flatten_dict(abstract, sep="/").keys()
    if shardings is None or isinstance(shardings, jax.sharding.Sharding):
        return dict.fromkeys(paths, shardings)
    flat = traverse_util.flatten_dict(shardings, sep="/")
    if absent := sorted(paths - flat.keys()):
        raise ValueError(f"shardings: expected one for every parameter, none for {absent[:8]}")
    return flat


def _place(value: np.ndarray, sharding: jax.sharding.Sharding | None) -> jax.Array:
    """Host array -> device array; waits for the copy, so that the host's can be let go."""
    if sharding is None:
        placed = jax.device_put(value)
    else:  # each process hands over only what its own devices hold
        placed = jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])
    return placed.block_until_ready()
