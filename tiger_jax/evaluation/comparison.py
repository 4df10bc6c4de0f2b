"""Drafters compared on the same prompts: A of each, and the paired difference of two.

P: prompts. A is a ratio of sums over prompts (accepted drafts / rounds), so that a long answer
weighs by its rounds, exactly as when all rounds are pooled. The questions about one picture are not
independent: errors are over clusters (J of them), linearised (delta method).
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

Numbers = Float[np.ndarray, "P"] | Int[np.ndarray, "P"]


class Estimate(NamedTuple):
    """A number and its standard error; None where there is nothing to compute it from."""

    value: float | None
    error: float | None


class Rounds(NamedTuple):
    """What one drafter did on each prompt: counts of a run, or their exact expectations."""

    accepted: Numbers
    """Sum of A over the rounds of each prompt (or the number of rounds with A >= m)."""
    rounds: Numbers


def ratio(accepted: Numbers, rounds: Numbers, clusters: Sequence[Hashable]) -> Estimate:
    """A = sum of accepted / sum of rounds, its error over clusters.

        error^2 = J / (J - 1) * sum_j (sum_{i in j} (a_i - A n_i))^2 / (sum n)^2

    With one round an entry it is `standard_error.clustered_mean`.

    Args:
        accepted: a_i, sum of A over the rounds of prompt i.
        rounds: n_i.
        clusters: the cluster of each prompt, for example its picture.

    Raises:
        ValueError: numbers of prompts differ.
    """
    value, residuals = _linearised(Rounds(accepted, rounds), clusters)
    return Estimate(value, _error(residuals))


def paired_difference(first: Rounds, second: Rounds, clusters: Sequence[Hashable]) -> Estimate:
    """A of `first` minus A of `second`; what a prompt makes easy or hard for both cancels.

        error^2 = J / (J - 1) * sum_j (e1_j - e2_j)^2,   e_j = sum_{i in j} (a_i - A n_i) / sum n

    Args:
        first, second: two drafters on the same prompts in the same order.
        clusters: the cluster of each prompt.

    Raises:
        ValueError: numbers of prompts differ.
    """
    value, residuals = _linearised(first, clusters)
    other, other_residuals = _linearised(second, clusters)
    if value is None or other is None:
        return Estimate(None, None)
    return Estimate(value - other, _error(residuals - other_residuals))


def _linearised(
    drafter: Rounds, clusters: Sequence[Hashable]
) -> tuple[float | None, Float[np.ndarray, "J"]]:
    """A, and how much each cluster pulls at it; None and nothing without a round."""
    accepted = np.asarray(drafter.accepted, np.float64)
    rounds = np.asarray(drafter.rounds, np.float64)
    if not len(accepted) == len(rounds) == len(clusters):
        raise ValueError(
            "expected one entry a prompt each, got "
            f"{len(accepted)} accepted, {len(rounds)} rounds, {len(clusters)} clusters"
        )
    total = float(rounds.sum())
    if total == 0:
        return None, np.zeros(0)
    value = float(accepted.sum()) / total
    numbers: dict[Hashable, int] = {}
    index = [numbers.setdefault(cluster, len(numbers)) for cluster in clusters]
    return value, np.bincount(index, weights=accepted - value * rounds) / total


def _error(residuals: Float[np.ndarray, "J"]) -> float | None:
    """Standard error from the pulls of J clusters, which sum to 0; None below two."""
    count = len(residuals)
    if count < 2:
        return None
    return float(np.sqrt(count / (count - 1) * (residuals**2).sum()))
