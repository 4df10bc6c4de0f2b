"""LLaVA-NeXT (LLaVA-v1.6): CLIP tower, projector, anyres packing by one gather, Llama decoder.

N: tiles of a whole batch, R: rows of the flat visual table, B: prompts, S: prompt length, D: width.

Packing is a host matter: which tower rows an image keeps, and where its newlines stand, depends
only on the image's size (models/image_geometry.py). The jitted part sees one table of visual rows,
its last one the image_newline, and one index per prompt token.
"""

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from tiger_jax.models.clip_vision import VISION_RULES, ClipVision
from tiger_jax.models.config import LlavaNextConfig
from tiger_jax.models.layers import Dense, activation
from tiger_jax.models.text_decoder import DECODER_RULES, TextDecoder
from tiger_jax.sharding.rules import ParamRule

RULES = (
    ParamRule(r"image_newline", (None,)),
    *VISION_RULES,
    ParamRule(r"projector/linear_1/kernel", ("embed", "mlp")),
    ParamRule(r"projector/linear_1/bias", ("mlp",)),
    ParamRule(r"projector/linear_2/kernel", ("mlp", "embed")),
    ParamRule(r"projector/linear_2/bias", (None,)),
    *DECODER_RULES,
)
"""Where its parameters live on a mesh."""


class Projector(nn.Module):
    """linear_2(act(linear_1(x))) from the tower's width to the decoder's."""

    config: LlavaNextConfig
    dtype: DTypeLike

    def setup(self) -> None:
        width = self.config.text.hidden_size
        self.linear_1 = Dense(width, use_bias=True, dtype=self.dtype)
        self.linear_2 = Dense(width, use_bias=True, dtype=self.dtype)

    def __call__(self, x: Float[Array, "N r F"]) -> Float[Array, "N r D"]:
        return self.linear_2(activation(self.config.projector_activation)(self.linear_1(x)))


class LlavaNext(nn.Module):
    """All weights of one model; the methods are its separately jitted parts."""

    config: LlavaNextConfig
    dtype: DTypeLike = jnp.float32
    remat: bool = False
    """Of the decoder's training passes."""

    def setup(self) -> None:
        cfg = self.config
        self.image_newline = self.param(
            "image_newline", nn.initializers.normal(cfg.text.hidden_size**-0.5),
            (cfg.text.hidden_size,),
        )  # fmt: skip
        self.vision_tower = ClipVision(cfg.vision, self.dtype)
        self.projector = Projector(cfg, self.dtype)
        self.language_model = TextDecoder(cfg.text, self.dtype, self.remat)

    @property
    def row_width(self) -> int:
        """Width of a visual row: an embedding and nothing behind it."""
        return self.config.text.hidden_size

    @property
    def feature_width(self) -> int:
        """Width of `vision_features`."""
        return self.config.vision.hidden_size * len(self.config.feature_layers)

    def vision_features(self, tiles: Float[Array, "N S S 3"]) -> Float[Array, "N r F"]:
        """Tower rows before the projector, the class token dropped unless the strategy is full."""
        states = self.vision_tower(tiles, self.config.feature_layers)
        return states if self.config.select_strategy == "full" else states[:, 1:]

    def vision_saliency(self, tiles: Float[Array, "N S S 3"]) -> Float[Array, "N r"]:
        """The class token's attention to the rows of `vision_features`."""
        looks = self.vision_tower.class_attention(tiles, self.config.feature_layers)
        return looks if self.config.select_strategy == "full" else looks[:, 1:]

    def encode_images(self, tiles: Float[Array, "N S S 3"]) -> Float[Array, "R D"]:
        """The flat table of visual rows: N * rows_per_tile projected rows, then image_newline."""
        newline = self.image_newline.astype(self.dtype)[None]
        if not len(tiles):  # a batch without pictures
            return newline
        projected = self.projector(self.vision_features(tiles))
        return jnp.concatenate([projected.reshape(-1, projected.shape[-1]), newline], axis=0)

    def embed(
        self, tokens: Int[Array, "B S"], image_rows: Int[Array, "B S"] | None,
        table: Float[Array, "R D"] | None,
    ) -> Float[Array, "B S D"]:  # fmt: skip
        """Token embeddings with the visual rows in place: image_rows[b, s] >= 0 names a table
        row.
        """
        words = self.language_model.embed_tokens(tokens)
        if table is None:
            return words
        pictures = jnp.take(table, image_rows, axis=0, mode="clip")
        return jnp.where((image_rows >= 0)[..., None], pictures.astype(words.dtype), words)

    def declare(self) -> None:
        """Touch every weight once, on the smallest inputs; only `init` calls it."""
        side = self.config.vision.image_size
        tiles = jnp.zeros((1, side, side, 3), self.dtype)
        self.vision_tower.touch(tiles)
        self.encode_images(tiles)
        tokens = jnp.zeros((1, 1), jnp.int32)
        words = self.language_model.embed_tokens(tokens)
        everything = jnp.ones((1, 1, 1), bool)
        hidden, _, _ = self.language_model.context(words, tokens, everything)
        self.language_model.logits(hidden)
