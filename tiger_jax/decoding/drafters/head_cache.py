"""What a head drafter carries, and where its rows stand in the cache.

B: batch, T: rows, U: pictures, c: rows of the front, k: routed tokens, n: rows of a draft, R: bank
rows, D1: draft depth + 1, C: cache rows, H, K: query and key/value heads, d: head dim, D, W, X, F:
widths of the verifier, the head, its layer's input and the tapped states.

    cache rows   0 .......... front-1 | front ................ end-1 | end ..............
    hold         k routed tokens, or  | the stream, then one row for | the draft's own rows,
                 vectors of pictures  | every committed token        | overwritten next round

The front's width is that of `HeadState.valid`; row end - 1, of position length - 1, carries the
root.
"""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from tiger_jax.decoding.drafters.protocol import RoundContext
from tiger_jax.ops.gather import take_rows
from tiger_jax.ops.kv_cache import KVCache, append_rows
from tiger_jax.routing.bank import Bank


@struct.dataclass
class HeadState:
    """What a head carries from round to round."""

    cache: KVCache
    """One layer."""
    offsets: Int[Array, "B"]
    """Stream row of a committed token minus its position."""
    valid: Bool[Array, "B c"]
    """Rows of the front that exist; of a routed head, those of the last route."""
    indices: Int[Array, "B k"]
    """Bank rows of the last route, in the prompt's order; nothing for other heads."""
    tokens: Int[Array, "B D1"]
    """The token after each fresh row: what the last round committed, the root not included."""
    taps: Float[Array, "B D1 F"]
    """The verifier's hidden states at the fresh rows."""
    count: Int[Array, "B"]
    """Fresh rows: 1 after prefill, A + 1 after a round; the rest is padding."""
    glance: Float[Array, "B W"] | None = None
    """Of a resampler: the global vector of the prompt's last picture, zeros without one."""
    bank: Bank | None = None
    """What a router scores."""
    bank_rows: tuple[Float[Array, "B K R d"], Float[Array, "B K R d"]] | None = None
    """Keys and values of the bank's tokens, projected once."""


@struct.dataclass
class Rows:
    """The layer's view of some pairs."""

    x: Float[Array, "B T X"]
    residual: Float[Array, "B T W"]
    queries: Float[Array, "B T H d"]
    keys: Float[Array, "B T K d"]
    values: Float[Array, "B T K d"]


@struct.dataclass
class Growing(KVCache):
    """The cache while a draft grows, with what the rows run last have left."""

    g: Float[Array, "B T W"]
    valid: Bool[Array, "B c"]
    indices: Int[Array, "B k"]
    seen: Bool[Array, "B T n"]
    """Of a tree: which of the n rows behind `end` each of these rows sees."""


def root_end(state: HeadState, context: RoundContext) -> Int[Array, "B"]:
    """The cache row behind the root's."""
    return state.valid.shape[1] + context.lengths + state.offsets


def committed_mask(
    valid: Bool[Array, "B c"], ends: Int[Array, "B"], cache: KVCache
) -> Bool[Array, "B 1 C"]:
    """The rows before `ends`, without those of the front that do not exist."""
    real = jnp.pad(valid, ((0, 0), (0, cache.capacity - valid.shape[1])), constant_values=True)
    return (real & (jnp.arange(cache.capacity)[None] < ends[:, None]))[:, None]


def shifted_mask(
    seen: Bool[Array, "B T n"], starts: Int[Array, "B"], capacity: int
) -> Bool[Array, "B T C"]:
    """The same mask where its first column stands at cache row starts[b]."""
    batch, count, size = seen.shape
    column = jnp.arange(capacity)[None] - starts[:, None]
    picked = jnp.broadcast_to(jnp.clip(column, 0, size - 1)[:, None], (batch, count, capacity))
    inside = (column >= 0) & (column < size)
    return jnp.take_along_axis(seen, picked, axis=2, mode="clip") & inside[:, None]


def write_rows(
    cache: KVCache, keys: Float[Array, "B T K d"], values: Float[Array, "B T K d"],
    starts: Int[Array, "B"],
) -> KVCache:  # fmt: skip
    """Rows starts[b] .. starts[b] + T - 1 of the one layer."""
    return cache.replace(
        keys=(append_rows(cache.keys[0], keys, starts),),
        values=(append_rows(cache.values[0], values, starts),),
    )


def last_of(vectors: Float[Array, "B U W"], counts: Int[Array, "B T"]) -> Float[Array, "B T W"]:
    """The last of the first counts[b, t] vectors; zeros where there is none."""
    return jnp.where((counts > 0)[..., None], take_rows(vectors, jnp.maximum(counts - 1, 0)), 0)


def spread(
    glance: Float[Array, "B W"] | None, words: Float[Array, "B T D"]
) -> Float[Array, "B T W"] | None:
    """One vector for all rows."""
    if glance is None:
        return None
    return jnp.broadcast_to(glance[:, None], (*words.shape[:2], glance.shape[1]))
