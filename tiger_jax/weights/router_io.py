"""A drafter's router on disk: two files beside the checkpoint's own.

    tiger_config.json         {"format_version": 1, "selector": "tiger", "routed_tokens": 8, ...}
    tiger_router.safetensors  query.weight, key.weight [out, in] as torch has them; saliency [D];
                              look_0.query.weight, .key, .value, .out for each of the looks

Kernels in memory are [in, out]; the router is kept in float32 whatever the model computes in.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from tiger_jax.errors import UserError
from tiger_jax.models.config_reader import read_json
from tiger_jax.routing.router import RouterConfig
from tiger_jax.weights import safetensors_io

CONFIG_FILE = "tiger_config.json"
WEIGHTS_FILE = "tiger_router.safetensors"
FORMAT_VERSION = 1


def read_router(
    folder: str | Path, width: int | None = None
) -> tuple[RouterConfig, dict[str, Any]] | None:
    """The router of a drafter's folder; None if it has none.

    Args:
        width: the drafter's hidden size; without it the router may have any.

    Raises:
        UserError: one of the two files alone, another format version, unknown or wrong fields,
            missing or unexpected tensors, wrong shapes.
    """
    config_file, weights_file = Path(folder) / CONFIG_FILE, Path(folder) / WEIGHTS_FILE
    if not config_file.exists() and not weights_file.exists():
        return None
    for file, other in ((config_file, WEIGHTS_FILE), (weights_file, CONFIG_FILE)):
        if not file.is_file():
            raise UserError(f"{file}: expected it beside {other}, found none there")
    config = _read_config(config_file)
    return config, _read_weights(weights_file, config, width)


def write_router(folder: str | Path, config: RouterConfig, params: Mapping[str, Any]) -> None:
    """Write both files into a folder that exists.

    Args:
        params: the router's parameters as `routing.router.init_router` makes them.
    """
    fields = {"format_version": FORMAT_VERSION, **dataclasses.asdict(config)}
    (Path(folder) / CONFIG_FILE).write_text(json.dumps(fields, indent=2) + "\n")

    tensors = {
        name: np.ascontiguousarray(np.asarray(value, np.float32).T)
        for path, value in traverse_util.flatten_dict(dict(params), sep=".").items()
        for name in [path.replace("kernel", "weight")]
    }
    safetensors_io.write_small(Path(folder) / WEIGHTS_FILE, tensors)


def _read_config(file: Path) -> RouterConfig:
    raw = read_json(file)
    version = raw.pop("format_version", None)
    if version != FORMAT_VERSION:
        raise UserError(f"{file}: expected format_version {FORMAT_VERSION}, got {version!r}")
    fields = {field.name: type(field.default) for field in dataclasses.fields(RouterConfig)}
    if unknown := sorted(raw.keys() - fields.keys()):
        known = ", ".join(fields)
        raise UserError(f"{file}: expected only the fields {known}, got {', '.join(unknown)}")
    for name, value in raw.items():
        if type(value) is not fields[name]:
            kind = "a whole number" if fields[name] is int else "a text"
            raise UserError(f"{file}: {name}: expected {kind}, got {value!r}")
    try:
        return RouterConfig(**raw)
    except UserError as error:
        raise UserError(f"{file}: {error}") from None


def _tensor_names(looks: int) -> list[str]:
    parts = ("query", "key", "value", "out")
    names = [f"look_{look}.{part}.weight" for look in range(looks) for part in parts]
    return ["query.weight", "key.weight", "saliency", *names]


def _read_weights(file: Path, config: RouterConfig, width: int | None) -> dict[str, Any]:
    expected = _tensor_names(config.looks)
    headers = {header.name: header for header in safetensors_io.read_headers(file)}
    for what, names in (
        ("missing", sorted(set(expected) - headers.keys())),
        ("unexpected", sorted(headers.keys() - set(expected))),
    ):
        if names:
            raise UserError(
                f"{file}: expected the tensors {', '.join(expected)}, {what}: {', '.join(names)}"
            )
    if width is None:
        width = (headers["key.weight"].shape or (0,))[-1]
    inner = config.width or width
    for name, header in headers.items():
        wanted = (width, inner) if ".out." in name else (inner, width)
        wanted = (inner,) if name == "saliency" else wanted
        if header.shape != wanted:
            raise UserError(f"{file}: {name}: expected shape {wanted}, got {header.shape}")
        if not header.dtype.startswith(("float", "bfloat")):
            raise UserError(f"{file}: {name}: expected floating point, got {header.dtype}")
    flat = {
        name.replace("weight", "kernel"): jnp.asarray(np.asarray(value, np.float32).T)
        for _, name, value in safetensors_io.iterate_tensors([(file, name) for name in expected])
    }
    return traverse_util.unflatten_dict(flat, sep=".")
