"""Weights as an Orbax checkpoint: a faster way back in, straight into the target sharding.

The folder holds the Hugging Face config, tokenizer and processor files (export.write_companions)
and the parameters under `params/`. Orbax is imported here and in training/checkpoint.py, nowhere
else.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from flax import traverse_util
from orbax.checkpoint import v1 as ocp

from tiger_jax.errors import UserError
from tiger_jax.weights.name_table import Entry, StoredTensor, find_faults
from tiger_jax.weights.tensor_ops import IDENTITY

PARAMS_FOLDER = "params"


def is_orbax_folder(folder: str | Path) -> bool:
    """True if `folder` holds parameters in the Orbax form."""
    return (Path(folder) / PARAMS_FOLDER).is_dir()


def save_params(params: Mapping[str, Any], folder: str | Path) -> None:
    """Writes `folder`/params; each dtype is kept. Raises UserError if it exists already."""
    target = Path(folder).absolute() / PARAMS_FOLDER
    if target.exists():
        raise UserError(f"{target}: exists already; choose another folder")
    ocp.save(target, params)


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
    source = Path(folder).absolute() / PARAMS_FOLDER
    try:
        stored = traverse_util.flatten_dict(dict(ocp.metadata(source).metadata), sep="/")
    except (ValueError, OSError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{source}: not a complete Orbax checkpoint ({reason})") from None
    expected = {
        path: Entry(path, path, IDENTITY, tuple(leaf.shape), tuple(leaf.shape))
        for path, leaf in traverse_util.flatten_dict(abstract, sep="/").items()
    }
    headers = [
        StoredTensor(path, path, str(source), tuple(leaf.shape), str(leaf.dtype))
        for path, leaf in stored.items()
    ]
    find_faults(expected, headers).raise_if_any(f"Orbax checkpoint {source}")
    target = {
        path: jax.ShapeDtypeStruct(leaf.shape, dtype or leaf.dtype, sharding=shardings[path])
        for path, leaf in stored.items()
    }
    return ocp.load(source, traverse_util.unflatten_dict(target, sep="/"))
