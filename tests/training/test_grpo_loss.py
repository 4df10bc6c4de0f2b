"""Alignment objectives against numbers by hand and against E[A] summed over every block.

The enumerated world: a vocabulary of 5, blocks of two tokens, laws that depend on the token before.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tiger_jax.errors import UserError
from tiger_jax.training import grpo_loss, rewards

VOCAB = 5
END = 2
BLOCKS = np.array([(a, b) for a in range(VOCAB) for b in range(VOCAB)])


def tables(seed):
    """Logits of the first token [V] and of the second after each first [V, V]."""
    rng = np.random.default_rng(seed)
    return {
        "first": jnp.array(rng.normal(size=VOCAB), jnp.float32),
        "second": jnp.array(rng.normal(size=(VOCAB, VOCAB)), jnp.float32),
    }


Q, P = tables(0), tables(1)


def block_logs(table):
    """log-probability of each token of each block, [V * V, 2]."""
    first, second = (jax.nn.log_softmax(table[name]) for name in ("first", "second"))
    return jnp.stack([first[BLOCKS[:, 0]], second[BLOCKS[:, 0], BLOCKS[:, 1]]], axis=-1)


def block_law(table):
    return np.exp(np.asarray(block_logs(table)).sum(axis=-1))


def enumerated(table, end_ids=()):
    """E[A] = sum over prefixes of prod min(p, q); an end token counts for both positions."""
    q1, p1 = jax.nn.softmax(table["first"]), jax.nn.softmax(P["first"])
    q2, p2 = jax.nn.softmax(table["second"]), jax.nn.softmax(P["second"])
    first, second = jnp.minimum(q1, p1), jnp.minimum(q2, p2).sum(axis=-1)
    ends = jnp.isin(jnp.arange(VOCAB), jnp.array(end_ids, jnp.int32))
    return first.sum() + (first * jnp.where(ends, 1.0, second)).sum()


def live_of(end_ids):
    return rewards.before_end(jnp.array(BLOCKS), end_ids)


def flat(tree):
    return np.concatenate([np.ravel(tree["first"]), np.ravel(tree["second"])])


@pytest.mark.parametrize("end_ids", [(), (END,)], ids=["no end", "end token"])
def test_grpo_exact_has_the_gradient_of_the_enumerated_acceptance(end_ids):
    def loss(table):
        log_q, log_p = block_logs(table), block_logs(P)
        each = grpo_loss.grpo_exact(
            log_q[:, None, None], log_p[:, None, None], live_of(end_ids)[:, None, None]
        )
        return (jnp.array(block_law(Q)) * each[:, 0]).sum()

    exact = flat(jax.grad(enumerated)(Q, end_ids))
    np.testing.assert_allclose(-flat(jax.grad(loss)(Q)), exact, atol=1e-6)
    assert np.abs(exact).max() > 0.05


@pytest.mark.parametrize("end_ids", [(), (END,)], ids=["no end", "end token"])
def test_expected_acceptance_is_the_enumerated_acceptance(end_ids):
    def value(table):
        each = grpo_loss.expected_acceptance(
            block_logs(table)[:, None], block_logs(P)[:, None], live_of(end_ids)[:, None]
        )
        return (jnp.array(block_law(P)) * each[:, 0]).sum()

    np.testing.assert_allclose(value(Q), enumerated(Q, end_ids), rtol=1e-6)
    np.testing.assert_allclose(
        flat(jax.grad(value)(Q)), flat(jax.grad(enumerated)(Q, end_ids)), atol=1e-6
    )


def test_the_end_rule_changes_what_is_estimated():
    assert float(enumerated(Q, (END,))) > float(enumerated(Q)) + 0.02


def test_the_papers_gradient_is_another_one():
    log_p, law = block_logs(P), jnp.array(block_law(Q))
    reward = rewards.expected_prefix(jnp.exp(jnp.minimum(log_p - block_logs(Q), 0.0)))
    advantages = reward - (law * reward).sum()

    def loss(table):
        each = grpo_loss.grpo(
            block_logs(table)[:, None, None], advantages[:, None, None],
            jnp.ones((len(BLOCKS), 1, 1, 2), bool),
        )  # fmt: skip
        return (law * each[:, 0]).sum()

    found, exact = -flat(jax.grad(loss)(Q)), flat(jax.grad(enumerated)(Q))
    assert np.abs(found - exact).max() > 0.05
    # It even pushes a token up that q over-proposes and that the exact gradient pushes down.
    over = np.asarray(jax.nn.softmax(Q["first"]) > jax.nn.softmax(P["first"]))
    assert ((found[:VOCAB] > 0) & (exact[:VOCAB] < 0) & over).any()


def test_the_reward_of_the_enumeration_is_expected_prefix():
    log_q, log_p = block_logs(Q), block_logs(P)
    chances = jnp.exp(jnp.minimum(log_p - log_q, 0.0))
    extended = rewards.extend_past_end(chances, jnp.array(BLOCKS), (END,))
    mean = (block_law(Q) * np.asarray(rewards.expected_prefix(extended))).sum()
    np.testing.assert_allclose(mean, enumerated(Q, (END,)), rtol=1e-6)


def test_grpo_by_hand():
    log_q = jnp.array([[[[-1.0, -2.0, -4.0], [-0.5, -0.25, -8.0]]]])
    credit = jnp.array([[[[1, 1, 1], [1, 1, 0]]]], bool)
    advantages = jnp.array([[[1.0, -2.0]]])
    loss, gradient = jax.value_and_grad(
        lambda x: grpo_loss.grpo(x, advantages, credit).sum()
    )(log_q)  # fmt: skip
    np.testing.assert_allclose(loss, -(1 * -7.0 + -2 * -0.75) / 2)  # a sum over K: 5.5
    np.testing.assert_allclose(gradient[0, 0], [[-0.5, -0.5, -0.5], [1.0, 1.0, 0.0]])


def test_a_group_without_spread_has_no_gradient():
    advantages, _ = rewards.group_advantages(jnp.full((1, 1, 3), 0.7), 1e-8, True)
    gradient = jax.grad(
        lambda x: grpo_loss.grpo(x, advantages, jnp.ones((1, 1, 3, 2), bool)).sum()
    )(-jnp.ones((1, 1, 3, 2)))
    assert not gradient.any()


def test_no_gradient_reaches_the_advantage():
    log_q = jnp.full((1, 1, 2, 2), -1.0)
    gradient = jax.grad(
        lambda a: grpo_loss.grpo(log_q, a, jnp.ones((1, 1, 2, 2), bool)).sum()
    )(jnp.ones((1, 1, 2)))  # fmt: skip
    assert not gradient.any()


def test_credit_masks_by_hand():
    live = jnp.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
    accepted = jnp.array([[1, 1, 0, 1, 0], [1, 1, 1, 1, 1], [0, 1, 1, 1, 1]], bool)
    np.testing.assert_array_equal(grpo_loss.credit_mask("block", live, accepted), live)
    np.testing.assert_array_equal(
        grpo_loss.credit_mask("prefix", live, accepted),
        [[1, 1, 1, 0, 0], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0]],
    )
    with pytest.raises(UserError, match="credit: expected one of block, prefix, got tokens"):
        grpo_loss.credit_mask("tokens", live, accepted)


def test_masked_positions_have_no_value_and_no_gradient():
    # Behind the end token the drafts mean nothing: -inf there must not become NaN either.
    log_q = jnp.array([[[[-1.0, -2.0, -jnp.inf]]]])
    log_p = jnp.array([[[[-0.5, -1.0, -jnp.inf]]]])
    live = jnp.array([[[[True, True, False]]]])
    ones = jnp.ones((1, 1, 1))
    losses = (
        lambda x: grpo_loss.grpo(x, ones, live).sum(),
        lambda x: grpo_loss.grpo_exact(x, log_p, live).sum(),
        lambda x: grpo_loss.expected_acceptance(x[0], log_p[0], live[0]).sum(),
    )
    for loss in losses:
        value, gradient = jax.value_and_grad(loss)(log_q)
        assert np.isfinite(value)
        assert float(gradient[0, 0, 0, 2]) == 0
        assert gradient[0, 0, 0, :2].all()


def test_grpo_exact_by_hand():
    # a = 1 (q < p), 1/2, 1 (q < p): prefixes 1, .5, .5 -> to go 2, 1, .5
    q, p = jnp.array([0.2, 0.8, 0.1]), jnp.array([0.5, 0.4, 0.3])
    logs = [jnp.log(x)[None, None, None] for x in (q, p)]
    live = jnp.ones((1, 1, 1, 3), bool)
    gradient = jax.grad(lambda x: grpo_loss.grpo_exact(x, logs[1], live).sum())(logs[0])
    np.testing.assert_allclose(gradient[0, 0, 0], [-2.0, 0.0, -0.5], rtol=1e-6)
    # The second token ends the answer: its prefix of .5 still counts for the third position.
    ended = live.at[..., 2].set(False)
    gradient = jax.grad(lambda x: grpo_loss.grpo_exact(x, logs[1], ended).sum())(logs[0])
    np.testing.assert_allclose(gradient[0, 0, 0], [-2.0, 0.0, 0.0], rtol=1e-6)


def test_expected_acceptance_by_hand():
    q, p = jnp.array([[[0.25, 0.9, 0.1]]]), jnp.array([[[0.5, 0.6, 0.4]]])
    live = jnp.array([[[True, True, True]]])
    log_q, log_p = jnp.log(q), jnp.log(p)
    value = grpo_loss.expected_acceptance
    np.testing.assert_allclose(value(log_q, log_p, live), [[0.5 + 0.5 + 0.125]], rtol=1e-6)
    cut = live.at[..., 2].set(False)
    np.testing.assert_allclose(value(log_q, log_p, cut), [[1.5]], rtol=1e-6)
    np.testing.assert_allclose(value(log_q, log_p, cut, jnp.array([[False]])), [[1.0]], rtol=1e-6)
    gradient = jax.grad(lambda x: value(x, log_p, live).sum())(log_q)
    np.testing.assert_allclose(gradient[0, 0], [1.125, 0.0, 0.125], rtol=1e-6)


def test_a_drafter_equal_to_the_verifier_has_all_accepted_and_no_gradient():
    logs, live = block_logs(P)[:, None], jnp.ones((len(BLOCKS), 1, 2), bool)
    value, gradient = jax.value_and_grad(
        lambda x: grpo_loss.expected_acceptance(x, logs, live).sum()
    )(logs)
    np.testing.assert_allclose(value, 2 * len(BLOCKS))
    assert not gradient.any()


def test_exact_kl_by_hand():
    q, ref = jnp.array([0.5, 0.25, 0.25]), jnp.array([0.25, 0.5, 0.25])
    found = grpo_loss.exact_kl(jnp.log(q) + 3.0, jnp.log(ref))
    np.testing.assert_allclose(found, 0.25 * np.log(2), rtol=1e-5)
    assert not jax.grad(lambda r: grpo_loss.exact_kl(jnp.log(q), r))(jnp.log(ref)).any()
    forbidden = [jnp.append(jnp.log(x), -1e30) for x in (q, ref)]
    value, gradient = jax.value_and_grad(grpo_loss.exact_kl)(*forbidden)
    np.testing.assert_allclose(value, 0.25 * np.log(2), rtol=1e-5)
    assert np.isfinite(gradient).all()


def test_exact_kl_has_the_gradient_of_the_score_function():
    logits, ref = Q["first"], P["first"]
    law = np.asarray(jax.nn.softmax(logits), np.float64)
    ratio = np.asarray(jax.nn.log_softmax(logits) - jax.nn.log_softmax(ref), np.float64)
    draws = np.random.default_rng(3).choice(VOCAB, size=200_000, p=law / law.sum())
    scores = np.eye(VOCAB)[draws] - law
    samples = ratio[draws][:, None] * scores
    error = samples.std(axis=0) / np.sqrt(len(draws))
    exact = np.asarray(jax.grad(grpo_loss.exact_kl)(logits, ref))
    assert (np.abs(samples.mean(axis=0) - exact) < 4 * error).all()
    # k1 as a loss would give the mean score: zero, not this gradient.
    assert np.abs(scores.mean(axis=0)).max() < 0.005
    assert np.abs(exact).max() > 0.1
