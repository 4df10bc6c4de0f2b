"""Attention over a key/value cache, over a fresh prompt, and with a free mask.

B: batch, T: queries, C: cache rows, S: keys, H: query heads, K: key/value heads, G = H/K, d: head
dim.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

_MASKED = -1e30  # finite: a row without any visible key gives a mean, not NaN


def attend(
    queries: Float[Array, "B T H d"],
    keys: Float[Array, "B K S d"],
    values: Float[Array, "B K S d"],
    mask: Bool[Array, "B T S"],
) -> Float[Array, "B T Hd"]:
    """Softmax attention with grouped heads, scores in float32.

    The G query heads of one key head become rows of the same product (row = g * T + t), and the
    contraction keeps (B, K) as leading batch dimensions: the one form that never re-lays a cache.
    """
    batch, length, heads, dim = queries.shape
    kv_heads = keys.shape[1]
    groups = heads // kv_heads
    rows = queries.reshape(batch, length, kv_heads, groups, dim).transpose(0, 2, 3, 1, 4)
    rows = rows.reshape(batch, kv_heads, groups * length, dim)
    scores = lax.dot_general(
        rows, keys, (((3,), (3,)), ((0, 1), (0, 1))), preferred_element_type=jnp.float32
    )
    visible = jnp.tile(mask, (1, groups, 1))[:, None]
    scores = jnp.where(visible, scores * dim**-0.5, _MASKED)
    weights = jnp.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    mixed = lax.dot_general(
        weights.astype(values.dtype), values, (((3,), (2,)), ((0, 1), (0, 1))),
        preferred_element_type=jnp.float32,
    ).astype(queries.dtype)  # fmt: skip
    mixed = mixed.reshape(batch, kv_heads, groups, length, dim).transpose(0, 3, 1, 2, 4)
    return mixed.reshape(batch, length, heads * dim)


def attend_causal(
    queries: Float[Array, "B T H d"],
    keys: Float[Array, "B T K d"],
    values: Float[Array, "B T K d"],
    *,
    block: int = 512,
) -> Float[Array, "B T Hd"]:
    """Causal attention of a prompt to itself, a block of queries at a time.

    Blocks keep the score matrix at [block, T] and skip the keys behind each block, which the mask
    would throw away anyway. Right padding needs no mask: a real token never looks to its right.
    """
    length = queries.shape[1]
    keys, values = keys.swapaxes(1, 2), values.swapaxes(1, 2)
    outputs = []
    for start in range(0, length, block):
        end = min(start + block, length)
        mask = jnp.arange(end)[None] <= jnp.arange(start, end)[:, None]
        mask = jnp.broadcast_to(mask[None], (queries.shape[0], *mask.shape))
        outputs.append(attend(queries[:, start:end], keys[:, :, :end], values[:, :, :end], mask))
    return jnp.concatenate(outputs, axis=1)


def attend_dense(
    queries: Float[Array, "B T H d"], keys: Float[Array, "B S K d"],
    values: Float[Array, "B S K d"], mask: Bool[Array, "#B T S"],
) -> Float[Array, "B T H d"]:  # fmt: skip
    """`attend` without a cache, in the form whose gradient is cheapest; heads stay apart."""
    groups = queries.shape[2] // keys.shape[2]
    if groups > 1:
        keys, values = (jnp.repeat(x, groups, axis=2) for x in (keys, values))
    queries, keys, values = (x.swapaxes(1, 2) for x in (queries, keys, values))
    scores = (queries * queries.shape[-1] ** -0.5) @ keys.swapaxes(2, 3)
    scores = jnp.where(mask[:, None], scores.astype(jnp.float32), _MASKED)
    weights = jax.nn.softmax(scores, axis=-1).astype(values.dtype)
    return (weights @ values).swapaxes(1, 2)
