"""A checkpoint folder (Hugging Face or Orbax) -> parameters on the devices, in their sharding.

    headers of all shards -> one report of all faults -> tensor by tensor: read, reshape, place

Nothing is read before the headers fit the model, and one host tensor is alive at a time, so a 13B
checkpoint (26.7 GB) needs little more host memory than its largest tensor. `open_params` stops
before the last step: converters take the tensors one by one from there.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from tiger_jax.errors import UserError
from tiger_jax.models import interface
from tiger_jax.models.config import LlavaNextConfig
from tiger_jax.weights import llava_next_names, orbax_io, safetensors_io
from tiger_jax.weights.llava_next_names import EMBEDDING, LLAVA_NEXT, LM_HEAD, VISION_PREFIX
from tiger_jax.weights.name_table import Entry, StoredTensor, find_faults
from tiger_jax.weights.tensor_ops import VocabularyRows

Params = dict[str, Any]
Shardings = Mapping[str, Any] | jax.sharding.Sharding | None


def load_params(
    folder: str | Path,
    config: LlavaNextConfig,
    *,
    dtype: Any = None,
    shardings: Shardings = None,
    vision_tower: str | Path | None = None,
) -> Params:
    """Reads the weights of a folder, whichever layout it has.

    Args:
        folder: Hugging Face folder (layouts A, C, D, E or the original one) or Orbax folder.
        config: the model's configuration; it decides which names and shapes must be there.
        dtype: cast every weight to it on the host; None keeps each one's stored dtype.
        shardings: a nested dict of Shardings like the parameters, or one Sharding for all; None
            puts everything on the default device.
        vision_tower: file or folder of a CLIPVisionModel, for original-format files without one.

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
    stored = _open_hf(folder, abstract, dtype, vision_tower)
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
    config: LlavaNextConfig,
    *,
    dtype: Any = None,
    vision_tower: str | Path | None = None,
) -> StoredParams:
    """As `load_params`, which see, without reading any weight."""
    abstract = interface.build_model(config).abstract_params()
    if not orbax_io.is_orbax_folder(folder):
        return _open_hf(folder, abstract, dtype, vision_tower)
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
    folder: str | Path, abstract: Mapping[str, Any], dtype: Any, vision_tower: str | Path | None
) -> StoredParams:
    plan = plan_load(folder, abstract, vision_tower=vision_tower)
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


@dataclasses.dataclass(frozen=True)
class PlanItem:
    """One tensor to read and the weight that it becomes."""

    stored: StoredTensor
    entry: Entry


def plan_load(
    folder: str | Path,
    abstract: Mapping[str, Any],
    *,
    vision_tower: str | Path | None = None,
) -> list[PlanItem]:
    """Matches a folder's headers with the model's weights, reading no data but a tied head's.

    Raises UserError with all faults: missing, unexpected, wrong shape, wrong dtype, set twice.
    """
    headers = safetensors_io.read_headers(folder)
    layout = llava_next_names.detect_layout([header.name for header in headers])
    stored = [
        _stored(header, layout.to_canonical(header.name))
        for header in headers
        if not llava_next_names.is_dropped(header.name)
    ]
    expected = LLAVA_NEXT.entries(abstract)
    if layout.name == "O":
        stored += _separate_tower(folder, stored, vision_tower)
        expected = _fit_vocabulary(expected, stored)
    elif vision_tower is not None:
        raise UserError(f"{folder}: layout {layout.name} holds its tower; drop {vision_tower}")
    stored = _without_tied_head(folder, expected, stored)
    find_faults(expected, stored).raise_if_any(f"checkpoint {folder} (layout {layout.name})")
    return [PlanItem(tensor, expected[tensor.hf]) for tensor in stored]


def _stored(header: safetensors_io.TensorHeader, hf: str) -> StoredTensor:
    return StoredTensor(hf, header.name, str(header.file), header.shape, header.dtype)


def _separate_tower(
    folder: str | Path, stored: Sequence[StoredTensor], vision_tower: str | Path | None
) -> list[StoredTensor]:
    """The tower's tensors from their own file, if the checkpoint has none.

    v1.6 files hold a fine-tuned tower: OpenAI's weights in its place would load without complaint
    and answer worse, hence the refusal (models.md 4.1).
    """
    in_file = any(tensor.hf.startswith(VISION_PREFIX) for tensor in stored)
    if in_file and vision_tower is not None:
        raise UserError(f"{folder}: holds its own fine-tuned vision tower; drop {vision_tower}")
    if in_file:
        return []
    if vision_tower is None:
        raise UserError(
            f"{folder}: original-format checkpoint without a vision tower; "
            "name a CLIPVisionModel file or folder as the vision tower"
        )
    headers = safetensors_io.read_headers(vision_tower)
    names = [llava_next_names.separate_tower_name(header.name) for header in headers]
    return [
        _stored(header, name)
        for header, name in zip(headers, names, strict=True)
        if name is not None and not llava_next_names.is_dropped(name)
    ]


def _fit_vocabulary(
    expected: Mapping[str, Entry], stored: Sequence[StoredTensor]
) -> dict[str, Entry]:
    """Lets an original file's smaller vocabulary grow to the model's rows."""
    fitted = dict(expected)
    for tensor in stored:
        entry = expected.get(tensor.hf)
        if entry is None or tensor.hf not in (EMBEDDING, LM_HEAD) or len(tensor.shape) != 2:
            continue
        rows = entry.hf_shape[0]
        if tensor.shape[0] < rows:
            op = VocabularyRows(entry.op, tensor.shape[0], rows)
            shape = op.hf_shape(entry.jax_shape)
            fitted[tensor.hf] = dataclasses.replace(entry, op=op, hf_shape=shape)
    return fitted


def _without_tied_head(
    folder: str | Path, expected: Mapping[str, Entry], stored: Sequence[StoredTensor]
) -> list[StoredTensor]:
    """Drops an lm_head that a tied model does not have, if it is indeed a copy of the embedding."""
    by_name = {tensor.hf: tensor for tensor in stored}
    if LM_HEAD in expected or not {LM_HEAD, EMBEDDING} <= by_name.keys():
        return list(stored)
    places = [(Path(by_name[hf].file), by_name[hf].name) for hf in (EMBEDDING, LM_HEAD)]
    values = [value for _, _, value in safetensors_io.iterate_tensors(places)]
    if values[0].tobytes() != values[1].tobytes():
        raise UserError(
            f"{folder}: tie_word_embeddings is true, but {by_name[LM_HEAD].name} "
            f"differs from {by_name[EMBEDDING].name}"
        )
    return [tensor for tensor in stored if tensor.hf != LM_HEAD]


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
