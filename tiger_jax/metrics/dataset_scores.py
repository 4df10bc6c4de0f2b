"""Every data set's own metrics by its name: `score` for a report, `HEADLINE` for a table.

Shares are 0 .. 1 (never percent), CIDEr and the other caption scores as pycocoevalcap returns them,
RMSE in objects. Every result has `n`, `missing` (no prediction; wrong) and, where an answer has to
be read out of text, `unparsed` and `unparsed_rate` (no answer found; wrong, never guessed).
"""

from collections.abc import Sequence
from typing import Any

from tiger_jax.metrics.item import Item

__all__ = ["HEADLINE", "Item", "headline", "score"]

Scores = dict[str, Any]
"""Flat: name -> number, or None beside `<name>_reason`, a line that says why."""

HEADLINE = {
    "textvqa": "vqa_accuracy",
    "scienceqa": "accuracy",
    "docvqa": "anls",
    "tallyqa": "accuracy",
    "chartqa": "relaxed_accuracy",
    "mmbench": "circular_accuracy",
    "mm_vet": "mmvet_string_match",
    "coco_captions": "CIDEr",
    "video_mme": "accuracy",
    "nlvr2": "accuracy",
    "muirbench": "accuracy",
}
"""Data set -> the metric that a table shows. llava has none: nobody scores its answers."""


def score(name: str, items: Sequence[Item], **options: Any) -> Scores:
    """All metrics of one data set.

    Options (each has a default):
        scienceqa: style="llava" | "lmms"
        chartqa: strict_years=False
        coco_captions: tokenize=True, meteor=None (None: where java is)
        video_mme: style="official" | "lmms"
        nlvr2: group_sizes=None, {group: pairs of the whole file}, which tells whole groups
        muirbench: style="official" | "lmms", compat_seed=None (the official random guesses)

    Raises:
        UserError: an unknown name or option, no items, golds that are hidden, a missing field;
            a missing prediction of nlvr2.
    """
    raise NotImplementedError


def headline(name: str, scores: Scores) -> tuple[str, float | None]:
    """(metric, value) for a table: HEADLINE's, or mmbench's vanilla where it was not circular."""
    raise NotImplementedError
