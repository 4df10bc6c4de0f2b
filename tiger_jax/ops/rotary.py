"""Rotary position embedding (Su et al., arXiv 2104.09864), half-split form, of one axis or several.

B: batch, T: tokens, H: heads, d: head dim, A: axes of a position (time, row, column).
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int


def rotary_tables(
    positions: Int[Array, "B T *A"], head_dim: int, theta: float, dtype: DTypeLike,
    section: Sequence[int] = (),
) -> tuple[Float[Array, "B T d"], Float[Array, "B T d"]]:  # fmt: skip
    """Cosines and sines of position * theta^(-2i/d), repeated for both halves of a head.

    Positions stay integers and angles float32 up to the last cast: a bfloat16 angle is off by more
    than one radian at position 1000.

    Args:
        positions: one number a token, or one for each axis of `section`. A token of a text has the
            same number on every axis, and so needs only that one.
        section: frequencies of each axis (`mrope_axes`).
    """
    inverse = theta ** (-jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
    if positions.ndim == 2:
        positions = positions[..., None]
    else:
        positions = jnp.take(positions, mrope_axes(section), axis=-1)
    return _tables(positions.astype(jnp.float32) * inverse[None, None], dtype)


def mrope_axes(section: Sequence[int]) -> Int[np.ndarray, " half"]:
    """The axis whose position turns each frequency: interleaved M-RoPE (Qwen3-VL).

    Rows and columns take every third frequency until their share is used up, time the rest:
    section (3, 1, 2) gives 0 1 2 0 0 2.
    """
    axes = np.zeros(sum(section), np.int32)
    for axis, count in enumerate(section[1:], start=1):
        axes[axis : 3 * count : 3] = axis
    return axes


def grid_tables(
    places: Int[Array, "B T 2"], head_dim: int, theta: float = 10000.0
) -> tuple[Float[Array, "B T d"], Float[Array, "B T d"]]:
    """Cosines and sines for a vision tower, float32: the row turns the first quarter of a head's
    elements, the column the second, and both again in the other half."""
    inverse = theta ** (-jnp.arange(0, head_dim // 2, 2, dtype=jnp.float32) / (head_dim // 2))
    angles = places[..., None].astype(jnp.float32) * inverse[None, None, None]
    return _tables(angles.reshape(*places.shape[:2], -1), jnp.float32)


def on_axes(positions: Int[Array, "*B"], like: Int[Array, "..."]) -> Int[Array, "..."]:
    """Positions of a text with as many axes as `like`, which has the same rank without its axes."""
    if like.ndim == positions.ndim:
        return positions
    return jnp.broadcast_to(positions[..., None], (*positions.shape, like.shape[-1]))


def rope_deltas(positions: Int[Array, "B S *A"], lengths: Int[Array, "B"]) -> Int[Array, "B"]:
    """What a row's text positions are ahead of its row numbers behind right-padded prompts: the
    next position is the largest on any axis + 1, and pictures take fewer of them than rows."""
    inside = jnp.arange(positions.shape[1])[None] < lengths[:, None]
    largest = positions.reshape(*positions.shape[:2], -1).max(axis=-1)
    return jnp.where(inside, largest, -1).max(axis=1) + 1 - lengths


def rotate(
    x: Float[Array, "B T H d"], cos: Float[Array, "B T d"], sin: Float[Array, "B T d"]
) -> Float[Array, "B T H d"]:
    """Rotate each head: element i pairs with element i + d/2."""
    first, second = jnp.split(x, 2, axis=-1)
    turned = jnp.concatenate([-second, first], axis=-1)
    return x * cos[:, :, None] + turned * sin[:, :, None]


def _tables(
    angles: Float[Array, "B T half"], dtype: DTypeLike
) -> tuple[Float[Array, "B T d"], Float[Array, "B T d"]]:
    angles = jnp.concatenate([angles, angles], axis=-1)
    return jnp.cos(angles).astype(dtype), jnp.sin(angles).astype(dtype)
