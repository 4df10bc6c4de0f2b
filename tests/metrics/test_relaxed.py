"""Relaxed accuracy on the worked pairs."""

import pytest

from tiger_jax.metrics.relaxed import relaxed_correct


@pytest.mark.parametrize(
    ("prediction", "target", "right"),
    [
        ("14.7", "14", True),
        ("14.71", "14", False),
        ("2008", "2010", True),
        ("62%", "62", False),
        ("0.0", "0", False),
        ("0", "0", True),
        ("No.", "No", False),
        ("1,000", "1000", False),
        ("51", "50.25", True),
        ("-5", "5", False),
        ("14 ", "14", True),
        ("YES", "yes", True),
        ("62%", "0.62", True),
        ("5", "five", False),
    ],
)
def test_worked_pairs(prediction, target, right):
    assert relaxed_correct(prediction=prediction, target=target) is right


def test_the_error_is_relative_to_the_target():
    # |95.2 - 100| / 100 = .048; the other way round .0504.
    assert relaxed_correct(prediction="95.2", target="100")
    assert not relaxed_correct(prediction="100", target="95.2")


def test_strict_years():
    assert not relaxed_correct(prediction="2008", target="2010", strict_years=True)
    assert relaxed_correct(prediction="2010.0", target="2010", strict_years=True)
    # Not years: the tolerance stays.
    assert relaxed_correct(prediction="2990", target="3000", strict_years=True)
    assert relaxed_correct(prediction="14.7", target="14", strict_years=True)
