"""ANLS on the worked values of real DocVQA questions, and its boundary."""

import pytest

from tiger_jax.errors import UserError
from tiger_jax.metrics.anls import anls_score


@pytest.mark.parametrize(
    ("prediction", "golds", "score"),
    [
        ("itc ltd", ("itc limited", "ITC Limited"), 0.6364),
        (
            "univ of california",
            ("university of california", "University of California",
             "university of california, san diego"),
            0.75,
        ),
        ("0.29", ("0.28",), 0.75),  # a wrong number, and three of four characters
        ("Paul.", ("Paul",), 0.8),
        ("", ("0.28",), 0.0),
        ("san  diego", ("San Diego",), 1.0),
        ("28", ("0.28",), 0.5),  # exactly on the threshold: kept
        ("2", ("0.28",), 0.0),  # 0.25: below it
    ],
)  # fmt: skip
def test_worked_values(prediction, golds, score):
    assert anls_score(prediction, golds) == pytest.approx(score, abs=5e-5)


def test_golds_are_alternatives_in_any_order():
    assert anls_score("b", ["a", "b"]) == 1 == anls_score("b", ["b", "a"])


def test_hidden_golds_are_refused():
    with pytest.raises(UserError, match="ANLS: expected golds, got none"):
        anls_score("b", ())


def test_the_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "anls_star", None)
    with pytest.raises(UserError, match=r"anls-star.*tiger_jax\[score\]"):
        anls_score("b", ("b",))
