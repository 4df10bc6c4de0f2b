"""Parameters -> a folder that `transformers` (or the original LLaVA code) opens unchanged."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flax import traverse_util

from tiger_jax.errors import UserError
from tiger_jax.models.config import read_json
from tiger_jax.weights import original_config, router_io, safetensors_io
from tiger_jax.weights.llava_next_names import EMBEDDING, LAYOUTS, LLAVA_NEXT, LM_HEAD
from tiger_jax.weights.name_table import Entry, natural_order
from tiger_jax.weights.safetensors_io import TensorHeader
from tiger_jax.weights.tensor_ops import VocabularyRows

_WEIGHT_SUFFIXES = (".safetensors", ".index.json", ".bin", ".pt", ".pth", ".gguf")
_OWN_PREFIX = "tiger_"  # a router belongs to one set of weights: copy_router says that it is these


def save_hf_folder(
    params: Mapping[str, Any],
    config_source_folder: str | Path,
    out_folder: str | Path,
    *,
    layout: str = "A",
    max_shard_bytes: int = safetensors_io.DEFAULT_SHARD_BYTES,
) -> None:
    """Writes weights, config, tokenizer and processor files, from a process that holds all of it.

    Args:
        params: nested dict; every weight keeps its dtype. One comes to the host at a time.
        config_source_folder: where config.json and its companions are copied from, byte for byte.
            Only a change between the original format and the others rewrites config.json.
        out_folder: made if absent; must hold no weights yet.
        layout: "A" (llava-hf), "C", "D", "E", or "O" / "original" (liuhaotian).

    Raises:
        UserError: unknown layout, weights in `out_folder` already, an unreadable config.json, or
            an `out_folder` that cannot be written.
    """
    flat = traverse_util.flatten_dict(params, sep="/")
    write_hf_folder(
        flat, lambda path: np.asarray(flat[path]), config_source_folder, out_folder, layout=layout,
        max_shard_bytes=max_shard_bytes,
    )  # fmt: skip


def write_hf_folder(
    leaves: Mapping[str, Any],
    read: Callable[[str], np.ndarray],
    config_source_folder: str | Path,
    out_folder: str | Path,
    *,
    layout: str = "A",
    max_shard_bytes: int = safetensors_io.DEFAULT_SHARD_BYTES,
) -> None:
    """`save_hf_folder` of weights that are fetched when their turn comes.

    Args:
        leaves: parameter path -> anything with the weight's shape and dtype.
        read: parameter path -> exactly that weight; one is alive at a time.
    """
    layout = {"original": "O"}.get(layout, layout)
    if layout not in LAYOUTS:
        raise UserError(f"layout: expected one of {', '.join(LAYOUTS)} or original, got {layout!r}")
    out = Path(out_folder)
    if any(out.glob("*.safetensors")):
        raise UserError(f"{out}: holds weights already; choose another folder")
    config = write_companions(config_source_folder, out, original=layout == "O")
    entries = _entries(traverse_util.unflatten_dict(dict(leaves), sep="/"), config)
    names = {LAYOUTS[layout].from_canonical(hf): entry for hf, entry in entries.items()}
    headers = [
        TensorHeader(name, out, entry.hf_shape, str(leaves[entry.path].dtype))
        for name, entry in sorted(names.items(), key=lambda item: natural_order(item[0]))
    ]

    def fetch(name: str) -> np.ndarray:
        return names[name].op.to_hf(read(names[name].path))

    safetensors_io.write_folder(out, headers, fetch, max_shard_bytes=max_shard_bytes)


def write_companions(source: str | Path, out: Path, *, original: bool = False) -> dict[str, Any]:
    """Copies every file of a checkpoint folder that is no weights: config, tokenizer, processor.

    config.json alone is translated, if its format (original or Hugging Face) is not the wanted one.
    Returns what config.json now says. Raises UserError for an unreadable one, or out = source.
    """
    source = Path(source)
    if source.resolve() == out.resolve():
        raise UserError(f"{out}: expected a folder other than the source")
    raw = read_json(source / "config.json")
    out.mkdir(parents=True, exist_ok=True)
    for file in sorted(source.iterdir()):
        skipped = file.name.endswith(_WEIGHT_SUFFIXES) or file.name.startswith((".", _OWN_PREFIX))
        if file.is_file() and not skipped:
            shutil.copyfile(file, out / file.name)
    if original_config.is_original(raw) == original:
        return raw
    if original:
        raw = original_config.hf_to_original(raw)
    else:
        raw = original_config.original_to_hf(raw, source / "config.json")
    (out / "config.json").write_text(json.dumps(raw, indent=2) + "\n")
    return raw


def copy_router(source: str | Path, out: str | Path) -> None:
    """Copies a drafter's router, if `source` has one, beside the same weights in `out`.

    Raises:
        UserError: a faulty router.
    """
    if router_io.read_router(source) is None:
        return
    for name in (router_io.CONFIG_FILE, router_io.WEIGHTS_FILE):
        shutil.copyfile(Path(source) / name, Path(out) / name)


def _entries(params: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Entry]:
    """The table's entries, the vocabulary cut to the rows that an original config names."""
    entries = LLAVA_NEXT.entries(params)
    rows = config.get("vocab_size") if original_config.is_original(dict(config)) else None
    for hf in {EMBEDDING, LM_HEAD} & entries.keys():
        entry = entries[hf]
        if rows is not None and rows < entry.hf_shape[0]:
            op = VocabularyRows(entry.op, rows, entry.hf_shape[0])
            shape = op.hf_shape(entry.jax_shape)
            entries[hf] = Entry(entry.hf, entry.path, op, shape, entry.jax_shape)
    return entries
