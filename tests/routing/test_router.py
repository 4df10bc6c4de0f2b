"""Scores, the k best and the gates, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tiger_jax.errors import UserError
from tiger_jax.ops.sampling import NEVER
from tiger_jax.routing.bank import Bank, BankLayout
from tiger_jax.routing.router import (
    INIT_SCALE,
    Routed,
    RouterConfig,
    choose,
    init_router,
    look_over,
    make_bank,
    route_scores,
    take_routed,
)

TOKENS = jnp.asarray([[[1.0, 0.0], [0.0, 2.0], [3.0, 3.0], [9.0, 9.0]]])
LAYOUT = BankLayout(
    rows=jnp.asarray([[0, 1, 2, -1]]), sources=jnp.asarray([[5, 6, 7, 0]]),
    positions=jnp.asarray([[5, 6, 7, 0]]),
    images=jnp.asarray([[0, 0, 0, -1]]), regions=jnp.asarray([[0, 0, 0, -1]]),
    region_sizes=jnp.asarray([[3.0]]),
)  # fmt: skip
ROUTER = {
    "query": {"kernel": jnp.asarray([[1.0, 0.0], [0.0, 2.0]])},
    "key": {"kernel": jnp.asarray([[0.0, 1.0], [1.0, 0.0]])},
    "saliency": jnp.asarray([2.0, -1.0]),
}


def test_scores_by_hand():
    """q = (1, 2 * 3) = (1, 6); keys swap the two numbers; over sqrt 2."""
    bank = make_bank(ROUTER, TOKENS, LAYOUT)
    np.testing.assert_array_equal(bank.keys[0, :3], [[0, 1], [2, 0], [3, 3]])
    scores = route_scores(RouterConfig(), ROUTER, jnp.asarray([[[1.0, 3.0]]]), bank)
    np.testing.assert_allclose(scores[0, 0, :3], np.array([6, 2, 21]) / np.sqrt(2), rtol=1e-6)
    assert scores[0, 0, 3] == np.float32(NEVER)
    # with kernels taken as [out, in] the first would be the same, with D for sqrt D half as large


def test_image_only_asks_the_saliency_vector():
    bank = make_bank(ROUTER, TOKENS, LAYOUT)
    hidden = jnp.asarray([[[1.0, 3.0], [7.0, 7.0]]])
    scores = route_scores(RouterConfig("image_only"), ROUTER, hidden, bank)
    want = np.array([-1, 4, 3]) / np.sqrt(2)
    np.testing.assert_allclose(scores[0, :, :3], [want, want], rtol=1e-6)


def test_random_has_its_own_keys_and_no_router():
    bank = make_bank(None, TOKENS, LAYOUT)
    keys = jax.random.split(jax.random.key(0), (1, 2))
    hidden = jnp.zeros((1, 2, 2))
    scores = route_scores(RouterConfig("random"), None, hidden, bank, keys)
    again = route_scores(RouterConfig("random"), None, hidden + 1, bank, keys)
    np.testing.assert_array_equal(scores, again)
    assert (np.asarray(scores[0, 0, :3]) != np.asarray(scores[0, 1, :3])).all()
    assert (np.asarray(scores[0, :, 3]) == np.float32(NEVER)).all()


def test_random_scores_do_not_depend_on_the_bucket():
    """A longer bank only adds scores behind: a request routes alike in any batch."""
    keys = jax.random.split(jax.random.key(3), (1, 1))
    scores = []
    for size in (64, 128):
        bank = Bank(
            tokens=jnp.zeros((1, size, 2)), keys=jnp.zeros((1, size, 2)),
            sources=jnp.zeros((1, size), jnp.int32),
            positions=jnp.zeros((1, size), jnp.int32), valid=jnp.ones((1, size), bool),
        )  # fmt: skip
        scores.append(route_scores(RouterConfig("random"), None, jnp.zeros((1, 1, 2)), bank, keys))
    np.testing.assert_array_equal(scores[0][0, 0], scores[1][0, 0, :64])


def test_ties_go_to_the_lower_index_and_order_is_the_pictures():
    scores = jnp.asarray([[[1.0, 5.0, 1.0, 1.0, 7.0]]])
    routed = choose(scores, 3)
    assert routed.indices.tolist() == [[[0, 1, 4]]]  # by score it would be 4, 1, 0
    assert routed.valid.all()


def test_padding_never_wins():
    scores = jnp.asarray([[[NEVER, -1e20, NEVER, 3.0]]])
    routed = choose(scores, 3)
    assert routed.indices[0, 0, :2].tolist() == [1, 3]
    assert routed.valid.tolist() == [[[True, True, False]]]


@pytest.mark.parametrize("k", [4, 7])
def test_fewer_tokens_than_k(k):
    routed = choose(jnp.asarray([[[2.0, 1.0, 3.0]]]), k)
    assert routed.indices.shape == (1, 1, k)
    assert routed.indices[0, 0, :3].tolist() == [0, 1, 2]
    assert routed.valid.tolist() == [[[True] * 3 + [False] * (k - 3)]]


@pytest.mark.parametrize(
    ("gate", "values"),
    [("none", [1, 1]), ("straight_through", [1, 1]), ("sigmoid", [0.5, 1 / (1 + np.exp(-1.0))])],
)
def test_gates(gate, values):
    """Routed tokens 0 and 2 with scores 0 and 1, and the gradient of their sum."""
    bank = make_bank(None, jnp.ones((1, 3, 1)), BankLayout(
        rows=jnp.asarray([[0, 1, 2]]), sources=jnp.asarray([[5, 6, 7]]),
        positions=jnp.asarray([[5, 6, 7]]),
        images=jnp.zeros((1, 3), jnp.int32), regions=jnp.zeros((1, 3), jnp.int32),
        region_sizes=jnp.asarray([[3.0]]),
    ))  # fmt: skip
    routed = Routed(indices=jnp.asarray([[[0, 2]]]), valid=jnp.ones((1, 1, 2), bool))
    scores = jnp.asarray([[[0.0, -2.0, 1.0]]])

    def total(scores):
        return take_routed(bank, routed, scores, gate)[0].sum()

    tokens, positions = take_routed(bank, routed, scores, gate)
    np.testing.assert_allclose(tokens[0, 0, :, 0], values, rtol=1e-6)
    assert positions.tolist() == [[[5, 7]]]
    p = np.exp([0.0, -2.0, 1.0]) / np.exp([0.0, -2.0, 1.0]).sum()
    both = p[0] + p[2]
    sigmoid = 1 / (1 + np.exp(-np.array([0.0, 1.0])))
    slopes = sigmoid * (1 - sigmoid)
    want = {
        "none": [0, 0, 0],
        "straight_through": [p[0] * (1 - both), -p[1] * both, p[2] * (1 - both)],
        "sigmoid": [slopes[0], 0, slopes[1]],
    }[gate]
    np.testing.assert_allclose(jax.grad(total)(scores)[0, 0], want, atol=1e-6)


@pytest.mark.parametrize(
    ("field", "value"),
    [("selector", "best"), ("query", "full"), ("gate", "hard"), ("pooled_tokens", 2),
     ("routed_tokens", 0)],
)  # fmt: skip
def test_config_refuses(field, value):
    with pytest.raises(UserError, match=f"{field}: expected"):
        RouterConfig(**{field: value})


def test_full_reads_the_prompt_itself():
    assert RouterConfig("full", query="text_only").stream_query == "full"
    assert RouterConfig("random", query="text_only").stream_query == "text_only"


def test_fresh_router():
    router = init_router(jax.random.key(0), 64)
    query, key = router["query"]["kernel"], router["key"]["kernel"]
    assert (np.asarray(query) != np.asarray(key)).all()
    for kernel in (query, key):
        assert float(jnp.std(kernel)) == pytest.approx(INIT_SCALE, rel=0.05)
    assert router["saliency"].shape == (64,)


def test_looks_by_hand():
    """Width 4, so every head has one number; identity weights. Head 0 sees keys 0 and ln 3 with
    query 1: weights 1/4 and 3/4; the padded row would take nearly all."""
    eye = {"kernel": jnp.eye(4)}
    router = {
        "query": eye,
        "key": eye,
        "look_0": dict.fromkeys(("query", "key", "value", "out"), eye),
    }
    tokens = jnp.zeros((1, 3, 4)).at[0, 1, 0].set(jnp.log(3.0)).at[0, 2].set(50.0)
    rows = jnp.asarray([[0, 1, -1]])
    layout = LAYOUT.replace(rows=rows, sources=rows, positions=rows, images=rows, regions=rows)
    bank = make_bank(router, tokens, layout)
    state = look_over(router, jnp.asarray([[[1.0, 5.0, 0.0, 0.0]]]), bank)
    np.testing.assert_allclose(state, [[[1 + 0.75 * np.log(3), 5, 0, 0]]], rtol=1e-6)
