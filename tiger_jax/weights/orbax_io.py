"""Weights as an Orbax checkpoint: a faster way back in, straight into the target sharding.

The folder holds the Hugging Face config, tokenizer and processor files (export.write_companions)
and the parameters under `params/`, one checkpoint that is written some tensors at a time and gets
its name when it is complete. Orbax is imported here and in training/checkpoint.py, nowhere else.
"""

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import traverse_util
from orbax.checkpoint import v1 as ocp

from tiger_jax.errors import UserError
from tiger_jax.weights.name_table import Entry, StoredTensor, find_faults
from tiger_jax.weights.tensor_ops import IDENTITY

PARAMS_FOLDER = "params"
GROUP_BYTES = 10**9
"""Written at a time: each turn rewrites the list of all tensors so far, so small turns cost."""


def is_orbax_folder(folder: str | Path) -> bool:
    """True if `folder` holds parameters in the Orbax form."""
    return (Path(folder) / PARAMS_FOLDER).is_dir()


def save_params(params: Mapping[str, Any], folder: str | Path) -> None:
    """Writes a nested dict to `folder`/params. Raises UserError as `save_tensors`."""
    save_tensors(traverse_util.flatten_dict(params, sep="/").items(), folder)


def save_tensors(
    tensors: Iterable[tuple[str, Any]], folder: str | Path, *, group_bytes: int = GROUP_BYTES
) -> None:
    """Writes `folder`/params from tensors that come one by one; each dtype is kept.

    Args:
        tensors: (parameter path, numpy or jax array). Those of one group are alive at a time.
        group_bytes: what a group holds at most; a larger tensor is a group of its own.

    Raises:
        UserError: `folder`/params exists already, or cannot be written.
    """
    target = Path(folder).absolute() / PARAMS_FOLDER
    if target.exists():
        raise UserError(f"{target}: exists already; choose another folder")
    for stale in target.parent.glob(f"{PARAMS_FOLDER}.*"):  # a run that was killed left it
        shutil.rmtree(stale)
    group, used = {}, 0
    for path, value in tensors:
        if group and used + value.nbytes > group_bytes:
            _add_group(group, target)
            group, used = {}, 0
        group[path] = value
        used += value.nbytes
        del value  # else it lives on while the next one is read
    _add_group(group, target)
    ocp.partial.finalize(target)


def _add_group(group: Mapping[str, Any], target: Path) -> None:
    try:
        ocp.partial.save(target, traverse_util.unflatten_dict(group, sep="/"))
    except (OSError, ValueError) as error:
        raise UserError(f"{target}: cannot be written ({_one_line(error)})") from None


def restore_params(
    folder: str | Path,
    abstract: Mapping[str, Any],
    *,
    dtype: Any = None,
    shardings: Mapping[str, jax.sharding.Sharding],
) -> dict[str, Any]:
    """Reads `folder`/params into arrays of the given shardings.

    Args:
        abstract: nested dict of shapes that the model expects.
        dtype: what to cast to on the way; None keeps what was stored.
        shardings: flat dict, parameter path -> Sharding.

    Raises:
        UserError: the stored names or shapes are not the model's; all differences in one error.
    """
    target = {
        path: jax.ShapeDtypeStruct(leaf.shape, dtype or leaf.dtype, sharding=shardings[path])
        for path, leaf in stored_leaves(folder, abstract).items()
    }
    source = Path(folder).absolute() / PARAMS_FOLDER
    return ocp.load(source, traverse_util.unflatten_dict(target, sep="/"))


def stored_leaves(
    folder: str | Path, abstract: Mapping[str, Any]
) -> dict[str, jax.ShapeDtypeStruct]:
    """Parameter path -> shape and dtype of what `folder`/params holds; raises as above."""
    source = Path(folder).absolute() / PARAMS_FOLDER
    try:
        stored = traverse_util.flatten_dict(dict(ocp.metadata(source).metadata), sep="/")
    except (ValueError, OSError) as error:
        raise UserError(f"{source}: not a complete Orbax checkpoint ({_one_line(error)})") from None
    expected = {
        path: Entry(path, path, IDENTITY, tuple(leaf.shape), tuple(leaf.shape))
        for path, leaf in traverse_util.flatten_dict(abstract, sep="/").items()
    }
    headers = [
        StoredTensor(path, path, str(source), tuple(leaf.shape), str(leaf.dtype))
        for path, leaf in stored.items()
    ]
    find_faults(expected, headers).raise_if_any(f"Orbax checkpoint {source}")
    return {path: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for path, leaf in stored.items()}


def read_tensor(folder: str | Path, path: str, leaf: jax.ShapeDtypeStruct) -> np.ndarray:
    """One parameter of `folder`/params, on the host."""
    source = Path(folder).absolute() / PARAMS_FOLDER
    tree = traverse_util.unflatten_dict({path: np.empty(leaf.shape, leaf.dtype)}, sep="/")
    options = ocp.options.PyTreeOptions
    with ocp.Context(pytree_options=options(loading=options.Loading(partial_load=True))):
        return traverse_util.flatten_dict(ocp.load(source, tree), sep="/")[path]


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
