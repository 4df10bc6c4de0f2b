"""Qwen3-VL: tower with DeepStack, mergers, Qwen3 decoder.

N: tiles, P: patches of a tile, r: visual tokens of a tile, R: rows of the flat visual table,
B: prompts, S: prompt length, D: width, W = (1 + taps) * D: width of a visual row.

A row of the visual table holds the token's embedding and, behind it, what DeepStack adds to it
after the decoder's first layers. Whoever gathers rows (a prompt, a bank, a route) thus has all of
it at the same places, whatever pictures and videos stand between each other.
"""

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from tiger_jax.models.config import Qwen3VLConfig
from tiger_jax.models.frames import Frames
from tiger_jax.models.layers import widen
from tiger_jax.models.qwen3_vision import VISION_RULES, Merger, Qwen3Vision, group_squares
from tiger_jax.models.text_decoder import DECODER_RULES, TextDecoder
from tiger_jax.sharding.rules import ParamRule

RULES = (
    *VISION_RULES,
    ParamRule(r"(merger|deepstack_mergers_\d+)/norm/(scale|bias)", (None,)),
    ParamRule(r"(merger|deepstack_mergers_\d+)/fc1/kernel", ("embed", "mlp")),
    ParamRule(r"(merger|deepstack_mergers_\d+)/fc1/bias", ("mlp",)),
    ParamRule(r"(merger|deepstack_mergers_\d+)/fc2/kernel", ("mlp", "embed")),
    ParamRule(r"(merger|deepstack_mergers_\d+)/fc2/bias", (None,)),
    *DECODER_RULES,
)
"""Where its parameters live on a mesh."""


class Qwen3VL(nn.Module):
    """All weights of one model; the methods are its separately jitted parts."""

    config: Qwen3VLConfig
    dtype: DTypeLike = jnp.float32
    remat: bool = False
    """Of the decoder's training passes."""

    def setup(self) -> None:
        cfg = self.config
        self.vision_tower = Qwen3Vision(cfg.vision, self.dtype)
        self.merger = Merger(cfg.vision, self.dtype)
        self.deepstack_mergers = [
            Merger(cfg.vision, self.dtype, norm_squares=True) for _ in cfg.vision.deepstack_layers
        ]
        self.language_model = TextDecoder(cfg.text, self.dtype, self.remat)

    @property
    def row_width(self) -> int:
        """W."""
        return (1 + len(self.config.vision.deepstack_layers)) * self.config.text.hidden_size

    @property
    def feature_width(self) -> int:
        """Width of `vision_features`."""
        return self.config.vision.merge_size**2 * self.config.vision.hidden_size

    def vision_features(self, frames: Frames) -> Float[Array, "N r F"]:
        """The tower's last rows, the patches of a visual token side by side."""
        return group_squares(self.vision_tower(frames)[0], self.config.vision)

    def vision_saliency(self, frames: Frames) -> Float[Array, "N r"]:
        """How much each visual token is looked at in the last block: there is no class token to
        ask."""
        received = self.vision_tower.received(frames)
        return group_squares(received[..., None], self.config.vision).mean(axis=-1)

    def encode_images(self, frames: Frames) -> Float[Array, "R W"]:
        """The flat table of visual rows, tile by tile."""
        if not len(frames):  # a batch without pictures
            return jnp.zeros((1, self.row_width), self.dtype)
        last, tapped = self.vision_tower(frames)
        rows = [self.merger(last)]
        rows += [merger(tap) for merger, tap in zip(self.deepstack_mergers, tapped, strict=True)]
        return jnp.concatenate(rows, axis=-1).reshape(-1, self.row_width)

    def embed(
        self, tokens: Int[Array, "B S"], image_rows: Int[Array, "B S"] | None,
        table: Float[Array, "R W"] | None,
    ) -> Float[Array, "B S X"]:  # fmt: skip
        """Token embeddings with the visual rows in place: image_rows[b, s] >= 0 names a table row.
        Of the width of a visual row where there are any, text with zeros behind it."""
        words = self.language_model.embed_tokens(tokens)
        if table is None:
            return words
        pictures = jnp.take(table, image_rows, axis=0, mode="clip")
        words = widen(words, self.row_width)
        return jnp.where((image_rows >= 0)[..., None], pictures.astype(words.dtype), words)

    def declare(self) -> None:
        """Touch every weight once, on the smallest inputs; only `init` calls it."""
        cfg = self.config.vision
        size = cfg.merge_size**2
        frames = Frames(
            patches=jnp.zeros((1, size, cfg.patch_values), self.dtype),
            counts=jnp.full((1,), size, jnp.int32),
            places=jnp.zeros((1, size, 2), jnp.int32), taps=jnp.zeros((1, size, 4), jnp.int32),
            weights=jnp.zeros((1, size, 4)),
        )  # fmt: skip
        self.encode_images(frames)
        tokens = jnp.zeros((1, 1), jnp.int32)
        everything = jnp.ones((1, 1, 1), bool)
        words = self.language_model.embed_tokens(tokens)
        hidden, _, _ = self.language_model.context(words, tokens, everything)
        self.language_model.logits(hidden)
