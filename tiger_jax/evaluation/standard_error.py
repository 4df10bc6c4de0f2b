"""Means of observations that come in clusters: the rounds of one picture are not independent."""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np


class Mean(NamedTuple):
    """A mean and its standard error; None where there is nothing to compute it from."""

    value: float | None
    error: float | None


def clustered_mean(values: Sequence[int] | Sequence[float], clusters: Sequence[Hashable]) -> Mean:
    """Mean over all observations, standard error over clusters.

    The error is that of a ratio of sums (linearised, J clusters, N observations, mean m):

        error^2 = J / (J - 1) * sum_j (sum_{i in j} (x_i - m))^2 / N^2

    Args:
        values: x_i.
        clusters: the cluster of each, for example the picture.
    """
    if len(values) != len(clusters):
        raise ValueError(f"clusters: expected {len(values)}, one a value, got {len(clusters)}")
    if not len(values):
        return Mean(None, None)
    x = np.asarray(values, np.float64)
    mean = float(x.mean())
    numbers: dict[Hashable, int] = {}
    index = [numbers.setdefault(cluster, len(numbers)) for cluster in clusters]
    count = len(numbers)
    if count < 2:
        return Mean(mean, None)
    residuals = np.bincount(index, weights=x - mean, minlength=count)
    return Mean(mean, float(np.sqrt(count / (count - 1) * (residuals**2).sum()) / len(x)))
