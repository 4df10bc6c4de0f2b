"""One scored question as plain values, and the counts and means that every report shows."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from tiger_jax.errors import UserError

Scores = dict[str, Any]
"""Flat: name -> number, or None beside `<name>_reason`, a line that says why."""


class Item(NamedTuple):
    """A question with what the model answered and what is right."""

    uid: str
    prediction: str | None
    """The model's text; None: there is none, which is wrong and counted."""
    answers: tuple[str, ...] = ()
    """All golds; () where they are hidden."""
    ground_truth: str | None = None
    """The one gold: the letter of a choice, a label, a count as text; None where it is hidden."""
    choices: tuple[str, ...] | None = None
    """Texts without letters."""
    meta: Mapping[str, Any] = {}
    """The data set's own fields, by the keys of its reader."""
    n_images: int | None = None
    """Pictures of the question; None: not told."""


def gold(item: Item) -> str:
    """The one gold. Raises UserError where it is hidden."""
    if item.ground_truth is None:
        raise UserError(
            f"{item.uid}: expected a ground truth, got none; hidden golds have no score"
        )
    return item.ground_truth


def golds(item: Item) -> tuple[str, ...]:
    """All golds. Raises UserError where they are hidden."""
    if not item.answers:
        raise UserError(f"{item.uid}: expected answers, got none (hidden golds?)")
    return item.answers


def field(item: Item, name: str) -> Any:
    """A field of `meta`. Raises UserError where it is missing."""
    if name not in item.meta:
        raise UserError(f"{item.uid}: expected the field {name} in meta, got {sorted(item.meta)}")
    return item.meta[name]


def mean(values: Sequence[float]) -> float | None:
    """The mean; None of nothing."""
    return sum(values) / len(values) if values else None


def counts(items: Sequence[Item]) -> Scores:
    """n, and how many of them have no prediction."""
    return {"n": len(items), "missing": sum(item.prediction is None for item in items)}


def parse_counts(items: Sequence[Item], parsed: Sequence[Any]) -> Scores:
    """`counts`, and how many predictions hold no answer: a number, and its share of predictions."""
    found = counts(items)
    answered = found["n"] - found["missing"]
    unparsed = sum(
        item.prediction is not None and answer is None
        for item, answer in zip(items, parsed, strict=True)
    )
    rate = unparsed / answered if answered else 0.0
    return found | {"unparsed": unparsed, "unparsed_rate": rate}


def by_value(metric: str, keys: Sequence[Hashable], values: Sequence[float], what: str) -> Scores:
    """`metric/what/value` and `n/what/value` of each value of a field, values in order."""
    parts: dict[str, list[float]] = {}
    for key, value in zip(keys, values, strict=True):
        parts.setdefault(str(key), []).append(value)
    found: Scores = {}
    for key in sorted(parts):
        found[f"{metric}/{what}/{key}"] = mean(parts[key])
        found[f"n/{what}/{key}"] = len(parts[key])
    return found


def credited(items: Sequence[Item], credit: Callable[[str, Item], float]) -> list[float]:
    """What each prediction is worth; a missing one nothing."""
    return [
        0.0 if item.prediction is None else float(credit(item.prediction, item)) for item in items
    ]
