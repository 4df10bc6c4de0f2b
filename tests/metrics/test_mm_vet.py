"""The string match on the worked golds, and the file for the official judge."""

import json

import pytest

from tests.samples import SAMPLES, needs_samples
from tiger_jax.metrics.mm_vet import mmvet_string_match

FRACTION = "1.25<OR>=1.25<OR>5/4"


@pytest.mark.parametrize(
    ("prediction", "gold", "credit"),
    [
        ("x = -1", "-1<AND>-5", 0.5),
        ("x = -1 or x = -5", "-1<AND>-5", 1.0),
        ("x = -5 or 5", "-1<AND>-5", 0.5),
        ("d is 5/4", FRACTION, 1.0),
        ("It is =1.25.", FRACTION, 1.0),
        ("It is 11.25", FRACTION, 0.0),
        ("It is 1.255", FRACTION, 0.0),
        ("It is 1.25.5", FRACTION, 0.0),
        ("The Caprese  salad", "Caprese Salad", 1.0),
        ("a category", "cat", 0.0),
        ("-5", "5", 0.0),
        ("x=-5", "5", 0.0),
        ("pages 3-5", "5", 1.0),  # a range, not a sign
        ("130", "130.96", 0.0),
        ("the water boiled", "water boiled?", 1.0),
        ("", "yes", 0.0),
        ("b and c", "a<AND>b<AND>c<OR>d", pytest.approx(2 / 3)),
    ],
)
def test_worked_golds(prediction, gold, credit):
    assert mmvet_string_match(prediction, gold) == credit


@needs_samples
def test_every_sample_gold_matches_itself():
    rows = json.loads((SAMPLES / "mm-vet/mm-vet.json").read_text())
    for row in rows.values():
        for gold in row["answer"].split("<OR>"):
            assert mmvet_string_match(gold.replace("<AND>", " and "), row["answer"]) == 1
