"""Hand-computed statistics and the choice of the draft length."""

import pytest

from tiger_jax.decoding.statistics import best_draft_length, pool, predicted_speedup


def test_pooled_counts():
    seen = pool([[3, 0, 1], [4]], tokens=12)
    assert seen.rounds == 4
    assert seen.mean == 2.0
    assert seen.tau == 3.0
    assert seen.share_at_least(2) == 0.5
    assert seen.share_at_least(4) == 0.25
    assert seen.tokens == 12


def test_nothing_counted_is_no_number():
    seen = pool([], tokens=1)
    assert seen.mean is None
    assert seen.tau is None
    assert seen.share_at_least(2) is None


def test_predicted_speedup():
    # 3 tokens a round that costs 5 * 0.1 + 1.0 plain steps; not 3 / (1 + 5 * 0.1 * 1.0 + ...).
    assert predicted_speedup(3.0, 5, 0.1, 1.0) == pytest.approx(2.0)
    assert predicted_speedup(3.0, 5, 0.1, 1.0, c_route=0.5) == pytest.approx(1.5)


def test_best_draft_length_by_hand():
    seen = pool([[4, 0, 2, 2]], tokens=0)
    # g = 1: tau 1.75, cost 1.3; g = 2: tau 2.5, cost 1.6; g = 4: tau 3, cost 2.2
    v = {1: 1.1, 2: 1.2, 4: 1.4}
    best, speedup = best_draft_length(seen, 0.2, v)
    assert best == 2
    assert speedup == pytest.approx(2.5 / 1.6)


def test_speculation_is_off_where_it_cannot_win():
    seen = pool([[0, 0, 1, 0]], tokens=0)
    assert best_draft_length(seen, 0.5, {1: 1.1, 2: 1.2}) == (0, 1.0)
