"""Counting: the number in an answer, exact accuracy and RMSE (TallyQA)."""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from tiger_jax.errors import UserError

_WORDS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
    "twenty",
)  # fmt: skip
_VALUES = {word: value for value, word in enumerate(_WORDS)}
_COUNT = re.compile(rf"\b([0-9]|1[0-9]|20|{'|'.join(_WORDS)})\b")


class CountScores(NamedTuple):
    """Scores of a set of counts; None over no questions."""

    accuracy: float | None
    """Share of exact counts; an answer without a number is wrong."""
    rmse: float | None
    """Root of the mean squared error in objects; an answer without a number counts as 0."""
    n: int


def parse_count(text: str) -> int | None:
    """The first number 0 .. 20 in digits or words, as VLMEvalKit reads it; None without one.

    "no cars" and "a dozen" have none: known weaknesses, kept so that numbers compare.
    """
    found = _COUNT.search(text.lower())
    if found is None:
        return None
    return _VALUES[found[1]] if found[1] in _VALUES else int(found[1])


def tallyqa_scores(counts: Sequence[int | None], golds: Sequence[int]) -> CountScores:
    """Accuracy and RMSE = sqrt(mean (count - gold)^2).

    Args:
        counts: parsed answers, None where there was no number.
        golds: the right counts; 0 is a count like any other.

    Raises:
        UserError: numbers of counts and golds differ.
    """
    if len(counts) != len(golds):
        raise UserError(f"counts: expected one a gold, {len(golds)}, got {len(counts)}")
    if not golds:
        return CountScores(None, None, 0)
    right = sum(count == gold for count, gold in zip(counts, golds, strict=True))
    squares = sum(((count or 0) - gold) ** 2 for count, gold in zip(counts, golds, strict=True))
    return CountScores(right / len(golds), math.sqrt(squares / len(golds)), len(golds))
