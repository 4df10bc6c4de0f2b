"""LLaVA-NeXT (LLaVA-v1.6): CLIP tower, projector, anyres packing by one gather, Llama decoder.

N: tiles of a whole batch, R: rows of the flat visual table, B: prompts, S: prompt length, D: width.

Packing is a host matter: which tower rows an image keeps, and where its newlines stand, depends
only on the image's size (models/image_geometry.py). The jitted part sees one table of visual rows,
its last one the image_newline, and one index per prompt token.

PooledTiles are averaged in squares behind the projector: each mean is one row of the same table.
"""

import dataclasses
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from tiger_jax.models.clip_vision import VISION_RULES, ClipVision
from tiger_jax.models.config import LlavaNextConfig
from tiger_jax.models.frames import PooledTiles
from tiger_jax.models.layers import Dense, activation
from tiger_jax.models.text_decoder import DECODER_RULES, TextDecoder
from tiger_jax.ops.pooling import pool_squares
from tiger_jax.sharding.rules import ParamRule

# As Frames of models/qwen3_vision.py.
jax.tree_util.register_dataclass(
    PooledTiles, [field.name for field in dataclasses.fields(PooledTiles)], meta_fields=[]
)

TILES_AT_ONCE = 64
"""Pooled tiles in the tower at once: the scores of 1,000 real ones would take 20 GB in a layer."""

Tiles = Float[Array, "N S S 3"] | PooledTiles

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

    def vision_features(self, tiles: Tiles) -> Float[Array, "N r F"]:
        """Tower rows before the projector, the class token dropped unless the strategy is full;
        means of them where tiles are pooled."""
        return self._in_parts(LlavaNext._states, tiles)

    def vision_saliency(self, tiles: Tiles) -> Float[Array, "N r"]:
        """The class token's attention to the rows of `vision_features`; a square's is the mean of
        its patches', so that tokens of pooled and other tiles compare."""
        return self._in_parts(LlavaNext._looks, tiles)[..., 0]

    def encode_images(self, tiles: Tiles) -> Float[Array, "R D"]:
        """The flat table of visual rows: N * rows_per_tile projected rows, then image_newline.

        The rows of pooled tiles are averaged behind the projector; where the means lie says
        image_geometry.pooled_token_rows.
        """
        newline = self.image_newline.astype(self.dtype)[None]
        if not len(tiles):  # a batch without pictures
            return newline
        projected = self._in_parts(LlavaNext._projected, tiles)
        return jnp.concatenate([projected.reshape(-1, projected.shape[-1]), newline], axis=0)

    def _states(self, pixels: Float[Array, "N S S 3"]) -> Float[Array, "N r F"]:
        states = self.vision_tower(pixels, self.config.feature_layers)
        return states if self.config.select_strategy == "full" else states[:, 1:]

    def _looks(self, pixels: Float[Array, "N S S 3"]) -> Float[Array, "N r 1"]:
        looks = self.vision_tower.class_attention(pixels, self.config.feature_layers)[..., None]
        return looks if self.config.select_strategy == "full" else looks[:, 1:]

    def _projected(self, pixels: Float[Array, "N S S 3"]) -> Float[Array, "N r D"]:
        return self.projector(self.vision_features(pixels))

    def _in_parts(
        self, rows_of: Callable[["LlavaNext", Array], Array], tiles: Tiles
    ) -> Float[Array, "N r _"]:
        """The rows of all tiles; of pooled ones some tiles after the other, averaged."""
        if not isinstance(tiles, PooledTiles):
            return rows_of(self, tiles)

        def pooled(module: LlavaNext, _: None, part: PooledTiles) -> tuple[None, Array]:
            return None, pool_squares(rows_of(module, part.pixels), part.strides)

        at_once = _divisor(len(tiles))
        if at_once == len(tiles):
            return pooled(self, None, tiles)[1]
        parts = jax.tree.map(lambda leaf: leaf.reshape(-1, at_once, *leaf.shape[1:]), tiles)
        scan = nn.scan(pooled, variable_broadcast="params", split_rngs={"params": False})
        rows = scan(self, None, parts)[1]
        return rows.reshape(len(tiles), *rows.shape[2:])

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


def _divisor(count: int) -> int:
    """The largest divisor of a number of tiles that is at most TILES_AT_ONCE."""
    return next(part for part in range(min(count, TILES_AT_ONCE), 0, -1) if count % part == 0)
