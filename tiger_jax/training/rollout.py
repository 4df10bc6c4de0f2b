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
from flax import traverse_util
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, Key

from tiger_jax.ops.kv_cache import Context
from tiger_jax.ops.sampling import mask_undrawable
from tiger_jax.sharding.rules import ParamRule, constrain, logical_axes
from tiger_jax.training import draft_blocks
from tiger_jax.training.draft_batch import DraftBatch
from tiger_jax.training.draft_blocks import BlockDrafter
from tiger_jax.training.train_state import compute_dtype


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

    def draw(logits: Array, step: Int[Array, ""] | int) -> tuple[Array, Array]:
        logits = mask_undrawable(logits, drawable)
        return _draw(logits, temperature, jax.random.fold_in(draw_key, step)), logits

    def advance(carry: tuple[Array, Context], step: Int[Array, ""]) -> tuple:
        tokens, law = draw(carry[0], step)
        return _next(drafter, params, opened, tokens, step, carry[1], mask), (tokens, law)

    (logits, _), drawn = lax.scan(advance, (logits, own), jnp.arange(length - 1))
    drawn = [
        jnp.concatenate([first, last[None]])
        for first, last in zip(drawn, draw(logits, length - 1), strict=True)
    ]
    shape = (*batch.anchors.shape, samples, length)
    tokens, laws = (jnp.moveaxis(each, 0, 2) for each in drawn)
    return tokens.reshape(shape), laws.reshape(*shape, -1)


def gathered_axes(
    params: Any, rules: tuple[ParamRule, ...]
) -> dict[str, tuple[str | None, ...]]:  # fmt: skip
    """Logical axes of weights that are whole over `fsdp`, by path."""
    return {
        path: tuple(None if name == "embed" else name for name in names)
        for path, names in logical_axes(params, rules).items()
    }


@partial(jax.jit, static_argnames=("rules", "dtype"))
def gather_weights(params: Any, rules: tuple[ParamRule, ...], dtype: DTypeLike) -> Any:
    """A drafter's weights for the many small passes of a rollout: matrices of the model in the
    compute dtype, nothing split over `fsdp`, or each pass would bring all weights together anew."""

    def gather(path: str, leaf: Array) -> Array:
        return constrain(leaf.astype(compute_dtype(path, leaf, dtype)), *axes[path])

    axes = gathered_axes(params, rules)
    flat = traverse_util.flatten_dict(params, sep="/")
    gathered = {path: gather(path, leaf) for path, leaf in flat.items()}
    return traverse_util.unflatten_dict(gathered, sep="/")


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
    return drafter.model.logits(params, hidden[:, :, -1]), own.pad(length - 1), mask


def _next(
    drafter: BlockDrafter, params: Any, opened: draft_blocks.Opened, tokens: Int[Array, "B MK"],
    step: Int[Array, ""], own: Context, mask: Bool[Array, "B MK U U"],
) -> tuple[Float[Array, "B MK V"], Context]:  # fmt: skip
    """One more token of every block: logits of the one after it."""
    row = opened.valid.shape[2] + 1 + step
    x = drafter.model.embed(params, tokens)[:, :, None]
    positions = (opened.root_positions + 1 + step)[..., None]
    hidden, own, _, _ = drafter.model.branch(
        params, x, positions, opened.context, opened.visible[:, :, None],
        lax.dynamic_slice_in_dim(mask, row, 1, axis=2), own, row,
    )  # fmt: skip
    return drafter.model.logits(params, hidden[:, :, 0]), own


def _draw(
    logits: Float[Array, "B MK V"], temperature: float, key: Key[Array, ""]
) -> Int[Array, "B MK"]:
    if temperature == 0:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)
    return jax.random.categorical(key, logits / temperature, axis=-1).astype(jnp.int32)
