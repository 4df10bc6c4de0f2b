"""Clustered means against numbers worked out by hand."""

import numpy as np
import pytest

from tiger_jax.evaluation.standard_error import Mean, clustered_mean


def test_two_clusters_by_hand():
    # m = 11/4; sums of residuals -2.5 and 2.5; error^2 = 2/1 * (6.25 + 6.25) / 16 = 1.5625
    assert clustered_mean([1, 2, 3, 5], ["a", "a", "b", "b"]) == Mean(2.75, 1.25)


def test_unequal_clusters_by_hand():
    # m = 2; sums of residuals a: -1 + 0 + 1 = 0, b: 2, c: -2; 3/2 * 8 / 25 = 0.48
    mean = clustered_mean([1, 2, 3, 4, 0], ["a", "a", "a", "b", "c"])
    assert mean.value == 2
    assert mean.error == pytest.approx(0.48**0.5)


def test_clusters_of_one_give_the_usual_error():
    x = np.random.default_rng(0).normal(size=50)
    assert clustered_mean(x.tolist(), range(50)).error == pytest.approx(x.std(ddof=1) / 50**0.5)


def test_order_of_clusters_does_not_matter():
    assert clustered_mean([1, 3, 2, 5], "abab") == clustered_mean([1, 2, 3, 5], "aabb")


def test_nothing_and_one_cluster():
    assert clustered_mean([], []) == Mean(None, None)
    assert clustered_mean([1.0, 2.0], ["a", "a"]) == Mean(1.5, None)


def test_lengths_must_agree():
    with pytest.raises(ValueError, match="expected 2, one a value, got 1"):
        clustered_mean([1, 2], ["a"])
