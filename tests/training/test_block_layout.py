"""Packing of questions into rows, and the pass over a shared prefix."""

import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tiger_jax.data import packing
from tiger_jax.ops import attention
from tiger_jax.ops.attention import attend
from tiger_jax.training import block_layout


def test_pack_rows_by_hand():
    segments, offsets = packing.pack_rows(np.array([[4, 2, 3], [1, 1, 1]]), multiple=5)
    assert segments.tolist() == [[1, 1, 1, 1, 2, 2, 3, 3, 3, 0], [1, 2, 3, *[0] * 7]]
    assert offsets.tolist() == [[0, 1, 2, 3, 0, 1, 0, 1, 2, 0], [0] * 10]


@settings(max_examples=30, deadline=None)
@given(hnp.arrays(np.int32, st.tuples(st.integers(1, 4), st.integers(1, 4)),
                  elements=st.integers(1, 7)))  # fmt: skip
def test_every_token_is_packed_once_and_in_order(lengths):
    batch, count = lengths.shape
    values = np.arange(1, batch * count * 7 + 1).reshape(batch, count, 7)
    packed = packing.take_packed(values, *packing.pack_rows(lengths, multiple=4))
    assert packed.shape[1] % 4 == 0
    for row in range(batch):
        expected = np.concatenate([values[row, n, : lengths[row, n]] for n in range(count)])
        np.testing.assert_array_equal(packed[row][packed[row] > 0], expected)
        assert (packed[row, len(expected) :] == 0).all()


def test_mask_by_hand():
    mask = block_layout.packed_mask(jnp.array([[1, 1, 2, 0]]), jnp.array([1]), 2)
    expected = [
        [1, 0, 1, 0, 0, 0],
        [1, 0, 1, 1, 0, 0],
        [1, 0, 0, 0, 1, 0],
        [1, 0, 0, 0, 0, 1],
    ]
    np.testing.assert_array_equal(mask[0], np.array(expected, bool))


def test_dense_attention_is_the_cached_one():
    rng = np.random.default_rng(0)
    queries = jnp.asarray(rng.normal(size=(2, 3, 4, 8)), jnp.float32)
    keys, values = jnp.asarray(rng.normal(size=(2, 2, 5, 2, 8)), jnp.float32)
    mask = jnp.asarray(rng.random((2, 3, 5)) < 0.6).at[:, :, 0].set(True)
    got = attention.attend_dense(queries, keys, values, mask).reshape(2, 3, 32)
    want = attend(queries, keys.swapaxes(1, 2), values.swapaxes(1, 2), mask)
    np.testing.assert_allclose(got, want, atol=2e-6)
