"""What answers are worth: the data set's own metric, and the first answers with their parse.

Only answers to short prompts are scored; see public/prompts.py.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from tiger_jax.errors import UserError
from tiger_jax.evaluation.benchmark_config import EXAMPLES, SCENES
from tiger_jax.evaluation.questions import Question
from tiger_jax.evaluation.sample import Sample
from tiger_jax.metrics import dataset_scores
from tiger_jax.metrics.item import Item

RAW = 5
"""Answers that a report shows with their parse."""
_EXACT = "exact_match"
_OWN = (SCENES, EXAMPLES)


class Scored(NamedTuple):
    """The metrics of some answers."""

    metrics: Mapping[str, Any]
    headline: str | None
    """Name of the metric that a table shows; None where there is none."""
    reason: str | None
    """Why there is none."""

    @property
    def value(self) -> float | None:
        """Of the headline."""
        return self.metrics.get(self.headline) if self.headline else None


def score(sample: Sample, texts: Mapping[str, str]) -> Scored:
    """Score the answers of a sample by their uids; questions without one are left out.

    A metric that cannot be had (hidden golds, no Java for captions) is a reason, not an error.
    """
    name = sample.source.name
    answered = [question for question in sample.questions if question.uid in texts]
    if not answered:
        return Scored({"n": 0}, None, "nothing was answered")
    if name in _OWN:
        metrics = _exact_match(answered, texts)
        return Scored(metrics, _EXACT, None)
    items = [question.gold._replace(prediction=texts[question.uid]) for question in answered]
    try:
        metrics = dataset_scores.score(name, items, **_options(sample))
        headline, value = dataset_scores.headline(name, metrics)
    except UserError as error:
        return Scored({"n": len(items)}, None, str(error))
    reason = metrics.get(f"{headline}_reason") if value is None else None
    return Scored(metrics, headline, reason)


def raw(sample: Sample, texts: Mapping[str, str]) -> list[dict]:
    """The first answers, what was read out of them, and what is right."""
    answered = [question for question in sample.questions if question.uid in texts][:RAW]
    return [
        {
            "uid": question.uid, "prompt": question.text, "answer": texts[question.uid],
            "parse": parse(sample.source.name, question, texts[question.uid]),
            "gold": _gold(question),
        }
        for question in answered
    ]  # fmt: skip


def parse(name: str, question: Question, answer: str) -> str | None:
    """What the metric reads out of an answer; None where it finds nothing."""
    if name == SCENES:
        return "right" if _is_right(question, answer) else "wrong"
    if name == EXAMPLES:
        return _plain(answer)
    return dataset_scores.read_answer(name, question.gold._replace(prediction=answer))


def for_judges(sample: Sample, texts: Mapping[str, str]) -> Any:
    """The answers as the data set's own judge wants them, ready for JSON; None where it has none.

    MM-Vet: {"v1_0": text}. DocVQA: [{"questionId", "answer"}]. COCO: [{"image_id", "caption"}].
    """
    name = sample.source.name
    said = [(q.gold, texts[q.uid]) for q in sample.questions if q.uid in texts]
    if name == "mm_vet":
        return {gold.meta["id"]: text for gold, text in said}
    if name == "docvqa":
        return [{"questionId": gold.uid.split("/")[2], "answer": text} for gold, text in said]
    if name == "coco_captions":
        return [{"image_id": gold.meta["image_id"], "caption": text} for gold, text in said]
    return None


def _options(sample: Sample) -> dict[str, Any]:
    return {"group_sizes": dict(sample.group_sizes)} if sample.source.name == "nlvr2" else {}


def _exact_match(answered: list[Question], texts: Mapping[str, str]) -> dict[str, Any]:
    right = [_is_right(question, texts[question.uid]) for question in answered]
    metrics: dict[str, Any] = {_EXACT: sum(right) / len(right), "n": len(right)}
    if answered[0].uid.startswith(f"{SCENES}/"):
        for kind in dict.fromkeys(question.gold.kind for question in answered):
            chosen = [r for q, r in zip(answered, right, strict=True) if q.gold.kind == kind]
            metrics[f"{_EXACT}_{kind}"] = sum(chosen) / len(chosen)
    return metrics


def _is_right(question: Question, answer: str) -> bool:
    if question.uid.startswith(f"{SCENES}/"):
        return question.gold.asked.is_correct(answer)
    return _plain(answer) in {_plain(gold) for gold in question.gold}


def _plain(text: str) -> str:
    """Case, spaces and a full stop at the end make no difference."""
    return " ".join(text.casefold().split()).removesuffix(".")


def _gold(question: Question) -> list[str] | str | None:
    gold = question.gold
    if isinstance(gold, Item):
        return gold.ground_truth if gold.ground_truth is not None else list(gold.answers)
    return gold.asked.qa.answer if question.uid.startswith(f"{SCENES}/") else list(gold)
