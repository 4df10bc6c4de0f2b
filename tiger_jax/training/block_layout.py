"""One pass over a shared prefix and many short continuations of it, all in one row.

B: pictures, P: prefix tokens, L: packed tokens, N: segments (questions of a picture),
T: tokens of a segment, D: width.

    host [B, N, T]                         device [B, L]
    a1 a2 a3 a4 . . . .                    tokens    a1 a2 a3 a4 b1 b2 c1 c2 c3 .
    b1 b2 .  .  . . . .        ->          segments   1  1  1  1  2  2  3  3  3 0
    c1 c2 c3 .  . . . .                    positions  p .. p+3  p p+1  p  ..    0

A question takes 12 tokens or 50; padding each to the longest would more than double the work.
Every packed token sees the real prefix and its own segment up to itself, which is exactly what it
sees when its question stands alone.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from tiger_jax.models.interface import VisionLanguageModel


def pack_rows(
    lengths: Int[np.ndarray, "B N"], multiple: int = 16
) -> tuple[Int[np.ndarray, "B L"], Int[np.ndarray, "B L"]]:
    """(segments, offsets) of packed rows: which segment a place belongs to, and its token there.

    Segment n has the number n + 1; padding is segment 0, offset 0. L is the longest row rounded up
    to `multiple`, so that few widths have to be compiled.
    """
    totals = lengths.sum(axis=1)
    width = -(-int(totals.max()) // multiple) * multiple
    segments = np.zeros((len(lengths), width), np.int32)
    offsets = np.zeros((len(lengths), width), np.int32)
    for row, counts in enumerate(lengths):
        segments[row, : totals[row]] = np.repeat(np.arange(1, len(counts) + 1), counts)
        offsets[row, : totals[row]] = np.concatenate([np.arange(count) for count in counts])
    return segments, offsets


def take_packed(
    values: np.ndarray, segments: Int[np.ndarray, "B L"], offsets: Int[np.ndarray, "B L"]
) -> np.ndarray:
    """Values [B, N, T] at their packed places [B, L]; 0 at padding."""
    rows = np.arange(len(values))[:, None]
    taken = values[rows, np.maximum(segments - 1, 0), offsets]
    return np.where(segments > 0, taken, np.zeros((), values.dtype))


def packed_mask(
    segments: Int[Array, "B L"], prefix_lengths: Int[Array, "B"], prefix_size: int
) -> Bool[Array, "B L PL"]:
    """[prefix | packed]: the real prefix, then the own segment up to and including oneself."""
    real = jnp.arange(prefix_size)[None] < prefix_lengths[:, None]
    length = segments.shape[1]
    same = segments[:, :, None] == segments[:, None, :]
    causal = jnp.tril(jnp.ones((length, length), bool))[None]
    real = jnp.broadcast_to(real[:, None], (*segments.shape, prefix_size))
    return jnp.concatenate([real, same & causal], axis=-1)


def run_packed(
    model: VisionLanguageModel, params: Any, x: Float[Array, "B L D"],
    positions: Int[Array, "B L"], segments: Int[Array, "B L"],
    prefix: Float[Array, "B P D"], prefix_lengths: Int[Array, "B"],
) -> Float[Array, "B L D"]:  # fmt: skip
    """Hidden states (after the final norm) of the packed tokens; the prefix runs causally, once."""
    mask = packed_mask(segments, prefix_lengths, prefix.shape[1])
    return model.packed(params, x, positions, mask, prefix)
