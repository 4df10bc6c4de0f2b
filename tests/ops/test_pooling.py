"""Means over squares of rows, against the definition."""

import jax
import jax.numpy as jnp
import numpy as np

from tiger_jax.ops.pooling import pool_squares

SIDE, WIDTH = 5, 3


def means(tile, stride):
    """Square by square; what the edge cuts counts as what is left of it."""
    square, wanted = tile.reshape(SIDE, SIDE, WIDTH), np.zeros((SIDE, SIDE, WIDTH))
    for i, y in enumerate(range(0, SIDE, stride)):
        for j, x in enumerate(range(0, SIDE, stride)):
            wanted[i, j] = square[y : y + stride, x : x + stride].mean(axis=(0, 1))
    return wanted.reshape(-1, WIDTH)


def test_each_tile_has_its_own_squares():
    """Strides that divide the side, that do not, and that are larger than it."""
    strides = np.array([1, 2, 3, 4, 5, 9])
    tiles = np.random.default_rng(0).normal(size=(6, SIDE**2, WIDTH)).astype(np.float32)
    got = np.asarray(jax.jit(pool_squares)(tiles, strides))
    for tile, stride, own in zip(tiles, strides, got, strict=True):
        np.testing.assert_allclose(own, means(tile, stride), atol=1e-6)


def test_a_stride_of_one_changes_no_bit():
    """Padding (0) neither; another width of numbers stays."""
    tiles = np.random.default_rng(0).normal(size=(2, 4, WIDTH)) * 1e3
    tiles = jnp.asarray(tiles, jnp.bfloat16)
    got = pool_squares(tiles, jnp.array([1, 0]))
    assert got.dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.asarray(got), np.asarray(tiles))
