"""Scores of the data sets with free answers: text, counts, captions, true or false."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from tiger_jax.errors import UserError
from tiger_jax.metrics.anls import anls_score
from tiger_jax.metrics.captions import caption_scores
from tiger_jax.metrics.item import (
    Item,
    Scores,
    by_value,
    counts,
    credited,
    field,
    gold,
    golds,
    mean,
    parse_counts,
)
from tiger_jax.metrics.mm_vet import mmvet_string_match
from tiger_jax.metrics.nlvr2 import nlvr2_scores, parse_truth
from tiger_jax.metrics.relaxed import relaxed_correct
from tiger_jax.metrics.tallyqa import parse_count, tallyqa_scores
from tiger_jax.metrics.vqa import vqa_accuracy

NLVR2_WHOLE = {(6982, 2018), (6967, 1995), (6970, 1996)}
"""(examples, sentences) of dev, test1 and test2: a run of this size left nothing out."""


def textvqa_scores(items: Sequence[Item]) -> Scores:
    """vqa_accuracy: soft votes of ten golds."""
    right = credited(_all_scored(items, golds), lambda text, item: vqa_accuracy(text, item.answers))
    return {"vqa_accuracy": mean(right), **counts(items)}


def docvqa_scores(items: Sequence[Item]) -> Scores:
    """anls, the mean over questions; refused where a gold is hidden: all of the test half."""
    right = credited(_all_scored(items, golds), lambda text, item: anls_score(text, item.answers))
    return {"anls": mean(right), **counts(items)}


def chartqa_scores(items: Sequence[Item], strict_years: bool = False) -> Scores:
    """relaxed_accuracy overall, and human and augmented apart."""
    right = credited(
        _all_scored(items, gold),
        lambda text, item: relaxed_correct(
            prediction=text, target=gold(item), strict_years=strict_years
        ),
    )
    scores = {"relaxed_accuracy": mean(right), **counts(items), "strict_years": strict_years}
    parts = [field(item, "part") for item in items]
    return scores | by_value("relaxed_accuracy", parts, right, "part")


def tallyqa_item_scores(items: Sequence[Item]) -> Scores:
    """accuracy and rmse of all, simple and complex questions; unknown kinds are in none of both."""
    parsed = [None if item.prediction is None else parse_count(item.prediction) for item in items]
    wanted = [_count(item) for item in items]
    overall = tallyqa_scores(parsed, wanted)
    scores = {"accuracy": overall.accuracy, "rmse": overall.rmse, **parse_counts(items, parsed)}
    kinds = [field(item, "simple") for item in items]
    for name, kind in (("simple", True), ("complex", False)):
        chosen = [i for i, found in enumerate(kinds) if found is kind]
        part = tallyqa_scores([parsed[i] for i in chosen], [wanted[i] for i in chosen])
        scores |= {f"accuracy/{name}": part.accuracy, f"rmse/{name}": part.rmse,
                   f"n/{name}": part.n}  # fmt: skip
    return scores | {"n/unknown": sum(kind is None for kind in kinds)}


def _count(item: Item) -> int:
    text = gold(item)
    if not text.strip().isdecimal():
        raise UserError(f"{item.uid}: expected a count as ground truth, got {text!r}")
    return int(text)


def mm_vet_scores(items: Sequence[Item]) -> Scores:
    """mmvet_string_match over the questions without `gen`, and per capability. Not MM-Vet's score.

    It is None with its reason where all questions are of `gen`.
    """
    scored = [item for item in items if "gen" not in field(item, "capabilities")]
    right = credited(
        _all_scored(scored, gold), lambda text, item: mmvet_string_match(text, gold(item))
    )
    scores = {"mmvet_string_match": mean(right), **counts(scored),
              "n_gen_left_out": len(items) - len(scored)}  # fmt: skip
    if not scored:
        scores["mmvet_string_match_reason"] = "all questions ask for generated text"
    pairs = [
        (name, credit)
        for item, credit in zip(scored, right, strict=True)
        for name in item.meta["capabilities"]
    ]
    names, each = [name for name, _ in pairs], [credit for _, credit in pairs]
    return scores | by_value("mmvet_string_match", names, each, "capability")


def coco_captions_scores(
    items: Sequence[Item], tokenize: bool = True, meteor: bool | None = None
) -> Scores:
    """`caption_scores` of the items; a missing caption is an empty one."""
    found = {item.uid: item.prediction or "" for item in items}
    wanted = {item.uid: golds(item) for item in items}
    return {**caption_scores(found, wanted, tokenize, meteor=meteor), **counts(items),
            "tokenize": tokenize}  # fmt: skip


def nlvr2_item_scores(
    items: Sequence[Item], group_sizes: Mapping[str, int] | None = None
) -> Scores:
    """accuracy, and consistency where every sentence has all its pairs.

    Args:
        group_sizes: sentence -> its pairs in the whole file. None: only a run of a whole split,
            known by its size, has a consistency; otherwise it is None with the reason.
    """
    missing = [item.uid for item in items if item.prediction is None]
    if missing:
        raise UserError(
            f"nlvr2: expected a prediction for every pair, got none for {len(missing)}, "
            f"first {missing[0]}"
        )
    groups = [field(item, "group") for item in items]
    texts = [item.prediction for item in items]
    found = nlvr2_scores(texts, [gold(item) for item in items], groups)
    scores = {"accuracy": found.accuracy, "consistency": found.consistency,
              **parse_counts(items, [parse_truth(text) for text in texts]),
              "n_groups": found.n_groups}  # fmt: skip
    reason = _broken_groups(groups, group_sizes)
    return scores | {"consistency": None, "consistency_reason": reason} if reason else scores


def _broken_groups(groups: Sequence[str], sizes: Mapping[str, int] | None) -> str | None:
    """Why consistency would mean nothing; None if all sentences are whole."""
    present = Counter(groups)
    if sizes is None:
        whole = (len(groups), len(present)) in NLVR2_WHOLE
        return None if whole else "a part of a split: whether its sentences are whole was not told"
    broken = sum(sizes.get(group) != number for group, number in present.items())
    return f"{broken} of {len(present)} sentences lack pairs" if broken else None


def _all_scored(items: Sequence[Item], needed: Callable[[Item], object]) -> Sequence[Item]:
    """The items, each with its gold, also those whose prediction is missing."""
    for item in items:
        needed(item)
    return items
