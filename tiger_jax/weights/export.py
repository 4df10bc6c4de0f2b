"""Parameters -> a folder that `transformers` (or the original code) opens unchanged."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flax import traverse_util

from tiger_jax.errors import UserError
from tiger_jax.models.config_reader import read_json
from tiger_jax.weights import original_config, router_io, safetensors_io
from tiger_jax.weights.families import Family, family_of
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
            config.json alone may be rewritten: `write_companions`.
        out_folder: made if absent; must hold no weights yet.
        layout: "A" is the hub's spelling of the names; weights.*_names say which others a family
            has. "original" (or "O") is the layout from before the Hugging Face port.

    Raises:
        UserError: a layout that the family does not have, weights in `out_folder` already, an
            unreadable config.json, or an `out_folder` that cannot be written.
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
    family = family_of(original_config.read_config(config_source_folder))
    layout = _layout_name(family, layout)
    out = Path(out_folder)
    if any(out.glob("*.safetensors")):
        raise UserError(f"{out}: holds weights already; choose another folder")
    raw = write_companions(config_source_folder, out, original=family.is_original(layout))
    entries = _entries(family, traverse_util.unflatten_dict(dict(leaves), sep="/"), raw)
    names = {family.layouts[layout].from_canonical(hf): entry for hf, entry in entries.items()}
    headers = [
        TensorHeader(name, out, entry.hf_shape, str(leaves[entry.path].dtype))
        for name, entry in sorted(names.items(), key=lambda item: natural_order(item[0]))
    ]

    def fetch(name: str) -> np.ndarray:
        return names[name].op.to_hf(read(names[name].path))

    safetensors_io.write_folder(out, headers, fetch, max_shard_bytes=max_shard_bytes)


def _layout_name(family: Family, layout: str) -> str:
    original = family.original
    if original is not None and layout == "original":
        return original.layout
    if layout not in family.layouts:
        names = ", ".join(family.layouts) + (" or original" if original is not None else "")
        raise UserError(f"layout: expected one of {names}, got {layout!r}")
    return layout


def write_companions(source: str | Path, out: Path, *, original: bool = False) -> dict[str, Any]:
    """Copies every file of a checkpoint folder that is no weights: config, tokenizer, processor.

    config.json alone is rewritten, where its format (original or Hugging Face) is not the wanted
    one, or where only text_config ties the embeddings, which transformers ignores: it would make up
    a head. Returns what config.json says in `out`. Raises UserError for an unreadable one, or
    out = source.
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
    if original_config.is_original(raw) != original:
        raw = (
            original_config.hf_to_original(raw)
            if original
            else original_config.original_to_hf(raw, source / "config.json")
        )
    elif _tied_below_only(raw):
        raw = raw | {"tie_word_embeddings": True}
    else:
        return raw
    (out / "config.json").write_text(json.dumps(raw, indent=2) + "\n")
    return raw


def _tied_below_only(raw: Mapping[str, Any]) -> bool:
    text = raw.get("text_config") or {}
    return raw.get("tie_word_embeddings") is None and bool(text.get("tie_word_embeddings"))


def copy_router(source: str | Path, out: str | Path) -> None:
    """Copies a drafter's router, if `source` has one, beside the same weights in `out`.

    Raises:
        UserError: a faulty router.
    """
    if router_io.read_router(source) is None:
        return
    for name in (router_io.CONFIG_FILE, router_io.WEIGHTS_FILE):
        shutil.copyfile(Path(source) / name, Path(out) / name)


def _entries(family: Family, params: Mapping[str, Any], raw: Mapping[str, Any]) -> dict[str, Entry]:
    """The table's entries, the vocabulary cut to the rows that an original config names."""
    entries = family.table.entries(params)
    rows = raw.get("vocab_size") if original_config.is_original(dict(raw)) else None
    for hf in {family.embedding, family.lm_head} & entries.keys():
        entry = entries[hf]
        if rows is not None and rows < entry.hf_shape[0]:
            op = VocabularyRows(entry.op, rows, entry.hf_shape[0])
            shape = op.hf_shape(entry.jax_shape)
            entries[hf] = Entry(entry.hf, entry.path, op, shape, entry.jax_shape)
    return entries
