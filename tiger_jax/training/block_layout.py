"""One pass over a shared prefix and many short continuations of it, all in one row.

B: pictures, P: prefix tokens, L: packed tokens, N: segments (questions of a picture),
T: tokens of a segment, M: blocks, D: width, W: width of a visual row, A: axes of a position.

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
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from tiger_jax.models.interface import VisionLanguageModel
from tiger_jax.ops.gather import take_rows
from tiger_jax.ops.kv_cache import Context
from tiger_jax.ops.rotary import rope_deltas
from tiger_jax.sharding.rules import constrain


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


@struct.dataclass
class Prefixes:
    """Prompts as a model with all their visual tokens reads them, padded on the right."""

    tiles: Any
    """What the vision tower takes, float32 [N, S, S, 3] or Frames."""
    tokens: Any
    """int32 [B, P]."""
    image_rows: Any
    """int32 [B, P]: -1 = a text token, else a row of the flat table of visual rows."""
    lengths: Any
    """int32 [B]."""
    positions: Any
    """int32 [B, P] or [B, P, 3]: rotary positions."""

    @property
    def is_visual(self) -> Bool[Array, "B P"]:
        """Tokens that stand for a part of a picture."""
        return self.image_rows >= 0

    @property
    def rope_deltas(self) -> Int[Array, "B"]:
        """Rotary position minus row number of the text behind each."""
        return rope_deltas(self.positions, self.lengths)


class Prefixed:
    """A batch whose prefixes are fields among others."""

    @property
    def prefixes(self) -> Prefixes:
        """Its fields `tiles` and `prefix_*`."""
        names = ("tokens", "image_rows", "lengths", "positions")
        return Prefixes(self.tiles, *(getattr(self, f"prefix_{name}") for name in names))


@struct.dataclass
class TextRows:
    """Packed texts after their prefixes."""

    tokens: Any
    """int32 [B, L]."""
    segments: Any
    """int32 [B, L]: 1 .. N, 0 = padding."""
    positions: Any
    """int32 [B, L]: rotary positions in the full prompt."""


@struct.dataclass
class PackedPass:
    """Everything that later branches need of a pass over prefix and packed text."""

    hidden: Float[Array, "B L D"]
    """After the final norm."""
    context: Context
    """Keys and values of [prefix | text]."""
    attention: Float[Array, "B L P"]
    """How much each text token looks at the prefix, mean over heads and layers."""
    prefix_tapped: Float[Array, "B P F"]
    """Hidden states of the prefix at the taps that were asked for."""
    tapped: Float[Array, "B L F"]
    """Those of the text."""


def run_packed(
    model: VisionLanguageModel, params: Any, x: Float[Array, "B L D"],
    positions: Int[Array, "B L"], segments: Int[Array, "B L"],
    prefix: Float[Array, "B P W"], prefix_lengths: Int[Array, "B"],
    prefix_positions: Int[Array, "B P *A"], taps: tuple[int, ...] = (),
) -> PackedPass:  # fmt: skip
    """The prefix runs causally, once; every packed token sees it and its own segment."""
    size = prefix.shape[1]
    causal = jnp.tril(jnp.ones((size, size), bool))[None]
    _, before, prefix_tapped = model.context(params, prefix, prefix_positions, causal, taps)
    mask = packed_mask(segments, prefix_lengths, size)[:, None]
    hidden, own, attention, tapped = model.branch(
        params, x[:, None], positions[:, None], before, mask[..., :size], mask[..., size:],
        taps=taps,
    )  # fmt: skip
    return PackedPass(
        hidden[:, 0], before + own.only_branch(), attention[:, 0], prefix_tapped, tapped[:, 0]
    )


def run_prompts(
    model: VisionLanguageModel, params: Any, prefixes: Prefixes, text: TextRows,
    taps: tuple[int, ...] = (),
) -> PackedPass:  # fmt: skip
    """`run_packed` of a model that reads whole prompts: pictures in their places in the prefix."""
    table = model.encode_images(params, prefixes.tiles)
    prefix = model.embed(params, prefixes.tokens, prefixes.image_rows, table)
    prefix = constrain(prefix, "batch", None, None)
    words = constrain(model.embed(params, text.tokens), "batch", None, None)
    return run_packed(
        model, params, words, text.positions, text.segments, prefix, prefixes.lengths,
        prefixes.positions, taps,
    )  # fmt: skip


def visible_before(
    anchors: Int[Array, "B M"], segments: Int[Array, "B L"], prefix_lengths: Int[Array, "B"],
    prefix_size: int, *, inclusive: bool,
) -> Bool[Array, "B M PL"]:  # fmt: skip
    """What a block that starts at text token `anchors[b, m]` sees of [prefix | text]: the real
    prefix and its own segment up to the anchor, itself included or not. Anchor -1 sees nothing of
    the text."""
    place = jnp.arange(segments.shape[1])[None, None]
    own = jnp.take_along_axis(segments, jnp.maximum(anchors, 0), axis=1, mode="clip")
    end = anchors[..., None] + int(inclusive)
    text = (segments[:, None] == own[..., None]) & (place < end)
    real = jnp.arange(prefix_size)[None, None] < prefix_lengths[:, None, None]
    real = jnp.broadcast_to(real, (*anchors.shape, prefix_size))
    return jnp.concatenate([real, text], axis=-1)


def at_anchors(values: Array, anchors: Int[Array, "B M"]) -> Array:
    """values[b, anchors[b, m], ...]; row 0 for padding."""
    return take_rows(values, jnp.maximum(anchors, 0))
