"""Ratios and paired differences against hand numbers and against a bootstrap over clusters."""

import numpy as np
import pytest

from tiger_jax.evaluation.comparison import Estimate, Rounds, paired_difference, ratio
from tiger_jax.evaluation.standard_error import clustered_mean


def test_ratio_by_hand():
    # A = 12 / 5 (2.67 if prompts were averaged); a - A n: p 4 - 2.4, 2 - 4.8 -> -1.2; q 1.2.
    estimate = ratio(np.array([4, 2, 6]), np.array([1, 2, 2]), ["p", "p", "q"])
    assert estimate.value == pytest.approx(2.4)
    assert estimate.error == pytest.approx((2 / 1 * (1.44 + 1.44)) ** 0.5 / 5)


def test_difference_by_hand():
    # First: 8 / 4 = 2, pulls (6 - 4) / 4 = .5 and -.5. Second: 6 / 6 = 1, pulls 1 / 6 and -1 / 6.
    first = Rounds(np.array([6.0, 2.0]), np.array([2.0, 2.0]))
    second = Rounds(np.array([4.0, 2.0]), np.array([3.0, 3.0]))
    estimate = paired_difference(first, second, ["p", "q"])
    assert estimate.value == pytest.approx(1)
    # error^2 = 2 * 2 * (1/2 - 1/6)^2 = 4/9; 10/9 if the two were taken for independent.
    assert estimate.error == pytest.approx(2 / 3)
    back = paired_difference(second, first, ["p", "q"])
    assert back == Estimate(-estimate.value, estimate.error)


def test_single_rounds_are_a_clustered_mean():
    rng = np.random.default_rng(0)
    accepted, clusters = rng.integers(0, 6, 80), rng.integers(0, 15, 80).tolist()
    expected = clustered_mean(accepted.tolist(), clusters)
    assert ratio(accepted, np.ones(80, int), clusters) == pytest.approx(expected)


def test_errors_agree_with_a_bootstrap_over_pictures():
    """Two drafters, 300 pictures of 4 questions: shared difficulty, rounds that differ."""
    first, second, pictures = drafters(np.random.default_rng(1), 300)
    clusters = pictures.tolist()
    draws = np.random.default_rng(2).integers(0, 300, (2000, 300))
    values = np.array([bootstrap(drafter, pictures, draws) for drafter in (first, second)])
    spread = values.std(axis=1, ddof=1)
    for drafter, expected in zip((first, second), spread, strict=True):
        assert ratio(*drafter, clusters).error == pytest.approx(expected, rel=0.08)
    estimate = paired_difference(first, second, clusters)
    assert estimate.value == pytest.approx((values[0] - values[1]).mean(), abs=0.01)
    assert estimate.error == pytest.approx((values[0] - values[1]).std(ddof=1), rel=0.08)
    # What is seen if pairing or clustering is lost.
    assert estimate.error < 0.7 * np.hypot(*spread)
    assert ratio(*first, range(1200)).error < 0.75 * spread[0]


def test_a_drafter_does_not_differ_from_itself():
    first, _, pictures = drafters(np.random.default_rng(3), 10)
    assert paired_difference(first, first, pictures.tolist()) == Estimate(0.0, 0.0)


def test_nothing_to_compute_from():
    none, some = Rounds(np.zeros(2), np.zeros(2)), Rounds(np.ones(2), np.ones(2))
    assert ratio(*none, "ab") == Estimate(None, None)
    assert ratio(*some, "aa") == Estimate(1.0, None)
    assert paired_difference(none, some, "ab") == Estimate(None, None)
    assert paired_difference(some, some, "aa") == Estimate(0.0, None)


def test_prompts_must_agree():
    some = Rounds(np.ones(2), np.ones(2))
    with pytest.raises(ValueError, match="got 2 accepted, 2 rounds, 1 clusters"):
        ratio(*some, "a")
    with pytest.raises(ValueError, match="got 3 accepted, 3 rounds, 2 clusters"):
        paired_difference(some, Rounds(np.ones(3), np.ones(3)), "ab")


def drafters(rng, pictures):
    """Two drafters on 4 prompts a picture, and the picture of each prompt."""
    index = np.repeat(np.arange(pictures), 4)
    easy = rng.normal(size=pictures)[index]
    made = []
    for level in (3.0, 2.6):
        rounds = rng.integers(2, 12, len(index)).astype(np.float64)
        noise = rng.normal(size=len(index)) * 0.4
        made.append(Rounds(rounds * (level + 0.6 * easy + noise), rounds))
    return made[0], made[1], index


def bootstrap(drafter, pictures, draws):
    """A of each resample of the pictures."""
    accepted, rounds = (np.bincount(pictures, weights=part) for part in drafter)
    return accepted[draws].sum(axis=1) / rounds[draws].sum(axis=1)
