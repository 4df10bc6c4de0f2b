"""Circular against vanilla by hand."""

import pytest

from tiger_jax.errors import UserError
from tiger_jax.metrics.circular import circular_scores


def test_always_a():
    # Options rotate, so the gold is A in one of four passes.
    found = circular_scores([7] * 4, [gold == "A" for gold in "CBAD"], [4] * 4)
    assert (found.vanilla, found.circular) == (0.25, 0.0)


def test_one_wrong_pass_fails_its_question_only():
    groups = [1, 2, 1, 2, 1]
    found = circular_scores(groups, [True, True, True, True, False], [3, 2, 3, 2, 3])
    assert found == (0.5, 0.8, 2, 5, 0)


def test_a_question_that_lacks_passes_has_no_circular_score():
    found = circular_scores([1, 1, 2], [True] * 3, [2, 2, 4])
    assert found.circular is None
    assert (found.vanilla, found.incomplete) == (1.0, 1)


def test_bad_lengths_are_named():
    with pytest.raises(UserError, match="got 1, 2, 1"):
        circular_scores([1], [True, True], [2])
