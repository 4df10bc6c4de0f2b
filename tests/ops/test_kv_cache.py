"""Writing and moving cache rows against a numpy loop; every other row keeps its bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tiger_jax.ops.kv_cache import KVCache, append_rows, move_rows

HEADS, CAPACITY, DIM = 2, 12, 4
STARTS = {1: [5], 3: [0, 7, 3]}


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("batch", [1, 3])
def test_append_equals_a_loop(batch, count, jit):
    rows, new = draw(batch, HEADS, CAPACITY, DIM), draw(batch, count, HEADS, DIM)
    starts = STARTS[batch]
    wanted = rows.copy()
    for b in range(batch):
        for t in range(count):
            wanted[b, :, starts[b] + t] = new[b, t]
    append = jax.jit(append_rows) if jit else append_rows
    got = append(jnp.asarray(rows), jnp.asarray(new), jnp.asarray(starts))
    assert np.array_equal(got, wanted)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("batch", [1, 3])
def test_append_up_to_the_spare_row(batch, count):
    """The last place that the contract allows: starts + T = C - 1."""
    rows, new = draw(batch, HEADS, CAPACITY, DIM), draw(batch, count, HEADS, DIM)
    start = CAPACITY - 1 - count
    wanted = rows.copy()
    wanted[:, :, start : start + count] = new.swapaxes(1, 2)
    got = append_rows(jnp.asarray(rows), jnp.asarray(new), jnp.full((batch,), start))
    assert np.array_equal(got, wanted)


@pytest.mark.parametrize("batch", [1, 3])
def test_rows_take_the_dtype_of_the_cache(batch):
    rows = jnp.zeros((batch, HEADS, CAPACITY, DIM), jnp.bfloat16)
    new = draw(batch, 2, HEADS, DIM)
    got = append_rows(rows, jnp.asarray(new), jnp.asarray(STARTS[batch]))
    assert got.dtype == jnp.bfloat16
    start = STARTS[batch][0]
    assert np.array_equal(got[0, :, start], jnp.asarray(new[0, 0], jnp.bfloat16))


@pytest.mark.parametrize("path", [[[0], [0], [0]], [[0, 2, 3], [0, 1, 2], [1, 3, 4]]], ids=str)
@pytest.mark.parametrize("batch", [1, 3])
def test_move_equals_a_loop(batch, path):
    """All layers, keys and values apart; sources are read before any row is overwritten."""
    starts, path = STARTS[batch], np.array(path[:batch])
    arrays = [draw(batch, HEADS, CAPACITY, DIM, seed=i) for i in range(4)]
    wanted = [rows.copy() for rows in arrays]
    for old, new in zip(arrays, wanted, strict=True):
        for b in range(batch):
            for j in range(path.shape[1]):
                new[b, :, starts[b] + j] = old[b, :, starts[b] + path[b, j]]
    leaves = [jnp.asarray(rows) for rows in arrays]
    cache = KVCache(keys=tuple(leaves[:2]), values=tuple(leaves[2:]))
    got = jax.jit(move_rows)(cache, jnp.asarray(starts), jnp.asarray(path))
    for ours, expected in zip((*got.keys, *got.values), wanted, strict=True):
        assert np.array_equal(ours, expected)


def test_an_empty_cache():
    cache = KVCache.zeros(3, (2, HEADS, CAPACITY, DIM), jnp.bfloat16)
    assert cache.capacity == CAPACITY
    assert len(cache.keys) == len(cache.values) == 3
    assert {leaf.dtype for leaf in jax.tree.leaves(cache)} == {jnp.dtype(jnp.bfloat16)}
    assert not any(leaf.any() for leaf in jax.tree.leaves(cache))
