"""One reversible table between checkpoint names and parameter paths, and one report of all faults.

A row is Rule(hf="encoder.layers.{i}.fc1.weight", path="layers_{i}/mlp/fc1/kernel", op=Transpose()).
`{i}` is a field (a layer's number), so that formatting works both ways and parsing is derived.
The parameter tree of the model (shapes only) decides which layers exist: the table knows no config.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flax import traverse_util

from tiger_jax.errors import UserError
from tiger_jax.weights.tensor_ops import IDENTITY, Shape, TensorOp

MAX_LISTED = 8  # names of one kind of fault that the report spells out
_NUMBER = re.compile(r"(?<=[._])\d+(?=[./])")  # "layers.12." and "layers_12/"
_FLOATS = ("float32", "float16", "bfloat16")


@dataclasses.dataclass(frozen=True)
class Rule:
    """One weight, or one weight of every layer: its name in the file, its path, its reshape."""

    hf: str
    path: str
    op: TensorOp = IDENTITY


@dataclasses.dataclass(frozen=True)
class Layout:
    """A spelling of the same names: (its prefix, the table's prefix) pairs, the first match counts.

    A name that no pair matches stays as it is, so a stray name of the table's own layout lands on
    its weight too and is reported as set twice, or it is reported as unexpected.
    """

    name: str
    prefixes: tuple[tuple[str, str], ...]

    def to_canonical(self, name: str) -> str:
        for own, canonical in self.prefixes:
            if name.startswith(own):
                return canonical + name.removeprefix(own)
        return name

    def from_canonical(self, name: str) -> str:
        for own, canonical in self.prefixes:
            if name.startswith(canonical):
                return own + name.removeprefix(canonical)
        return name


@dataclasses.dataclass(frozen=True)
class Entry:
    """One concrete weight that the model has: what the file must hold for it."""

    hf: str
    path: str
    op: TensorOp
    hf_shape: Shape
    jax_shape: Shape


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """One tensor as the header of its file describes it; `hf` is the table's name for it."""

    hf: str
    name: str
    file: str
    shape: Shape
    dtype: str


class NameTable:
    """Rules in both directions. Raises ValueError when two rules claim one name or one path."""

    def __init__(self, rules: Sequence[Rule]):
        self.rules = tuple(rules)
        self._by_hf = {rule.hf: rule for rule in rules}
        self._by_path = {rule.path: rule for rule in rules}
        if not len(self._by_hf) == len(self._by_path) == len(rules):
            raise ValueError("name table: two rules share a name or a path")

    def to_hf(self, path: str) -> str:
        """'a/layers_3/kernel' -> 'a.layers.3.weight'; KeyError for a path without a rule."""
        rule, number = _lookup(self._by_path, path)
        return rule.hf.replace("{i}", number)

    def to_path(self, hf: str) -> str:
        """The inverse of to_hf; KeyError for a name without a rule."""
        rule, number = _lookup(self._by_hf, hf)
        return rule.path.replace("{i}", number)

    def entries(self, abstract_params: Mapping[str, Any]) -> dict[str, Entry]:
        """HF name -> Entry for each leaf (anything with .shape) of a nested parameter dict."""
        flat = traverse_util.flatten_dict(abstract_params, sep="/")
        found = {}
        for path in sorted(flat, key=natural_order):
            rule, number = _lookup(self._by_path, path)
            shape = tuple(flat[path].shape)
            name = rule.hf.replace("{i}", number)
            found[name] = Entry(name, path, rule.op, rule.op.hf_shape(shape), shape)
        return found


def _lookup(rules: Mapping[str, Rule], name: str) -> tuple[Rule, str]:
    """The rule and the layer's number ("" without one); a literal name wins over a pattern."""
    if name in rules:
        return rules[name], ""
    match = _NUMBER.search(name)
    pattern = _NUMBER.sub("{i}", name, count=1)
    if match is None or pattern not in rules:
        raise KeyError(f"no rule of the name table covers {name!r}")
    return rules[pattern], match.group()


def natural_order(name: str) -> tuple[Any, ...]:
    """Sort key with numbers as numbers: layer 2 before layer 10, which text order turns round."""
    parts = re.split(r"(\d+)", name)
    return tuple(int(part) if part.isdigit() else part for part in parts)


@dataclasses.dataclass
class Faults:
    """Everything that is wrong with a checkpoint, reported in one error."""

    missing: list[str] = dataclasses.field(default_factory=list)
    unexpected: list[str] = dataclasses.field(default_factory=list)
    wrong_shape: list[str] = dataclasses.field(default_factory=list)
    wrong_dtype: list[str] = dataclasses.field(default_factory=list)
    set_twice: list[str] = dataclasses.field(default_factory=list)

    def raise_if_any(self, where: str, *notes: str) -> None:
        """Raises UserError, one line: each kind with its count and its first MAX_LISTED names.

        `notes` explain faults that there are; they stand at the end.
        """
        kinds = [
            (field.name.replace("_", " "), getattr(self, field.name))
            for field in dataclasses.fields(self)
        ]
        parts = [f"{len(names)} {kind}: {_listed(names)}" for kind, names in kinds if names]
        if parts:
            raise UserError(f"{where} does not fit the model; " + "; ".join([*parts, *notes]))


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - MAX_LISTED
    return ", ".join(names[:MAX_LISTED]) + (f" and {rest} more" if rest > 0 else "")


def find_faults(expected: Mapping[str, Entry], stored: Iterable[StoredTensor]) -> Faults:
    """Compares the headers of a checkpoint with what the model needs; reads no data."""
    faults, seen = Faults(), dict[str, StoredTensor]()
    for tensor in stored:
        if tensor.hf in seen:
            first = seen[tensor.hf]
            places = f"{first.name} in {first.file} and {tensor.name} in {tensor.file}"
            faults.set_twice.append(f"{tensor.hf} ({places})")
            continue
        seen[tensor.hf] = tensor
        entry = expected.get(tensor.hf)
        if entry is None:
            faults.unexpected.append(f"{tensor.name} {list(tensor.shape)}")
            continue
        if tensor.shape != entry.hf_shape:
            wanted, got = list(entry.hf_shape), list(tensor.shape)
            faults.wrong_shape.append(f"{tensor.name} expected {wanted}, got {got}")
        if tensor.dtype not in _FLOATS:
            faults.wrong_dtype.append(
                f"{tensor.name} expected one of {'/'.join(_FLOATS)}, got {tensor.dtype}"
            )
    faults.missing = [
        f"{name} {list(entry.hf_shape)}" for name, entry in expected.items() if name not in seen
    ]
    return faults
