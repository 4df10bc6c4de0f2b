"""Losses of draft heads: numbers by hand, whole-vocabulary formulas, and their gradients."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tiger_jax.ops.sampling import NEVER
from tiger_jax.training.head_loss import (
    cross_entropy,
    draft_cross_entropy,
    hard_cross_entropy,
    list_mle,
    probability_l1,
    smooth_l1,
)

Q = np.array([0.2, 0.3, 0.4, 0.1], np.float32)
P = np.array([0.5, 0.3, 0.1, 0.1], np.float32)
LOGITS = jnp.log(jnp.array(Q))


def kept(ids, probabilities):
    with np.errstate(divide="ignore"):
        logs = np.log(np.array(probabilities, np.float32))
    return jnp.array(ids, jnp.int32), jnp.array(logs)


def test_smooth_l1_is_square_inside_one_and_straight_outside():
    prediction, target = jnp.array([[0.5, 3.0, -2.0, 0.0]]), jnp.array([[0.0, 1.0, 0.0, 1.0]])
    # .125, 1.5, 1.5, .5; half the squared error would be 1.156, the sum 3.625
    np.testing.assert_allclose(smooth_l1(prediction, target), [0.90625], rtol=1e-6)
    ours = jax.grad(lambda x, y: smooth_l1(x, y).sum(), argnums=(0, 1))(prediction, target)
    np.testing.assert_allclose(ours[0], [[0.125, 0.25, -0.25, -0.25]], rtol=1e-6)
    assert not ours[1].any()


def test_smooth_l1_of_bfloat16_is_averaged_in_float32():
    ones = jnp.ones((2, 4096), jnp.bfloat16)
    value = smooth_l1(ones * 0.25, ones * 0)
    assert value.dtype == jnp.float32
    np.testing.assert_allclose(value, [0.03125] * 2, rtol=1e-6)


def test_cross_entropy_of_everything_kept():
    value = cross_entropy(LOGITS, *kept([2, 0, 3, 1], P[[2, 0, 3, 1]]))
    np.testing.assert_allclose(value, -(P * np.log(Q)).sum(), rtol=1e-6)


def test_cross_entropy_with_a_bucket_and_padding():
    # p .5 .3 | .2, q .2 .3 | .5; without the bucket 1.166, the whole laws 1.488
    expected = -(0.5 * math.log(0.2) + 0.3 * math.log(0.3) + 0.2 * math.log(0.5))
    np.testing.assert_allclose(cross_entropy(LOGITS, *kept([0, 1], P[:2])), expected, rtol=1e-6)
    padded = cross_entropy(LOGITS, *kept([-1, 0, 1], [0.0, 0.5, 0.3]))
    np.testing.assert_allclose(padded, expected, rtol=1e-6)
    assert abs(float(cross_entropy(LOGITS, *kept([-1, -1], [0.0, 0.0])))) < 1e-6


DRAFT = jnp.array([math.log(0.5), NEVER, math.log(0.3), math.log(0.2)])


def test_draft_cross_entropy_restricts_and_renormalises():
    # p over 0, 2, 3: .5 .1 .1 of .7; with the rest kept undivided the loss would be .7 as large
    loss, counted = draft_cross_entropy(DRAFT, *kept([0, 1, 2, 3], P))
    expected = -(0.5 * math.log(0.5) + 0.1 * math.log(0.3) + 0.1 * math.log(0.2)) / 0.7
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    assert counted
    gradient = jax.grad(lambda x: draft_cross_entropy(x, *kept([0, 1, 2, 3], P))[0])(DRAFT)
    expected = np.array([0.5, 0.0, 0.3, 0.2]) - np.array([0.5, 0.0, 0.1, 0.1]) / 0.7
    np.testing.assert_allclose(gradient, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("ids", "law", "counts"),
    [
        ([1, 0], [0.6, 0.4], False),  # the likeliest cannot be drafted
        ([0, 1], [0.4, 0.6], False),  # the same, not in order
        ([0, 1], [0.6, 0.4], True),
        ([-1, 0], [0.0, 0.9], True),
        ([-1, -1], [0.9, 0.0], False),  # padding, whatever stands in its place
    ],
)
def test_positions_that_are_not_counted(ids, law, counts):
    def loss(x):
        return draft_cross_entropy(x, *kept(ids, law))

    value, counted = loss(DRAFT)
    gradient = jax.grad(lambda x: loss(x)[0])(DRAFT)
    assert bool(counted) is counts
    np.testing.assert_allclose(value, math.log(2) if counts else 0.0, atol=1e-6)
    expected = [-0.5, 0, 0.3, 0.2] if counts else [0, 0, 0, 0]
    np.testing.assert_allclose(gradient, expected, atol=1e-6)


def test_draft_cross_entropy_with_the_whole_vocabulary_is_the_cross_entropy():
    law = kept([0, 1, 2, 3], P)
    np.testing.assert_allclose(
        draft_cross_entropy(LOGITS, *law)[0], cross_entropy(LOGITS, *law), rtol=1e-6
    )


def test_probability_l1():
    # .3 + 0 + .3 + 0; the bucket of tokens 2 and 3 has p .2 against q .5
    np.testing.assert_allclose(probability_l1(LOGITS, *kept([0, 1, 2, 3], P)), 0.6, atol=1e-6)
    np.testing.assert_allclose(probability_l1(LOGITS, *kept([0, 1], P[:2])), 0.6, atol=1e-6)
    np.testing.assert_allclose(probability_l1(LOGITS, *kept([1, 3], P[[1, 3]])), 0.0, atol=1e-6)
    # padding of log-probability 0 would add 1 an entry
    padded = probability_l1(LOGITS, *kept([0, -1, 1, -1], [0.5, 0.0, 0.3, 0.0]))
    np.testing.assert_allclose(padded, 0.6, atol=1e-6)
    apart = probability_l1(jnp.array([50.0, 0.0]), *kept([0, 1], [0.0, 1.0]))
    np.testing.assert_allclose(apart, 2.0, atol=1e-6)


def test_list_mle_by_hand():
    # order 2, 0, 1 of q .4 .2 .3: (.4 / .9) (.2 / .5) (1); over the vocabulary .4 .2/.6 .3/.4
    expected = -math.log(0.4 / 0.9) - math.log(0.2 / 0.5)
    np.testing.assert_allclose(list_mle(LOGITS, jnp.array([2, 0, 1])), expected, rtol=1e-6)
    np.testing.assert_allclose(list_mle(LOGITS, jnp.array([2, 0, 1, 3]), n=3), expected, rtol=1e-6)
    reverse = list_mle(LOGITS, jnp.array([1, 0, 2]))
    np.testing.assert_allclose(reverse, -math.log(0.3 / 0.9) - math.log(0.2 / 0.6), rtol=1e-6)


def test_list_mle_leaves_out_padding_and_what_cannot_be_drafted():
    expected = list_mle(LOGITS, jnp.array([2, 0]))
    np.testing.assert_allclose(list_mle(LOGITS, jnp.array([2, -1, 0, -1])), expected, rtol=1e-6)
    barred = jnp.array([*np.log(Q)[:3], NEVER])
    value, gradient = jax.value_and_grad(list_mle)(barred, jnp.array([3, 2, 0]))
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_allclose(gradient, [1 / 3, 0, -1 / 3, 0], atol=1e-6)
    value, gradient = jax.value_and_grad(list_mle)(barred, jnp.array([-1, 3]))
    assert float(value) == 0
    assert not gradient.any()


def test_hard_cross_entropy():
    logits = jnp.stack([LOGITS, LOGITS, DRAFT])
    values = hard_cross_entropy(logits, jnp.array([2, -1, 1]))
    np.testing.assert_allclose(values, [-math.log(0.4), 0, 0], rtol=1e-6)
    gradient = jax.grad(lambda x: hard_cross_entropy(x, jnp.array([2, -1, 1])).sum())(logits)
    expected = np.zeros((3, 4))
    expected[0] = Q - np.array([0, 0, 1, 0])
    np.testing.assert_allclose(gradient, expected, atol=1e-6)


def whole_cross_entropy(x, p):
    return -(p * jax.nn.log_softmax(x)).sum(axis=-1)


def whole_l1(x, p):
    return jnp.abs(jax.nn.softmax(x) - p).sum(axis=-1)


def whole_order(x, p):
    ordered = jnp.take_along_axis(x, jnp.argsort(-p, axis=-1), axis=-1)
    return sum(
        jax.nn.logsumexp(ordered[..., j:], axis=-1) - ordered[..., j] for j in range(x.shape[-1])
    )


CASES = {
    "cross_entropy": (cross_entropy, whole_cross_entropy),
    "draft_cross_entropy": (lambda *a: draft_cross_entropy(*a)[0], whole_cross_entropy),
    "probability_l1": (probability_l1, whole_l1),
    "list_mle": (lambda x, ids, logs: list_mle(x, ids, n=ids.shape[-1]), whole_order),
}


@pytest.mark.parametrize("name", CASES)
def test_everything_kept_has_the_value_and_the_gradient_of_the_whole_law(name):
    ours, whole = CASES[name]
    keys = jax.random.split(jax.random.key(0))
    logits = 2 * jax.random.normal(keys[0], (2, 3, 12))
    law = jax.nn.softmax(2 * jax.random.normal(keys[1], (2, 3, 12)))
    top, ids = jax.lax.top_k(law, 12)
    value, gradient = jax.value_and_grad(lambda x: ours(x, ids, jnp.log(top)).sum())(logits)
    expected, expected_gradient = jax.value_and_grad(lambda x: whole(x, law).sum())(logits)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(gradient, expected_gradient, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_no_gradient_reaches_the_verifier_and_extremes_stay_finite(name):
    ours, _ = CASES[name]
    logits = jnp.array([[0.0, 1.0, -1e4, NEVER], [0.0, 80.0, -80.0, 3.0]])
    ids, logs = jnp.array([[0, 1], [2, 0]]), jnp.log(jnp.array([[0.6, 0.3999], [0.9, 0.1]]))
    value, gradient = jax.value_and_grad(lambda x: ours(x, ids, logs).sum())(logits)
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()
    assert not jax.grad(lambda t: ours(logits, ids, t).sum())(logs).any()
