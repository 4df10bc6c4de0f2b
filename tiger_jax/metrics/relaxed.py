"""Relaxed accuracy of ChartQA: numbers within five per cent, other answers word for word."""

import re

TOLERANCE = 0.05
_YEAR = re.compile(r"(1\d|20)\d\d")


def relaxed_correct(*, prediction: str, target: str, strict_years: bool = False) -> bool:
    """True if both are numbers and |p - t| / |t| <= 0.05, else if the strings are equal.

    "62%" is the number 0.62. A target of 0 has no relative error, so it is compared as a string.
    Case does not matter; a full stop or a thousands comma does. Keywords only: the two sides have
    been swapped before (VLMEvalKit 584).

    Args:
        strict_years: a target that looks like a year, 1000 .. 2099, must be met exactly; the
            published metric takes 2008 for 2010.
    """
    guess, truth = _number(prediction), _number(target)
    if guess is None or not truth:
        return prediction.lower() == target.lower()
    if strict_years and _YEAR.fullmatch(target.strip()):
        return guess == truth
    return abs(guess - truth) / abs(truth) <= TOLERANCE


def _number(text: str) -> float | None:
    try:
        if text.endswith("%"):
            return float(text[:-1]) / 100
        return float(text)
    except ValueError:
        return None
