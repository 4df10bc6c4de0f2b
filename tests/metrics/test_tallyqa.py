"""Counts in answers; accuracy and RMSE by hand and on the sample's made-up questions."""

import json
import math

import pytest

from tests.samples import SAMPLES, needs_samples
from tiger_jax.errors import UserError
from tiger_jax.metrics.tallyqa import parse_count, tallyqa_scores


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("There are 4 cats.", 4),
        ("two or three", 2),
        ("3-4", 3),
        ("twelve", 12),
        ("twenty one", 20),
        ("a dozen", None),
        ("no cars", None),
        ("None", None),
        ("", None),
        ("0", 0),
        ("Zero", 0),
        ("17", 17),
        ("20 of them", 20),
        ("21", None),  # outside 0 .. 20, and no part of a number is one
        ("someone", None),
        ("three, not 4", 3),
    ],
)
def test_parse(text, count):
    assert parse_count(text) == count


def test_scores_by_hand():
    found = tallyqa_scores([3, 0, None, 5], [3, 0, 2, 4])
    assert found.accuracy == 0.5
    assert found.rmse == pytest.approx(math.sqrt((0 + 0 + 4 + 1) / 4))
    # An answer without a number is wrong, also where the gold is 0; its error is 0 there.
    assert tallyqa_scores([None], [0]) == (0.0, 0.0, 1)
    assert tallyqa_scores([], []) == (None, None, 0)
    with pytest.raises(UserError, match="counts: expected one a gold, 2, got 1"):
        tallyqa_scores([1], [1, 2])


@needs_samples
def test_always_one_on_the_sample():
    rows = json.loads((SAMPLES / "tallyqa/MADEUP_from_coco_instances.json").read_text())
    found = tallyqa_scores([parse_count("1")] * len(rows), [row["answer"] for row in rows])
    assert found.n == 57
    assert found.accuracy == pytest.approx(0.6842, abs=5e-5)
    assert found.rmse == pytest.approx(1.8401, abs=5e-5)
