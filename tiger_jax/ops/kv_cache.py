"""Key and value rows of a decoder, one pair of arrays per layer.

B: batch, K: key/value heads, C: capacity (rows), T: new rows, d: head dim.

The layout [B, K, C, d] and the per-layer tuple are what keeps XLA's GPU compiler from copying whole
caches in every round (docs/decisions.md, "cache layout"). Nothing in a cache is ever erased: a row
counts only while its index is below the length that the caller keeps, and is overwritten later.
"""

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int


@struct.dataclass
class KVCache:
    """Keys and values of all layers."""

    keys: tuple[Array, ...]
    """One [B, K, C, d] array per layer."""
    values: tuple[Array, ...]
    """One [B, K, C, d] array per layer."""

    @property
    def capacity(self) -> int:
        """Rows that each sequence can hold."""
        return self.keys[0].shape[2]

    @classmethod
    def zeros(cls, layers: int, shape: tuple[int, int, int, int], dtype: DTypeLike) -> "KVCache":
        """An empty cache; shape is (B, K, C, d)."""
        return cls(
            keys=tuple(jnp.zeros(shape, dtype) for _ in range(layers)),
            values=tuple(jnp.zeros(shape, dtype) for _ in range(layers)),
        )


@struct.dataclass
class Context:
    """Keys and values of a text that others continue: the training pass's counterpart of a cache,
    written once, differentiable, in the layout in which projections give them."""

    keys: tuple[Array, ...] | Array
    """One [B, S, K, d] array per layer, [B, M, U, K, d] for the rows of branches; all layers in one
    array [layers, ..] where a scan made them."""
    values: tuple[Array, ...] | Array

    def only_branch(self) -> "Context":
        """Rows of single branches [B, 1, U, K, d] as those of a text [B, U, K, d]."""
        return jax.tree.map(lambda rows: rows.squeeze(-4), self)

    def pad(self, count: int) -> "Context":
        """Room for `count` rows more."""

        def grow(rows: Array) -> Array:
            return jnp.pad(rows, [(0, 0)] * (rows.ndim - 3) + [(0, count), (0, 0), (0, 0)])

        return jax.tree.map(grow, self)

    def __add__(self, later: "Context") -> "Context":
        """The rows of both, one after the other."""

        def join(first: Array, second: Array) -> Array:
            return jnp.concatenate([first, second], axis=-3)

        return jax.tree.map(join, self, later)


def append_rows(
    rows: Float[Array, "B K C d"], new: Float[Array, "B T K d"], starts: Int[Array, "B"]
) -> Float[Array, "B K C d"]:
    """Write T rows of each sequence at starts[b] .. starts[b] + T - 1.

    The caller keeps starts + T < C (one row to spare): a dynamic update clamps instead of failing.
    """
    new = new.astype(rows.dtype)
    if rows.shape[0] == 1:
        # One sequence: a single in-place slice update, the cheapest form on every backend.
        if new.shape[1] == 1:
            # One token: XLA's CPU backend would repeat the bare update inside every reader and copy
            # the whole cache for each of them. Carrying the next row along keeps it one operation.
            after = lax.dynamic_slice_in_dim(rows, starts[0] + 1, 1, axis=2).swapaxes(1, 2)
            new = jnp.concatenate([new, after], axis=1)
        return lax.dynamic_update_slice(rows, new.swapaxes(1, 2), (0, 0, starts[0], 0))
    batch = jnp.arange(rows.shape[0])[:, None]
    slots = starts[:, None] + jnp.arange(new.shape[1])[None]
    return rows.at[batch, :, slots].set(new, mode="drop", unique_indices=True)


def move_rows(cache: KVCache, starts: Int[Array, "B"], path: Int[Array, "B D"]) -> KVCache:
    """Make the rows starts + path[:, j] the rows starts + j, for every layer.

    After a tree was verified its nodes lie behind the committed rows in node order; the accepted
    path is gathered to the front. path[b, j] >= j, and rows beyond the accepted ones are never
    read.
    """

    def move(rows: Array) -> Array:
        index = (starts[:, None] + path)[:, None, :, None]
        picked = jnp.take_along_axis(rows, index, axis=2, mode="clip")
        return append_rows(rows, picked.swapaxes(1, 2), starts)

    return jax.tree.map(move, cache)
