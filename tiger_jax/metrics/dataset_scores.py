"""Every data set's own metrics by its name: `score` for a report, `HEADLINE` for a table.

Shares are 0 .. 1 (never percent), CIDEr and the other caption scores as pycocoevalcap returns them,
RMSE in objects. Every result has `n`, `missing` (no prediction; wrong) and, where an answer has to
be read out of text, `unparsed` and `unparsed_rate` (no answer found; wrong, never guessed).
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from tiger_jax.errors import UserError
from tiger_jax.metrics import answer_scores, choice_scores
from tiger_jax.metrics import options as option_rules
from tiger_jax.metrics.item import Item, Scores
from tiger_jax.metrics.nlvr2 import parse_truth
from tiger_jax.metrics.tallyqa import parse_count
from tiger_jax.metrics.vqa import normalize_answer

__all__ = ["HEADLINE", "Item", "headline", "read_answer", "score"]

_SCORERS: dict[str, Callable[..., Scores]] = {
    "textvqa": answer_scores.textvqa_scores,
    "scienceqa": choice_scores.scienceqa_scores,
    "docvqa": answer_scores.docvqa_scores,
    "tallyqa": answer_scores.tallyqa_item_scores,
    "chartqa": answer_scores.chartqa_scores,
    "mmbench": choice_scores.mmbench_scores,
    "mm_vet": answer_scores.mm_vet_scores,
    "coco_captions": answer_scores.coco_captions_scores,
    "video_mme": choice_scores.video_mme_scores,
    "nlvr2": answer_scores.nlvr2_item_scores,
    "muirbench": choice_scores.muirbench_scores,
}

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
    scorer = _SCORERS.get(name)
    if scorer is None:
        raise UserError(f"data set: expected one of {', '.join(_SCORERS)}, got {name!r}")
    if not items:
        raise UserError(f"{name}: expected items to score, got none")
    if len({item.uid for item in items}) != len(items):
        raise UserError(f"{name}: expected items of different uids, got one twice")
    known = list(inspect.signature(scorer).parameters)[1:]
    unknown = sorted(options.keys() - set(known))
    if unknown:
        raise UserError(
            f"{name} options: expected among {', '.join(known) or 'none'}, got {', '.join(unknown)}"
        )
    return scorer(items, **options)


def headline(name: str, scores: Scores) -> tuple[str, float | None]:
    """(metric, value) for a table: HEADLINE's, or mmbench's vanilla where it was not circular.

    Raises:
        UserError: a data set without a headline.
    """
    if name not in HEADLINE:
        raise UserError(f"data set: expected one of {', '.join(HEADLINE)}, got {name!r}")
    metric = HEADLINE[name]
    if name == "mmbench" and scores[metric] is None:
        metric = "vanilla_accuracy"
    return metric, scores[metric]


def read_answer(name: str, item: Item, style: str | None = None) -> str | None:
    """What the metric reads in a prediction, to stand beside the text in a report.

    A letter, a number, True or False, a normalised string; the text itself where the metric reads
    all of it; None where nothing was found or the prediction is missing.

    Args:
        style: of the option rule; None: its default.
    """
    if item.prediction is None:
        return None
    reader = _READERS.get(name)
    if reader is None:
        return item.prediction
    found = reader(item.prediction, item, {} if style is None else {"style": style})
    return None if found is None else str(found)


_READERS: dict[str, Callable[[str, Item, dict], Any]] = {
    "textvqa": lambda text, item, style: normalize_answer(text),
    "scienceqa": lambda text, item, style: option_rules.scienceqa_option(
        text, len(choice_scores.choices(item)), **style
    ),
    "tallyqa": lambda text, item, style: parse_count(text),
    "mmbench": lambda text, item, style: option_rules.mmbench_option(
        text, choice_scores.choices(item)
    ),
    "video_mme": lambda text, item, style: option_rules.video_mme_option(text, **style),
    "nlvr2": lambda text, item, style: parse_truth(text),
    "muirbench": lambda text, item, style: option_rules.muirbench_option(
        text, choice_scores.choices(item), **style
    ),
}
