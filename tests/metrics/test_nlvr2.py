"""True or false in answers; accuracy and consistency on groups like the sample's."""

import json

import pytest

from tests.samples import SAMPLES, needs_samples
from tiger_jax.errors import UserError
from tiger_jax.metrics.nlvr2 import nlvr2_scores, parse_truth


@pytest.mark.parametrize(
    ("text", "truth"),
    [
        ("True", True),
        ("false.", False),
        ("Yes, it is not false", True),
        ("NO", False),
        ("I think the statement is True", True),
        ("nothing", None),  # "no" is no word of it
        ("untrue", None),
        ("", None),
    ],
)
def test_parse(text, truth):
    assert parse_truth(text) is truth


def made_up_dev():
    """44 pairs in 12 sentences as in the sample: ten of 4, two of 2, half of each True."""
    sizes = [4] * 10 + [2] * 2
    pairs = [(number, pair) for number, size in enumerate(sizes) for pair in range(size)]
    return [f"dev-{number}-0" for number, _ in pairs], [str(pair % 2 == 0) for _, pair in pairs]


def check_worked_values(groups, labels):
    assert (len(labels), len(set(groups)), labels.count("True")) == (44, 12, 22)
    always = nlvr2_scores(["True"] * 44, labels, groups)
    assert (always.accuracy, always.consistency) == (0.5, 0.0)
    flipped = ["false" if labels[5] == "True" else "true"]
    found = nlvr2_scores(labels[:5] + flipped + labels[6:], labels, groups)
    assert found.accuracy == pytest.approx(43 / 44)  # .9773
    assert found.consistency == pytest.approx(11 / 12)  # .9167
    assert (found.n, found.n_groups) == (44, 12)


def test_worked_values():
    check_worked_values(*made_up_dev())


@needs_samples
def test_worked_values_on_the_sample():
    lines = (SAMPLES / "nlvr2/dev.sample.json").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    names = [row["identifier"].split("-") for row in rows]
    groups = [f"{split}-{number}-{sentence}" for split, number, _, sentence in names]
    check_worked_values(groups, [row["label"] for row in rows])


def test_an_answer_without_truth_is_wrong_and_breaks_its_group():
    found = nlvr2_scores(["I cannot tell", "False"], ["False", "false"], ["a", "a"])
    assert (found.accuracy, found.consistency) == (0.5, 0.0)


def test_bad_input_is_named():
    with pytest.raises(UserError, match="NLVR2 prediction 1: expected a text, got none"):
        nlvr2_scores(["True", None], ["True", "True"], ["a", "a"])
    with pytest.raises(UserError, match="NLVR2 label: expected True or False, got 'maybe'"):
        nlvr2_scores(["True"], ["maybe"], ["a"])
    with pytest.raises(UserError, match="got 1, 0, 0"):
        nlvr2_scores(["True"], [], [])
