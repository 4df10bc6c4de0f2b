"""Rewards, the end-token rule and advantages against numbers by hand."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from tiger_jax.errors import UserError
from tiger_jax.ops.sampling import NEVER
from tiger_jax.training import rewards

END = (7, 9)
COINS = jnp.array([[1, 1, 0, 1], [0, 1, 1, 1], [1, 1, 1, 1], [0, 0, 0, 0]], bool)
PROBABILITIES = jnp.array([[0.5, 1.0, 0.2, 0.5]])


def logs(*rows):
    return jnp.log(jnp.array(rows, jnp.float32))


def test_acceptance_is_the_ratio_of_the_laws():
    q, p = logs([0.5, 0.25, 0.25], [0.1, 0.8, 0.1]), logs([0.2, 0.7, 0.1], [0.1, 0.4, 0.5])
    chosen = rewards.acceptance_probabilities(q, p, jnp.array([0, 1]), 1.0)
    np.testing.assert_allclose(chosen, [0.4, 0.5], rtol=1e-5)
    capped = rewards.acceptance_probabilities(q, p, jnp.array([1, 2]), 1.0)
    np.testing.assert_allclose(capped, [1.0, 1.0])


def test_temperature_sharpens_both_laws():
    # At T = 1/2 the laws are squares: q 1/4 : 1/16 : 1/16, p .04 : .49 : .01.
    q, p = logs([0.5, 0.25, 0.25]), logs([0.2, 0.7, 0.1])
    found = rewards.acceptance_probabilities(q, p, jnp.array([0]), 0.5)
    np.testing.assert_allclose(found, [(0.04 / 0.54) / (0.25 / 0.375)], rtol=1e-5)


def test_greedy_acceptance_is_the_argmax_of_the_verifier():
    q, p = logs([0.9, 0.05, 0.05], [0.9, 0.05, 0.05]), logs([0.2, 0.7, 0.1], [0.6, 0.3, 0.1])
    found = rewards.acceptance_probabilities(q, p, jnp.array([0, 0]), 0.0)
    np.testing.assert_array_equal(found, [0, 1])
    with pytest.raises(UserError, match=r"temperature: expected 0 or more, got -0\.5"):
        rewards.acceptance_probabilities(q, p, jnp.array([0, 0]), -0.5)


def test_a_token_that_the_verifier_forbids_is_never_accepted():
    q, p = jnp.zeros((1, 3)), jnp.array([[0.0, 0.0, NEVER]])
    assert float(rewards.acceptance_probabilities(q, p, jnp.array([2]), 0.7)[0]) == 0


def test_every_reward_by_hand():
    found = {name: reward(COINS, COINS * 1.0) for name, reward in rewards.REWARDS.items()}
    np.testing.assert_array_equal(found["accepted_prefix"], [2, 0, 4, 0])
    np.testing.assert_array_equal(found["binary"], [1, 0, 1, 0])
    np.testing.assert_array_equal(found["token_agreement"], [0.75, 0.75, 1, 0])
    np.testing.assert_array_equal(found["expected_prefix"], [2, 0, 4, 0])
    # The coins are not read: .5 + .5 + .1 + .05
    closed = rewards.REWARDS["expected_prefix"](COINS[:1], PROBABILITIES)
    np.testing.assert_allclose(closed, [1.15], rtol=1e-6)


def test_expected_prefix_is_the_mean_over_all_coins():
    outcomes = (np.arange(16)[:, None] >> np.arange(4) & 1).astype(bool)
    chance = np.asarray(PROBABILITIES)
    weights = np.where(outcomes, chance, 1 - chance).prod(axis=1)
    mean = (weights * np.asarray(rewards.accepted_prefix(jnp.array(outcomes)))).sum()
    np.testing.assert_allclose(mean, 1.15, rtol=1e-6)


def test_before_end_keeps_the_first_end_token():
    tokens = jnp.array([[1, 7, 2, 7], [9, 9, 9, 9], [1, 2, 3, 4], [1, 2, 3, 7]])
    expected = [[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]]
    np.testing.assert_array_equal(rewards.before_end(tokens, END), expected)
    np.testing.assert_array_equal(rewards.before_end(tokens, jnp.array([9, 7, -1])), expected)
    assert rewards.before_end(tokens, ()).all()
    assert rewards.before_end(jnp.array([[-1, 2]]), (-1,)).all()


@pytest.mark.parametrize(
    ("coins", "extended", "prefix"),
    [
        ([1, 1, 0, 0, 0], [1, 1, 1, 1, 1], 5),  # accepted end: not 2
        ([1, 0, 1, 1, 1], [1, 0, 0, 0, 0], 1),  # rejected end: an agreement of 1/5, not 4/5
        ([0, 1, 0, 0, 0], [0, 1, 1, 1, 1], 0),  # accepted end behind a rejection
    ],
)
def test_positions_after_an_accepted_end_token_count_as_accepted(coins, extended, prefix):
    tokens = jnp.array([3, 7, 5, 9, 5])
    found = rewards.extend_past_end(jnp.array(coins, bool), tokens, END)
    np.testing.assert_array_equal(found, extended)
    assert float(rewards.accepted_prefix(found)) == prefix


def test_probabilities_carry_the_end_tokens_own():
    tokens = jnp.array([3, 7, 5, 9])
    found = rewards.extend_past_end(jnp.array([0.5, 0.4, 0.1, 0.0]), tokens, END)
    np.testing.assert_allclose(found, [0.5, 0.4, 1, 1])
    np.testing.assert_allclose(rewards.accepted_prefix(found), 0.5 + 3 * 0.2, rtol=1e-6)


def test_a_block_without_end_is_left_alone():
    tokens = jnp.array([3, 4, 5, 6])
    np.testing.assert_array_equal(rewards.extend_past_end(COINS[0], tokens, END), COINS[0])


def test_advantages_by_hand():
    found, std = rewards.group_advantages(jnp.array([[1.0, 2.0, 3.0, 6.0]]), 0.0, True)
    deviation = math.sqrt((4 + 1 + 0 + 9) / 4)  # over K, not K - 1
    np.testing.assert_allclose(std, [deviation], rtol=1e-6)
    np.testing.assert_allclose(found, np.array([[-2, -1, 0, 3]]) / deviation, rtol=1e-6)
    found, std = rewards.group_advantages(jnp.array([[1.0, 2.0, 3.0, 6.0]]), 0.5, True)
    np.testing.assert_allclose(found, np.array([[-2, -1, 0, 3]]) / (deviation + 0.5), rtol=1e-6)


def test_closed_forms_are_centred_only():
    values = jnp.array([1.001, 1.002])
    found, std = rewards.group_advantages(
        values, 1e-6, "expected_prefix" not in rewards.CLOSED_FORM
    )
    np.testing.assert_allclose(found, [-0.0005, 0.0005], rtol=1e-3)  # divided: -1, 1
    np.testing.assert_allclose(std, 0.0005, rtol=1e-3)


def test_equal_rewards_have_advantages_of_exactly_zero():
    rows = jnp.array([[0.1, 0.1, 0.1], [1.7, 1.7, 1.7], [0.0, 0.0, 1.0]])
    found, std = rewards.group_advantages(rows, 1e-8, True)
    np.testing.assert_array_equal(std == 0, [True, True, False])
    assert not found[:2].any()
    assert found[2].all()


def test_groups_do_not_mix():
    values = jnp.array([[[0.0, 2.0], [10.0, 14.0]]])
    found, std = rewards.group_advantages(values, 0.0, True)
    np.testing.assert_allclose(found, [[[-1, 1], [-1, 1]]])
    np.testing.assert_allclose(std, [[1, 2]])
