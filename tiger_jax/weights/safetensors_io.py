"""Sharded safetensors folders: headers first, then data one tensor at a time, both ways.

Reading looks at the headers of all shards (names, shapes, dtypes) before any data, so that faults
are found for free; data then streams shard by shard with one host tensor alive. Writing is the
same backwards: all headers follow from shapes, so every tensor goes to disk as soon as it is on
the host. bfloat16 travels as ml_dtypes' type, byte for byte, never through float32.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

from tiger_jax.errors import UserError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
DEFAULT_SHARD_BYTES = 5 * 10**9  # as transformers cuts them

_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_CODES = {name: code for code, name in _DTYPES.items()}


@dataclasses.dataclass(frozen=True)
class TensorHeader:
    """What a shard's header says of one tensor; dtype is numpy's name (else the file's code)."""

    name: str
    file: Path
    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * numpy_dtype(self.dtype).itemsize


def write_small(file: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Write a file of few tensors, whole from memory, in torch's own form.

    By bytes: safetensors' save_file makes files that only their owner can read.
    """
    file.write_bytes(safetensors.numpy.save(dict(tensors), metadata={"format": "pt"}))


def numpy_dtype(name: str) -> np.dtype:
    """'bfloat16' -> ml_dtypes' dtype, other names -> numpy's."""
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def weight_files(source: str | Path) -> list[Path]:
    """The safetensors files of a folder in order (or the one file `source` itself names).

    Raises UserError: no such folder, no weights in it, an unreadable index, a shard that the index
    names and the folder lacks, or both a single file and an index (which of the two is meant?).
    """
    source = Path(source)
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise UserError(f"{source}: expected a checkpoint folder or file, found neither")
    single, index = source / SINGLE_FILE, source / INDEX_FILE
    if single.exists() and index.exists():
        raise UserError(f"{source}: holds both {SINGLE_FILE} and {INDEX_FILE}; remove one")
    if single.exists():
        return [single]
    if index.exists():
        return _indexed_files(index)
    pickled = " (pytorch .bin files are not read: convert them first)" * any(source.glob("*.bin"))
    raise UserError(f"{source}: expected {SINGLE_FILE} or {INDEX_FILE}, found neither{pickled}")


def _indexed_files(index: Path) -> list[Path]:
    try:
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise UserError(f"{index}: expected JSON with a weight_map, got {error!r}") from None
    absent = [name for name in names if not (index.parent / name).is_file()]
    if absent:
        raise UserError(f"{index}: names shards that are not in the folder: {', '.join(absent)}")
    return [index.parent / name for name in names]


def read_headers(source: str | Path) -> list[TensorHeader]:
    """Every tensor of every shard, without reading data.

    Raises UserError as `weight_files`, and for a file that is truncated or no safetensors file.
    """
    headers = []
    for file in weight_files(source):
        with _open(file) as shard:
            for name in shard.keys():  # noqa: SIM118 (not a dict)
                view = shard.get_slice(name)
                code = view.get_dtype()
                shape = tuple(view.get_shape())
                headers.append(TensorHeader(name, file, shape, _DTYPES.get(code, code)))
    return headers


def iterate_tensors(wanted: Iterable[tuple[Path, str]]) -> Iterator[tuple[Path, str, np.ndarray]]:
    """Yields (file, name, tensor), shard after shard.

    It holds no tensor that it has yielded: a consumer that lets go keeps the host's peak at one.
    """
    by_file: dict[Path, list[str]] = {}
    for file, name in wanted:
        by_file.setdefault(file, []).append(name)
    for file, names in by_file.items():
        with _open(file) as shard:
            for name in names:
                yield file, name, shard.get_tensor(name)


def _open(file: Path) -> "safetensors.safe_open":
    try:
        return safetensors.safe_open(file, framework="numpy")
    except safetensors.SafetensorError as error:
        raise UserError(f"{file}: truncated or not a safetensors file ({error})") from None
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error})") from None


def write_folder(
    folder: Path,
    tensors: Sequence[TensorHeader],
    fetch: Callable[[str], np.ndarray],
    *,
    max_shard_bytes: int = DEFAULT_SHARD_BYTES,
) -> None:
    """Writes `model.safetensors`, or numbered shards and their index when one is not enough.

    Args:
        tensors: what to write, in order; `file` is ignored.
        fetch: name -> array of exactly that shape and dtype; called when its turn comes.

    Raises UserError when the folder cannot be written.
    """
    shards = plan_shards(tensors, max_shard_bytes)
    if len(shards) == 1:
        _write_shard(folder / SINGLE_FILE, shards[0], fetch)
        return
    weight_map = {}
    for number, shard in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        _write_shard(folder / file, shard, fetch)
        weight_map |= {tensor.name: file for tensor in shard}
    metadata = {"total_size": sum(tensor.bytes for tensor in tensors)}
    index = {"metadata": metadata, "weight_map": weight_map}
    (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n")


def plan_shards(tensors: Sequence[TensorHeader], max_shard_bytes: int) -> list[list[TensorHeader]]:
    """Fills shards in order up to the limit; a tensor larger than the limit gets its own shard."""
    shards: list[list[TensorHeader]] = [[]]
    used = 0
    for tensor in tensors:
        if shards[-1] and used + tensor.bytes > max_shard_bytes:
            shards.append([])
            used = 0
        shards[-1].append(tensor)
        used += tensor.bytes
    return shards


def _write_shard(
    file: Path, tensors: Sequence[TensorHeader], fetch: Callable[[str], np.ndarray]
) -> None:
    """The format: u64 length of the header, JSON header, then the tensors' bytes without gaps."""
    # Wide dtypes first keep each tensor aligned to its own item size, as torch's mmap reader wants.
    tensors = sorted(tensors, key=lambda tensor: -numpy_dtype(tensor.dtype).itemsize)
    # Readers older than transformers 4.50 refuse a file that does not name its framework.
    header: dict[str, dict] = {"__metadata__": {"format": "pt"}}
    start = 0
    for tensor in tensors:
        header[tensor.name] = {
            "dtype": _CODES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, start + tensor.bytes],
        }
        start += tensor.bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    try:
        with file.open("wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            for tensor in tensors:
                out.write(_raw_bytes(tensor, fetch(tensor.name)))
    except OSError as error:  # reading reports its own faults as UserError
        raise UserError(f"{file}: cannot be written ({error})") from None


def _raw_bytes(tensor: TensorHeader, value: np.ndarray) -> memoryview:
    if value.shape != tensor.shape or value.dtype != numpy_dtype(tensor.dtype):
        wanted, got = (tensor.shape, tensor.dtype), (value.shape, str(value.dtype))
        raise ValueError(f"{tensor.name}: expected {wanted}, got {got}")
    return memoryview(np.ascontiguousarray(value).reshape(-1).view(np.uint8))
