"""Sampling draft blocks from the drafter: the K continuations of a prefix that GRPO compares.

B: examples, M: prefixes, K: blocks of a prefix, g: draft length, k: routed tokens, U = k + g: rows
of a block, V: vocabulary.

The stream runs once and every prefix is routed once. The root with its routed tokens fills the
first rows of each block's own keys and values; each further token is one step against them.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from tiger_jax.ops.kv_cache import Context
from tiger_jax.ops.sampling import mask_undrawable
from tiger_jax.training import draft_blocks
from tiger_jax.training.draft_batch import DraftBatch
from tiger_jax.training.draft_blocks import BlockDrafter


@partial(jax.jit, static_argnames=("drafter", "samples", "temperature"))
def sample_blocks(
    drafter: BlockDrafter, samples: int, temperature: float, params: Any, batch: DraftBatch,
    drawable: Bool[Array, "V"], route_key: Key[Array, ""], draw_key: Key[Array, ""],
) -> tuple[Int[Array, "B M K g"], Float[Array, "B M K g V"]]:  # fmt: skip
    """Draw K blocks of g tokens at each prefix, and the masked logits that they were drawn from.

    Temperature 0 takes the argmax, which makes all K blocks of a prefix equal.
    """
    opened = drafter.open(params, batch.stream, batch.tiles, batch.text, batch.anchors, route_key)
    opened = draft_blocks.repeat_blocks(opened, samples)
    length = batch.block_tokens.shape[2]
    logits, own, mask = _first(drafter, params, opened, length)
    tokens, laws = [], []
    for step in range(length):
        logits = mask_undrawable(logits, drawable)
        laws.append(logits)
        tokens.append(_draw(logits, temperature, jax.random.fold_in(draw_key, step)))
        if step + 1 < length:
            logits, own = _next(drafter, params, opened, tokens[-1], step, own, mask)
    shape = (*batch.anchors.shape, samples, length)
    return jnp.stack(tokens, axis=-1).reshape(shape), jnp.stack(laws, axis=2).reshape(*shape, -1)


def _first(
    drafter: BlockDrafter, params: Any, opened: draft_blocks.Opened, length: int
) -> tuple[Float[Array, "B MK V"], Context, Bool[Array, "B MK U U"]]:
    """Routed tokens and root: logits of the first draft, the blocks' rows, and their mask."""
    nothing = jnp.zeros((*opened.roots.shape, 0), jnp.int32)
    x, positions, valid = drafter.tail(params, opened, nothing)
    start = x.shape[2]
    mask = draft_blocks.own_mask(valid, start + length - 1)
    hidden, own, _, _ = drafter.model.branch(
        params, x, positions, opened.context, opened.visible[:, :, None],
        mask[:, :, :start, :start],
    )  # fmt: skip
    room = ((0, 0), (0, 0), (0, length - 1), (0, 0), (0, 0))
    own = jax.tree.map(lambda rows: jnp.pad(rows, room), own)
    return drafter.model.logits(params, hidden[:, :, -1]), own, mask


def _next(
    drafter: BlockDrafter, params: Any, opened: draft_blocks.Opened, tokens: Int[Array, "B MK"],
    step: int, own: Context, mask: Bool[Array, "B MK U U"],
) -> tuple[Float[Array, "B MK V"], Context]:  # fmt: skip
    """One more token of every block: logits of the one after it."""
    row = opened.valid.shape[2] + 1 + step
    x = drafter.model.embed(params, tokens)[:, :, None]
    positions = (opened.root_positions + 1 + step)[..., None]
    hidden, own, _, _ = drafter.model.branch(
        params, x, positions, opened.context, opened.visible[:, :, None],
        mask[:, :, row : row + 1], own, row,
    )  # fmt: skip
    return drafter.model.logits(params, hidden[:, :, 0]), own


def _draw(
    logits: Float[Array, "B MK V"], temperature: float, key: Key[Array, ""]
) -> Int[Array, "B MK"]:
    if temperature == 0:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)
    return jax.random.categorical(key, logits / temperature, axis=-1).astype(jnp.int32)
