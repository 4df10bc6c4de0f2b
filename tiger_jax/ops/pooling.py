"""Means over squares of a tile's rows, each tile with squares of its own size.

N: tiles, n: rows on one side of a tile, D: width.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int


def pool_squares(rows: Float[Array, "N nn D"], strides: Int[Array, "N"]) -> Float[Array, "N nn D"]:
    """The mean of every square of `stride` x `stride` rows in row y, column x of its number.

    As torch's avg_pool2d with ceil_mode and without count_include_pad: a square that the tile's
    edge cuts is the mean of what is left of it. Rows behind the last square are 0. A stride of 1
    (or 0, padding) gives the tile bit by bit. Sums are float32, first along columns, then along
    rows: all lines of a square are equally long, so the mean of their means is the mean.
    """
    count, area, width = rows.shape
    side = round(area**0.5)
    square = rows.reshape(count, side, side, width).astype(jnp.float32)
    shares = _shares(jnp.maximum(strides, 1), side)
    exact = lax.Precision.HIGHEST
    square = jnp.einsum("njx,nyxd->nyjd", shares, square, precision=exact)
    square = jnp.einsum("niy,nyjd->nijd", shares, square, precision=exact)
    means = square.reshape(rows.shape).astype(rows.dtype)
    return jnp.where((strides <= 1)[:, None, None], rows, means)


def _shares(strides: Int[Array, "N"], side: int) -> Float[Array, "N n n"]:
    """[t, i, y]: the share of line y in square i, along one side."""
    lines = jnp.arange(side)
    member = (lines[None] // strides[:, None])[:, None] == lines[None, :, None]
    sizes = member.sum(axis=-1, keepdims=True)
    return member / jnp.maximum(sizes, 1).astype(jnp.float32)
