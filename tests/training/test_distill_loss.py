"""Distillation losses against numbers by hand, the full divergence, and empty buckets."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tiger_jax.ops.sampling import NEVER
from tiger_jax.training.distill_loss import (
    attention_target,
    forward_kl,
    route_cross_entropy,
    same_segment,
    window_mean,
)

Q = np.array([0.2, 0.3, 0.4, 0.1], np.float32)
P = np.array([0.5, 0.3, 0.1, 0.1], np.float32)
EXACT = 0.5 * math.log(2.5) + 0.1 * math.log(0.25)  # KL(P || Q); tokens 1 and 3 agree


def kl(q, ids, p, dtype=jnp.float32):
    with np.errstate(divide="ignore"):
        logs = np.log(np.array(p, np.float32))
    return forward_kl(jnp.log(jnp.array(q)), jnp.array(ids, jnp.int32), jnp.array(logs, dtype))


@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float32, 1e-6), (jnp.float16, 1e-3)])
def test_everything_kept_is_the_exact_divergence(dtype, tolerance):
    np.testing.assert_allclose(kl(Q, [2, 0, 3, 1], P[[2, 0, 3, 1]], dtype), EXACT, atol=tolerance)


def test_the_rest_is_one_bucket():
    # p: .5 .3 | .2   q: .2 .3 | .5; without the bucket .458, the exact one is .320.
    expected = 0.5 * math.log(0.5 / 0.2) + 0.2 * math.log(0.2 / 0.5)
    np.testing.assert_allclose(kl(Q, [0, 1], P[:2]), expected, rtol=1e-5)
    assert expected < EXACT


def test_gradient_is_q_minus_p_of_the_bucket_shared_by_q():
    gradient = jax.grad(lambda x: forward_kl(x, jnp.array([0, 1]), jnp.log(P[:2])))(jnp.log(Q))
    # Inside the bucket (q .4, .1 of .5; p .2) the student's own proportions stay.
    expected = Q - np.array([0.5, 0.3, 0.2 * 0.4 / 0.5, 0.2 * 0.1 / 0.5])
    np.testing.assert_allclose(gradient, expected, atol=1e-6)


def test_padding_counts_nothing_and_does_not_wrap_to_the_last_token():
    padded = kl(Q, [0, -1, 1, -1], [0.5, 0.0, 0.3, 0.0])
    np.testing.assert_allclose(padded, kl(Q, [0, 1], P[:2]), rtol=1e-6)
    np.testing.assert_allclose(kl(Q, [-1, -1], [0.0, 0.0]), 0.0, atol=1e-6)


@pytest.mark.parametrize(
    ("kept", "outside", "expected"),
    [
        ([0.6, 0.4], [2.0, 0.5], 1.47299),  # the teacher's: its tokens against q .0784, .2131
        ([0.6, 0.39999], [-1e4, -1e4], 0.24025),  # both, but for rounding
        ([0.6, 0.39999], [NEVER, NEVER], 0.24025),  # tokens that nobody may draw: no bucket
        ([0.5, 0.3], [-1e4, -1e4], 19.72096),  # the student's: .2 at the floor of -100, not at -1e4
    ],
)
def test_an_empty_rest_leaves_loss_and_gradient_finite(kept, outside, expected):
    logits = jnp.array([0.0, 1.0, *outside])
    logs = jnp.log(jnp.array(kept))
    value, gradient = jax.value_and_grad(forward_kl)(logits, jnp.array([0, 1]), logs)
    np.testing.assert_allclose(value, expected, atol=1.5e-3)
    assert np.isfinite(gradient).all()


def test_half_precision_of_the_teacher_neither_adds_nor_loses_mass():
    # float16 log-probs of 64 equal tokens sum to 0.9998: no bucket of 2e-4 at log q = -100.
    logs = jnp.full((64,), math.log(1 / 64), jnp.float16)
    value = forward_kl(jnp.zeros(64), jnp.arange(64), logs)
    assert abs(float(value)) < 1e-5


def test_small_rest_of_the_student_is_summed_not_subtracted():
    # q outside = e^-30: 1 - sum q would be 0 in float32.
    logits, top = jnp.array([0.0, -30.0]), jnp.log(jnp.array([0.75]))
    expected = 0.75 * math.log(0.75) + 0.25 * (math.log(0.25) + 30)
    np.testing.assert_allclose(forward_kl(logits, jnp.array([0]), top), expected, rtol=1e-5)


def test_no_gradient_reaches_the_teacher_and_leading_axes_are_free():
    logits, ids = jnp.zeros((2, 3, 4)), jnp.zeros((2, 3, 2), jnp.int32).at[..., 1].set(1)
    logs = jnp.broadcast_to(jnp.log(P[:2])[None, None], (2, 3, 2))
    teacher = jax.grad(lambda t: forward_kl(logits, ids, t).sum())(logs)
    assert forward_kl(logits, ids, logs).shape == (2, 3)
    assert not teacher.any()


def route(scores, ids, weights):
    arrays = (jnp.array(scores), jnp.array(ids, jnp.int32), jnp.array(weights))
    return route_cross_entropy(*(a[None, None] for a in arrays))[0, 0]


def test_route_cross_entropy_by_hand():
    scores = np.log([0.1, 0.2, 0.3, 0.4]).astype(np.float32)
    full = -(0.7 * math.log(0.4) + 0.3 * math.log(0.1))
    np.testing.assert_allclose(route(scores, [3, 0], [0.7, 0.3]), full, rtol=1e-5)
    # .2 of the attention lies on rows 1 and 2 together, of which the router gives .5
    coarse = -(0.5 * math.log(0.4) + 0.3 * math.log(0.1) + 0.2 * math.log(0.5))
    np.testing.assert_allclose(route(scores, [3, 0], [0.5, 0.3]), coarse, rtol=1e-5)


def test_padded_bank_rows_are_no_bucket():
    scores = [math.log(0.25), math.log(0.75), NEVER, NEVER]
    value, gradient = jax.value_and_grad(lambda s: route(s, [0, 1, -1], [0.5, 0.4999, 0.0]))(
        jnp.array(scores)
    )
    # The missing 1e-4 belongs to no row; at NEVER it would cost 1e26.
    np.testing.assert_allclose(value, -0.5 * math.log(0.25 * 0.75), atol=1e-3)
    np.testing.assert_allclose(gradient, [-0.25, 0.25, 0, 0], atol=1e-3)


@pytest.mark.parametrize("scores", [[0.3, 1.0, -2.0], [NEVER, NEVER, NEVER]])
def test_no_attention_no_loss(scores):
    for ids in ([0, 1], [-1, -1]):
        value, gradient = jax.value_and_grad(lambda s, i=ids: route(s, i, [0.0, 0.0]))(
            jnp.array(scores)
        )
        assert float(value) == 0
        assert not gradient.any()


def test_attention_target():
    attention = jnp.array([[0.1, 0.2, 0.3], [0.0, 0.0, 0.0], [1e-14, 2e-14, 0.0]])
    expected = [[1 / 36, 8 / 36, 27 / 36], [0, 0, 0], [1 / 9, 8 / 9, 0]]
    np.testing.assert_allclose(attention_target(attention, 3.0), expected, rtol=1e-5)
    np.testing.assert_allclose(
        attention_target(attention, 1.0)[0], [1 / 6, 1 / 3, 1 / 2], rtol=1e-5
    )


def test_window_mean_stays_inside_the_segment():
    attention = jnp.array([[[1.0], [3.0], [8.0], [20.0], [40.0]]])
    segments = jnp.array([[1, 1, 2, 2, 0]])
    valid = same_segment(segments, 3)
    np.testing.assert_array_equal(valid[0], [[1, 1, 0], [1, 0, 0], [1, 1, 0], [1, 0, 0], [0, 0, 0]])
    np.testing.assert_allclose(window_mean(attention, valid)[0, :, 0], [2, 3, 14, 20, 0])


def test_window_mean_past_the_last_position_counts_nothing():
    attention = jnp.array([[[1.0], [3.0], [8.0]]])
    means = window_mean(attention, jnp.ones((1, 3, 2), bool))[0, :, 0]
    np.testing.assert_allclose(means, [2, 5.5, 8])  # the last: not 4
