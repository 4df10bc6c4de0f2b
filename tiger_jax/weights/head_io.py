"""A draft head on disk: two files in a folder of their own or beside a checkpoint's.

D: verifier width, W: head width, H: query heads, d: head dim, Vd: draft vocabulary, U: queries of
the resampler.

    head_config.json   {"format_version": 1, "method": "tiger_head", "head": {HeadConfig},
                        "router": {RouterConfig} | null, "route_query": "input",
                        "route_every": "round"}
    head.safetensors   fc.weight [W, D + W], attention.query.weight [H d, W], ... as torch has them,
                       [out, in]; norms [W]; resampler.queries [U, H, d]; blocks.0.weight, ...;
                       router.query.weight, ...; draft_ids [Vd], int32

Kernels in memory are [in, out]. What a head shares with its verifier (embeddings, final norm,
lm_head of eagle2 and medusa) is not in these files. Heads as others publish them:
weights/published_heads.py.
"""

import dataclasses
import json
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from jaxtyping import Int

from tiger_jax.errors import UserError
from tiger_jax.models.config_reader import read_json
from tiger_jax.models.head import DraftHead, HeadConfig
from tiger_jax.routing.head_router import check_routing, init_head_router
from tiger_jax.routing.router import RouterConfig
from tiger_jax.weights import safetensors_io
from tiger_jax.weights.name_table import Entry, NameTable, Rule, StoredTensor, find_faults
from tiger_jax.weights.tensor_ops import Transpose

CONFIG_FILE = "head_config.json"
WEIGHTS_FILE = "head.safetensors"
FORMAT_VERSION = 1
DRAFT_IDS = "draft_ids"
DTYPES = ("bfloat16", "float16", "float32")

Params = dict[str, Any]

_KINDS = {
    str: "a text", int: "a whole number", float: "a number", dict: "an object",
    tuple[int, ...]: "a list of whole numbers",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class HeadFolder:
    """A head with all that decoding has to know of it.

    Raises:
        UserError: a router without routed visual input or the reverse, draft ids that do not fit
            the draft vocabulary, an unknown route_query or route_every.
    """

    method: str
    """tiger_head | eagle2 | eagle3 | vispec | medusa: what the head is called in reports."""
    config: HeadConfig
    params: Params
    """The head's parameters, its router under "router"."""
    draft_ids: Int[np.ndarray, "Vd"] | None = None
    """The verifier's id of each draft token; None where drafts have the whole vocabulary."""
    router: RouterConfig | None = None
    route_query: str = "input"
    route_every: str = "round"

    def __post_init__(self) -> None:
        check_routing(self.config, self.router, self.route_query, self.route_every)
        _check_draft_ids(self.draft_ids, self.config)


def _check_draft_ids(ids: np.ndarray | None, config: HeadConfig) -> None:
    size = 0 if ids is None else len(ids)
    if size != config.draft_vocab:
        raise UserError(f"draft_ids: expected {config.draft_vocab} (draft_vocab), got {size}")
    if not size:
        return
    if ids.min() < 0 or ids.max() >= config.vocab_size:
        bounds = f"{ids.min()}..{ids.max()}"
        raise UserError(f"draft_ids: expected ids 0..{config.vocab_size - 1}, got {bounds}")
    if (distinct := len(np.unique(ids))) != size:
        raise UserError(f"draft_ids: expected {size} distinct ids, got {distinct}")


def _rules() -> list[Rule]:
    """File name <-> path in the parameter tree."""
    norms = ("embedding_norm", "feature_norm", "final_norm", "post_attention_norm")
    kernels = [
        "fuse", "fc", "lift", "lm_head", "glance", "router.query", "router.key",
        *(f"attention.{part}" for part in ("query", "key", "value", "out")),
        *(f"mlp.{part}" for part in ("gate", "up", "down")),
        *(f"resampler.{part}" for part in ("key", "value", "out")),
        *(f"router.look_{{i}}.{part}" for part in ("query", "key", "value", "out")),
    ]  # fmt: skip
    return [
        *(Rule(f"{name}.weight", f"{name.replace('.', '/')}/kernel", Transpose())
          for name in kernels),
        *(Rule(f"{name}.weight", f"{name}/scale") for name in norms),
        *(Rule(f"{name}.bias", f"{name}/bias") for name in ("fc", "glance")),
        Rule("blocks.{i}.weight", "blocks_{i}/kernel", Transpose()),
        Rule("blocks.{i}.bias", "blocks_{i}/bias"),
        Rule("resampler.queries", "resampler/queries"),
        Rule("router.saliency", "router/saliency"),
    ]  # fmt: skip


HEAD_NAMES = NameTable(_rules())


def is_head(folder: str | Path) -> bool:
    """Whether a folder holds a head of ours."""
    return (Path(folder) / CONFIG_FILE).is_file()


def write_head(folder: str | Path, head: HeadFolder, dtype: str = "bfloat16") -> None:
    """Write both files; the folder is made if it is not there.

    Args:
        dtype: bfloat16 | float16 | float32, of all weights.

    Raises:
        UserError: another dtype, or parameters that do not fit the configuration (all faults).
    """
    if dtype not in DTYPES:
        raise UserError(f"dtype: expected one of {', '.join(DTYPES)}, got {dtype!r}")
    flat = traverse_util.flatten_dict(head.params, sep="/")
    entries = _entries(head.config, head.router, head.route_query)
    by_path = {entry.path: entry for entry in entries.values()}
    _check_params(flat, by_path)
    tensors = {}
    for path, value in flat.items():
        array = by_path[path].op.to_hf(np.asarray(value)).astype(safetensors_io.numpy_dtype(dtype))
        tensors[by_path[path].hf] = np.ascontiguousarray(array)
    if head.draft_ids is not None:
        tensors[DRAFT_IDS] = np.ascontiguousarray(head.draft_ids, np.int32)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    safetensors_io.write_small(folder / WEIGHTS_FILE, tensors)
    (folder / CONFIG_FILE).write_text(json.dumps(_fields(head), indent=2) + "\n", encoding="utf-8")


def _fields(head: HeadFolder) -> dict[str, Any]:
    return {
        "format_version": FORMAT_VERSION,
        "method": head.method,
        "head": dataclasses.asdict(head.config),
        "router": None if head.router is None else dataclasses.asdict(head.router),
        "route_query": head.route_query,
        "route_every": head.route_every,
    }


def _check_params(flat: Mapping[str, Any], by_path: Mapping[str, Entry]) -> None:
    """The same report as for a file, of a tree that is about to become one."""
    stored = []
    for path, value in flat.items():
        entry, shape = by_path.get(path), tuple(value.shape)
        hf, shape = (entry.hf, entry.op.hf_shape(shape)) if entry else (path, shape)
        stored.append(StoredTensor(hf, path, "params", shape, str(value.dtype)))
    find_faults({entry.hf: entry for entry in by_path.values()}, stored).raise_if_any("params")


def _entries(config: HeadConfig, router: RouterConfig | None, route_query: str) -> dict[str, Entry]:
    """What head.safetensors must hold, draft_ids aside."""
    abstract = dict(DraftHead(config).abstract_params())
    if router is not None:
        abstract["router"] = jax.eval_shape(
            lambda: init_head_router(jax.random.key(0), config, router, route_query)
        )
    return HEAD_NAMES.entries(abstract)


def read_head(folder: str | Path) -> HeadFolder | None:
    """The head of a folder, its weights in the stored dtypes; None without a head_config.json.

    Raises:
        UserError: no head.safetensors beside it, another format version, missing, unknown or wrong
            fields, or tensors that do not fit them (all faults in one line).
    """
    config_file, weights_file = Path(folder) / CONFIG_FILE, Path(folder) / WEIGHTS_FILE
    if not is_head(folder):
        return None
    if not weights_file.is_file():
        raise UserError(f"{weights_file}: expected it beside {CONFIG_FILE}, found none there")
    raw = _read_top(config_file)
    config = _read_fields(HeadConfig, raw["head"], f"{config_file}: head")
    router = raw["router"]
    if router is not None:
        router = _read_fields(RouterConfig, router, f"{config_file}: router")
    headers = safetensors_io.read_headers(weights_file)
    params = read_tensors(
        [stored_tensor(header) for header in headers if header.name != DRAFT_IDS],
        _entries(config, router, raw["route_query"]), weights_file,
    )  # fmt: skip
    draft_ids = read_integers(headers, DRAFT_IDS)
    rest = {name: raw[name] for name in ("method", "route_query", "route_every")}
    try:
        return HeadFolder(config=config, params=params, draft_ids=draft_ids, router=router, **rest)
    except UserError as error:
        raise UserError(f"{folder}: {error}") from None


def stored_tensor(header: safetensors_io.TensorHeader, hf: str = "") -> StoredTensor:
    """A header as the name table sees it; `hf` is the table's name, by default the file's."""
    name, file = header.name, str(header.file)
    return StoredTensor(hf or name, name, file, header.shape, header.dtype)


def read_tensors(
    stored: Sequence[StoredTensor], expected: Mapping[str, Entry], where: str | Path
) -> Params:
    """Tensors that fit `expected` as a parameter tree; UserError with all that do not."""
    find_faults(expected, stored).raise_if_any(str(where))
    entries = {(Path(tensor.file), tensor.name): expected[tensor.hf] for tensor in stored}
    flat = {
        entries[file, name].path: jnp.asarray(entries[file, name].op.to_jax(value))
        for file, name, value in safetensors_io.iterate_tensors(entries)
    }
    return traverse_util.unflatten_dict(flat, sep="/")


def read_integers(
    headers: Sequence[safetensors_io.TensorHeader], name: str
) -> Int[np.ndarray, "N"] | None:
    """A stored vector of integers or booleans, int32; None where there is none of that name."""
    for header in headers:
        if header.name != name:
            continue
        if len(header.shape) != 1 or header.dtype not in ("I32", "I64", "BOOL"):
            shape = f"{header.dtype} {list(header.shape)}"
            raise UserError(f"{header.file}: {name}: expected a vector of integers, got {shape}")
        ((_, _, value),) = safetensors_io.iterate_tensors([(header.file, name)])
        return value.astype(np.int32)
    return None


def _read_top(file: Path) -> dict[str, Any]:
    raw = read_json(file)
    version = raw.pop("format_version", None)
    if version != FORMAT_VERSION:
        raise UserError(f"{file}: expected format_version {FORMAT_VERSION}, got {version!r}")
    kinds = {
        "method": str, "head": dict, "router": dict, "route_query": str, "route_every": str,
    }  # fmt: skip
    if raw.keys() != kinds.keys():
        fields, got = ", ".join(kinds), ", ".join(raw) or "none"
        raise UserError(f"{file}: expected the fields {fields}, got {got}")
    for name, value in raw.items():
        if not (name == "router" and value is None):
            _read_value(kinds[name], value, f"{file}: {name}")
    return raw


def _read_fields(cls: type, raw: Mapping[str, Any], where: str) -> Any:
    """A configuration from JSON; UserError for fields that it lacks or does not know."""
    kinds = typing.get_type_hints(cls)
    if unknown := sorted(raw.keys() - kinds.keys()):
        known = ", ".join(kinds)
        raise UserError(f"{where}: expected only the fields {known}, got {', '.join(unknown)}")
    needed = [f.name for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING]
    if absent := [name for name in needed if name not in raw]:
        raise UserError(f"{where}: expected the fields {', '.join(absent)}, got none of them")
    values = {name: _read_value(kinds[name], raw[name], f"{where}: {name}") for name in raw}
    try:
        return cls(**values)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _read_value(kind: Any, value: Any, where: str) -> Any:
    """The value as `kind`; exact types, since True is an int and "8" no number."""
    if kind is float and type(value) is int:
        return float(value)
    if kind == tuple[int, ...]:
        if type(value) is list and all(type(item) is int for item in value):
            return tuple(value)
    elif type(value) is kind:
        return value
    raise UserError(f"{where}: expected {_KINDS[kind]}, got {value!r}")
