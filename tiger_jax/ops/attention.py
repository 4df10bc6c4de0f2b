"""Attention over a key/value cache, a fresh prompt, in segments, with a free mask, of branches.

B: batch, T: queries, C: cache rows, S: keys, H: query heads, K: key/value heads, G = H/K, d: head
dim, M: branches, U: own keys of a branch.
"""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

BLOCK = 512
"""Queries whose scores exist at once."""
SCORES = BLOCK * 65536
"""Those that exist at once where many rows have many keys each: 128 MiB a head."""
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
    if weights.dtype != values.dtype:
        # Else XLA turns a single query's product into one over the whole cache in float32, and
        # writes that to memory (seen for the H200).
        weights = lax.optimization_barrier(weights.astype(values.dtype))
    mixed = lax.dot_general(
        weights, values, (((3,), (2,)), ((0, 1), (0, 1))), preferred_element_type=jnp.float32
    ).astype(queries.dtype)
    mixed = mixed.reshape(batch, kv_heads, groups, length, dim).transpose(0, 3, 1, 2, 4)
    return mixed.reshape(batch, length, heads * dim)


def attention_weights(
    queries: Float[Array, "B T H d"], keys: Float[Array, "B K S d"], mask: Bool[Array, "B T S"]
) -> Float[Array, "B T S"]:
    """The weights of `attend`, mean over heads, float32."""
    batch, length, _, dim = queries.shape
    rows = queries.reshape(batch, length, keys.shape[1], -1, dim)
    scores = jnp.einsum("btkgd,bksd->bkgts", rows, keys, preferred_element_type=jnp.float32)
    scores = jnp.where(mask[:, None, None], scores * dim**-0.5, _MASKED)
    return jax.nn.softmax(scores, axis=-1).mean(axis=(1, 2))


def attend_causal(
    queries: Float[Array, "B T H d"],
    keys: Float[Array, "B T K d"],
    values: Float[Array, "B T K d"],
    *,
    block: int = BLOCK,
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


def attend_segments(
    queries: Float[Array, "B T H d"], keys: Float[Array, "B T H d"],
    values: Float[Array, "B T H d"], segments: Int[Array, "B T"], *, block: int = BLOCK,
) -> Float[Array, "B T Hd"]:  # fmt: skip
    """Attention in both directions among the rows of one segment; nobody looks at segment -1.

    A loop over blocks of queries, each computed anew in the backward pass: a picture of 65,536
    patches has [T, T] scores that no memory holds. Many rows with many keys have smaller blocks.
    """
    columns, contents = keys.transpose(0, 2, 3, 1), values.swapaxes(1, 2)

    def some(rows: Array, own: Array) -> Array:
        weights = _segment_weights(rows, columns, own, segments)
        return (weights.astype(contents.dtype) @ contents).swapaxes(1, 2)

    mixed = _over_queries(some, _fitting(block, keys), queries, segments)
    return mixed.reshape(*queries.shape[:2], -1)


def attention_received(
    queries: Float[Array, "B T H d"], keys: Float[Array, "B T H d"], segments: Int[Array, "B T"], *,
    block: int = BLOCK,
) -> Float[Array, "B T"]:  # fmt: skip
    """How much the rows of its segment look at each row, by the weights of `attend_segments`:
    mean over these rows and over heads, float32."""
    columns, length = keys.transpose(0, 2, 3, 1), keys.shape[1]

    def some(rows: Array, own: Array) -> Array:
        weights = _segment_weights(rows, columns, own, segments).mean(axis=1)
        return jnp.where((own >= 0)[..., None], weights, 0.0).sum(axis=1, keepdims=True)

    def sizes(own: Array) -> Array:
        own = jnp.where(own >= 0, own, length)
        return (
            jnp.zeros(length).at[own].add(1.0, mode="drop").at[own].get(mode="fill", fill_value=1)
        )

    parts = _over_queries(some, _fitting(block, keys), queries, segments)
    return parts.sum(axis=1) / jax.vmap(sizes)(segments)


def _segment_weights(
    rows: Float[Array, "B T H d"], columns: Float[Array, "B H d S"], own: Int[Array, "B T"],
    segments: Int[Array, "B S"],
) -> Float[Array, "B H T S"]:  # fmt: skip
    """Softmax weights on the keys of the row's own segment."""
    visible = (own[:, :, None] == segments[:, None]) & (segments >= 0)[:, None]
    scores = _scores(rows.swapaxes(1, 2), columns) * rows.shape[-1] ** -0.5
    return jax.nn.softmax(jnp.where(visible[:, None], scores, _MASKED), axis=-1)


def _fitting(block: int, keys: Float[Array, "B S H d"]) -> int:
    """`block`, or the power of two below it whose scores with these keys are SCORES at most."""
    room = max(SCORES // (keys.shape[0] * keys.shape[1]), 1)
    return min(block, 1 << room.bit_length() - 1)


def _over_queries(some: Callable[..., Array], block: int, *rows: Array) -> Array:
    """`some` of [B, T, ..] arrays, `block` of the T at a time; what it gives is put together."""
    length = rows[0].shape[1]
    if length <= block:
        return some(*rows)
    block = math.gcd(length, block)
    parts = (x.reshape(x.shape[0], -1, block, *x.shape[2:]).swapaxes(0, 1) for x in rows)
    done = lax.map(lambda some_rows: jax.checkpoint(some)(*some_rows), tuple(parts))
    done = done.swapaxes(0, 1)
    return done.reshape(done.shape[0], -1, *done.shape[3:])


def attend_dense(
    queries: Float[Array, "B T H d"], keys: Float[Array, "B S K d"],
    values: Float[Array, "B S K d"], mask: Bool[Array, "#B T S"], *, block: int = BLOCK,
) -> Float[Array, "B T H d"]:  # fmt: skip
    """`attend` without a cache, in the form whose gradient is cheapest; heads stay apart.

    Long texts go a block of queries at a time, and the backward pass computes a block's scores
    anew, so that [T, S] scores never exist at once.
    """
    keys, values = (_repeat_heads(x, queries.shape[2]) for x in (keys, values))

    def some(queries: Array, mask: Array) -> Array:
        scale = queries.shape[-1] ** -0.5
        rows, columns, contents = (x.swapaxes(1, 2) for x in (queries * scale, keys, values))
        scores = _scores(rows, columns.swapaxes(2, 3))
        weights = jax.nn.softmax(jnp.where(mask[:, None], scores, _MASKED), axis=-1)
        return (weights.astype(contents.dtype) @ contents).swapaxes(1, 2)

    length = queries.shape[1]
    if length <= block:
        return some(queries, mask)
    parts = [
        jax.checkpoint(some)(queries[:, i : i + block], mask[:, i : i + block])
        for i in range(0, length, block)
    ]
    return jnp.concatenate(parts, axis=1)


def attend_branches(
    queries: Float[Array, "B M T H d"],
    shared: tuple[Float[Array, "B S K d"], Float[Array, "B S K d"]],
    own: tuple[Float[Array, "B M U K d"], Float[Array, "B M U K d"]],
    shared_mask: Bool[Array, "B M #T S"], own_mask: Bool[Array, "#B #M T U"], *,
    block: int = BLOCK,
) -> tuple[Float[Array, "B M T H d"], Float[Array, "B M T S"]]:  # fmt: skip
    """One softmax over keys that all branches share and keys that only a branch itself has.

    Branches never meet, so no [M * T, M * U] square is made; many branches go some at a time, as
    `attend_dense` does it. Also returns the weights on the shared keys, mean over heads.
    """
    heads, count, length = queries.shape[3], queries.shape[1], queries.shape[2]
    shared = tuple(_repeat_heads(x, heads) for x in shared)
    own = tuple(_repeat_heads(x, heads) for x in own)
    own_mask = jnp.broadcast_to(own_mask, (*own_mask.shape[:1], count, *own_mask.shape[2:]))
    if count * length <= block:
        return _some_branches(shared, queries, own, shared_mask, own_mask)
    some = jax.checkpoint(partial(_some_branches, shared))
    if count == 1:  # one long text: its queries a block at a time, its keys all of them
        shared_mask = jnp.broadcast_to(shared_mask, (*queries.shape[:3], shared_mask.shape[-1]))
        parts = [
            some(queries[:, :, i : i + block], own, shared_mask[:, :, i : i + block],
                 own_mask[:, :, i : i + block])
            for i in range(0, length, block)
        ]  # fmt: skip
        return tuple(jnp.concatenate(pieces, axis=2) for pieces in zip(*parts, strict=True))
    step = max(block // length, 1)
    parts = []
    for i in range(0, count, step):
        at = (slice(None), slice(i, i + step))
        mine = tuple(x[at] for x in own)
        parts.append(some(queries[at], mine, shared_mask[at], own_mask[at]))
    return tuple(jnp.concatenate(pieces, axis=1) for pieces in zip(*parts, strict=True))


def _some_branches(
    shared: tuple[Array, Array], queries: Float[Array, "B M T H d"], own: tuple[Array, Array],
    shared_mask: Bool[Array, "B M #T S"], own_mask: Bool[Array, "#B M T U"],
) -> tuple[Float[Array, "B M T H d"], Float[Array, "B M T S"]]:  # fmt: skip
    batch, count, length, heads, dim = queries.shape
    (shared_keys, shared_values), (own_keys, own_values) = shared, own
    queries = queries * dim**-0.5
    rows = queries.reshape(batch, count * length, heads, dim).swapaxes(1, 2)
    outer = _scores(rows, shared_keys.transpose(0, 2, 3, 1))
    outer = outer.reshape(batch, heads, count, length, -1)
    inner = _scores(queries.transpose(0, 3, 1, 2, 4), own_keys.transpose(0, 3, 1, 4, 2))
    outer = jnp.where(shared_mask[:, None], outer, _MASKED)
    inner = jnp.where(own_mask[:, None], inner, _MASKED)
    weights = jax.nn.softmax(jnp.concatenate([outer, inner], axis=-1), axis=-1)
    seen = shared_keys.shape[1]
    outer = weights[..., :seen].astype(queries.dtype)
    inner = weights[..., seen:].astype(queries.dtype)
    mixed = outer.reshape(batch, heads, count * length, seen) @ shared_values.swapaxes(1, 2)
    mixed = mixed.reshape(batch, heads, count, length, dim)
    mixed = mixed + inner @ own_values.transpose(0, 3, 1, 2, 4)
    return mixed.transpose(0, 2, 3, 1, 4), weights[..., :seen].mean(axis=1)


def _scores(queries: Array, keys: Array) -> Array:
    """float32, whatever the operands are."""
    return jnp.matmul(queries, keys, preferred_element_type=jnp.float32)


def _repeat_heads(x: Float[Array, "*B K d"], heads: int) -> Float[Array, "*B H d"]:
    return x if x.shape[-2] == heads else jnp.repeat(x, heads // x.shape[-2], axis=-2)
