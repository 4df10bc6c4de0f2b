"""NLVR2: true or false of two pictures; accuracy, and consistency over a sentence's pairs."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from tiger_jax.errors import UserError

_TRUTH = re.compile(r"\b(true|false|yes|no)\b", re.IGNORECASE)


class TruthScores(NamedTuple):
    """Both official metrics, 0 .. 1."""

    accuracy: float
    consistency: float
    """Share of sentences with ALL their pairs right; means nothing where pairs were left out."""
    n: int
    n_groups: int


def parse_truth(text: str) -> bool | None:
    """The first of true / false / yes / no that stands as a word; None without one."""
    found = _TRUTH.search(text)
    return None if found is None else found[1].lower() in {"true", "yes"}


def nlvr2_scores(
    predictions: Sequence[str | None], labels: Sequence[str], groups: Sequence[str]
) -> TruthScores:
    """Accuracy and consistency of texts against "True" / "False" (metrics.py of the data set).

    A text without an answer is wrong.

    Args:
        predictions: model texts.
        labels: "True" or "False", in any case.
        groups: the sentence of each pair: its identifier without the pair.

    Raises:
        UserError: a missing prediction (the official scorer stops as well), a label that is
            neither, no examples, or lengths that differ.
    """
    if not labels or not len(predictions) == len(labels) == len(groups):
        raise UserError(
            "NLVR2: expected as many predictions, labels and groups, at least one, "
            f"got {len(predictions)}, {len(labels)}, {len(groups)}"
        )
    whole: dict[str, bool] = {}
    right = 0
    for number, (text, label, group) in enumerate(zip(predictions, labels, groups, strict=True)):
        if text is None:
            raise UserError(f"NLVR2 prediction {number}: expected a text, got none")
        correct = parse_truth(text) is _label(label)
        right += correct
        whole[group] = whole.get(group, True) and correct
    return TruthScores(
        right / len(labels), sum(whole.values()) / len(whole), len(labels), len(whole)
    )


def _label(text: str) -> bool:
    if text.strip().lower() not in {"true", "false"}:
        raise UserError(f"NLVR2 label: expected True or False, got {text!r}")
    return text.strip().lower() == "true"
