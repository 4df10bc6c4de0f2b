"""Scores of the multiple-choice data sets: ScienceQA, MMBench, Video-MME, MuirBench."""

import random
from collections.abc import Callable, Sequence

from tiger_jax.errors import UserError
from tiger_jax.metrics import options
from tiger_jax.metrics.circular import circular_scores
from tiger_jax.metrics.item import Item, Scores, by_value, field, gold, mean, parse_counts

Parse = Callable[[str, Item], str | None]


def scienceqa_scores(items: Sequence[Item], style: str = "llava") -> Scores:
    """accuracy over all questions, img_accuracy over those with a picture.

    img_accuracy is None with its reason where `n_images` was not told or no question has one.
    """
    parsed, right = _answered(
        items, lambda text, item: options.scienceqa_option(text, len(choices(item)), style)
    )
    scores = {"accuracy": mean(right), **parse_counts(items, parsed)}
    if any(item.n_images is None for item in items):
        return scores | {"img_accuracy": None, "img_accuracy_reason": "n_images was not told"}
    pictured = [credit for item, credit in zip(items, right, strict=True) if item.n_images]
    scores |= {"img_accuracy": mean(pictured), "n_img": len(pictured)}
    return scores if pictured else scores | {"img_accuracy_reason": "no question has a picture"}


def mmbench_scores(items: Sequence[Item]) -> Scores:
    """circular_accuracy over questions, vanilla_accuracy over passes, both also per category.

    first_pass_accuracy is vanilla over the passes whose options were not rotated. Circular is None
    with its reason where a question lacks passes.
    """
    parsed, right = _answered(items, lambda text, item: options.mmbench_option(text, choices(item)))
    first = [
        credit for item, credit in zip(items, right, strict=True) if field(item, "rotation") == 0
    ]
    scores = _circular(items, right) | {"first_pass_accuracy": mean(first)}
    scores |= parse_counts(items, parsed)
    for name in ("category", "l2_category"):
        values = sorted({str(field(item, name)) for item in items})
        for value in values:
            chosen = [i for i, item in enumerate(items) if str(item.meta[name]) == value]
            part = _circular([items[i] for i in chosen], [right[i] for i in chosen])
            scores |= {f"{metric}/{name}/{value}": part[metric] for metric in part
                       if not metric.endswith("_reason")}  # fmt: skip
    return scores


def _circular(items: Sequence[Item], right: Sequence[float]) -> Scores:
    found = circular_scores(
        [field(item, "group") for item in items], list(map(bool, right)),
        [len(choices(item)) for item in items],
    )  # fmt: skip
    scores: Scores = {"circular_accuracy": found.circular, "vanilla_accuracy": found.vanilla,
                      "n_questions": found.n_questions}  # fmt: skip
    if found.incomplete:
        scores["circular_accuracy_reason"] = (
            f"{found.incomplete} of {found.n_questions} questions lack rotations"
        )
    return scores


def video_mme_scores(items: Sequence[Item], style: str = "official") -> Scores:
    """accuracy overall and per duration, domain, sub_category, task_type.

    accuracy_of_answered is the authors' number, right / answered: a text without a letter is left
    out of it instead of wrong. None with its reason where no text holds one.
    """
    parsed, right = _answered(items, lambda text, _: options.video_mme_option(text, style))
    answered = [credit for letter, credit in zip(parsed, right, strict=True) if letter]
    scores = {"accuracy": mean(right), "accuracy_of_answered": mean(answered),
              **parse_counts(items, parsed)}  # fmt: skip
    if not answered:
        scores["accuracy_of_answered_reason"] = "no text holds a letter"
    for name in ("duration", "domain", "sub_category", "task_type"):
        scores |= by_value("accuracy", [field(item, name) for item in items], right, name)
    return scores


def muirbench_scores(
    items: Sequence[Item], style: str = "official", compat_seed: int | None = None
) -> Scores:
    """accuracy overall and per task.

    Args:
        compat_seed: 42 gives the official script's random letters where nothing was found; they
            depend on the order of the items. `unparsed` counts the texts before any guess.
    """
    compat = None if compat_seed is None else random.Random(compat_seed)
    parsed, _ = _answered(
        items, lambda text, item: options.muirbench_option(text, choices(item), style)
    )
    _, right = _answered(
        items, lambda text, item: options.muirbench_option(text, choices(item), style, compat)
    )
    scores = {"accuracy": mean(right), **parse_counts(items, parsed)}
    if compat_seed is not None:
        scores["compat_seed"] = compat_seed
    return scores | by_value("accuracy", [field(item, "task") for item in items], right, "task")


def choices(item: Item) -> tuple[str, ...]:
    """The option texts. Raises UserError where there are none."""
    if not item.choices:
        raise UserError(f"{item.uid}: expected choices, got none")
    return item.choices


def _answered(items: Sequence[Item], parse: Parse) -> tuple[list[str | None], list[float]]:
    """The letter of each prediction, and 1 where it is the gold's."""
    parsed = [None if item.prediction is None else parse(item.prediction, item) for item in items]
    right = [float(answer == gold(item)) for item, answer in zip(items, parsed, strict=True)]
    return parsed, right
