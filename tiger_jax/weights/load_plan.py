"""Which tensor of a checkpoint becomes which weight, judged by its headers alone."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tiger_jax.errors import UserError
from tiger_jax.models.config_reader import read_json
from tiger_jax.weights import safetensors_io
from tiger_jax.weights.families import Family
from tiger_jax.weights.name_table import Entry, StoredTensor, find_faults
from tiger_jax.weights.tensor_ops import VocabularyRows


@dataclasses.dataclass(frozen=True)
class PlanItem:
    """One tensor to read and the weight that it becomes."""

    stored: StoredTensor
    entry: Entry


def plan_load(
    folder: str | Path,
    family: Family,
    abstract: Mapping[str, Any],
    *,
    vision_tower: str | Path | None = None,
) -> list[PlanItem]:
    """Matches a folder's headers with the model's weights, reading no data but a tied head's.

    Args:
        abstract: nested dict of the parameters' shapes.

    Raises UserError with all faults: missing, unexpected, wrong shape, wrong dtype, set twice.
    """
    headers = safetensors_io.read_headers(folder)
    layout = family.detect_layout([header.name for header in headers])
    stored = [
        _stored(header, layout.to_canonical(header.name))
        for header in headers
        if not family.is_dropped(header.name)
    ]
    expected = family.table.entries(abstract)
    if family.is_original(layout.name):
        stored += _separate_tower(folder, family, stored, vision_tower)
        expected = _fit_vocabulary(family, expected, stored)
    elif vision_tower is not None:
        raise UserError(f"{folder}: layout {layout.name} holds its tower; drop {vision_tower}")
    stored = _without_tied_head(folder, family, expected, stored)
    where = f"checkpoint {folder} (layout {layout.name})"
    notes = _notes_on_the_head(folder, family, expected, stored)
    find_faults(expected, stored).raise_if_any(where, *notes)
    return [PlanItem(tensor, expected[tensor.hf]) for tensor in stored]


def _stored(header: safetensors_io.TensorHeader, hf: str) -> StoredTensor:
    return StoredTensor(hf, header.name, str(header.file), header.shape, header.dtype)


def _separate_tower(
    folder: str | Path,
    family: Family,
    stored: Sequence[StoredTensor],
    vision_tower: str | Path | None,
) -> list[StoredTensor]:
    """The tower's tensors from their own file, if the checkpoint has none.

    A tower in the file is fine-tuned: the public one in its place would load without complaint and
    answer worse, hence the refusal (models.md 4.1).
    """
    original = family.original
    in_file = any(tensor.hf.startswith(original.tower_prefix) for tensor in stored)
    if in_file and vision_tower is not None:
        raise UserError(f"{folder}: holds its own fine-tuned vision tower; drop {vision_tower}")
    if in_file:
        return []
    if vision_tower is None:
        raise UserError(
            f"{folder}: original-format checkpoint without a vision tower; "
            f"name a {original.tower_class} file or folder as the vision tower"
        )
    headers = safetensors_io.read_headers(vision_tower)
    names = [original.tower_name(header.name) for header in headers]
    return [
        _stored(header, name)
        for header, name in zip(headers, names, strict=True)
        if name is not None and not family.is_dropped(name)
    ]


def _fit_vocabulary(
    family: Family, expected: Mapping[str, Entry], stored: Sequence[StoredTensor]
) -> dict[str, Entry]:
    """Lets an original file's smaller vocabulary grow to the model's rows."""
    fitted = dict(expected)
    for tensor in stored:
        entry = expected.get(tensor.hf)
        grows = tensor.hf in (family.embedding, family.lm_head) and len(tensor.shape) == 2
        if entry is None or not grows:
            continue
        rows = entry.hf_shape[0]
        if tensor.shape[0] < rows:
            op = VocabularyRows(entry.op, tensor.shape[0], rows)
            shape = op.hf_shape(entry.jax_shape)
            fitted[tensor.hf] = dataclasses.replace(entry, op=op, hf_shape=shape)
    return fitted


def _without_tied_head(
    folder: str | Path,
    family: Family,
    expected: Mapping[str, Entry],
    stored: Sequence[StoredTensor],
) -> list[StoredTensor]:
    """Drops an lm_head that a tied model does not have, if it is indeed a copy of the embedding."""
    embedding, head = family.embedding, family.lm_head
    by_name = {tensor.hf: tensor for tensor in stored}
    if head in expected or not {head, embedding} <= by_name.keys():
        return list(stored)
    places = [(Path(by_name[hf].file), by_name[hf].name) for hf in (embedding, head)]
    values = [value for _, _, value in safetensors_io.iterate_tensors(places)]
    if values[0].tobytes() != values[1].tobytes():
        raise UserError(
            f"{folder}: tie_word_embeddings is true, but {by_name[head].name} "
            f"differs from {by_name[embedding].name}"
        )
    return [tensor for tensor in stored if tensor.hf != head]


def _notes_on_the_head(
    folder: str | Path,
    family: Family,
    expected: Mapping[str, Entry],
    stored: Sequence[StoredTensor],
) -> list[str]:
    """Why an absent head is missed: both flags that could have tied it.

    The embedding is no substitute: it would load without complaint and answer nonsense.
    """
    head, path = family.lm_head, Path(folder) / "config.json"
    absent = head in expected and all(tensor.hf != head for tensor in stored)
    if not absent or not path.is_file():
        return []
    raw = read_json(path)
    top, nested = (
        json.dumps(values["tie_word_embeddings"]) if "tie_word_embeddings" in values else "absent"
        for values in (raw, raw.get("text_config") or {})
    )
    return [
        f"{head} is no copy of the embedding, because tie_word_embeddings is {top} at the top of "
        f"config.json and {nested} in its text_config"
    ]
