"""The vision tower of Qwen3-VL, and the mergers that turn squares of patches into visual tokens.

N: tiles, P: patches of a tile, V: numbers of a patch, E: tower width, H: heads, d: head dim,
r: visual tokens of a tile (P / 4), D: width of the decoder.

Attention stays inside a frame. Tiles are the batch axis, padded to one number of patches; most
hold one frame. At real sizes no [P, P] mask is made: queries go in blocks (ops/attention.py). Which
patch stands where, and which rows of the position table it lies between, is the host's matter
(models/frame_geometry.py).
"""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from tiger_jax.models.config import Qwen3VisionConfig
from tiger_jax.models.frames import Frames
from tiger_jax.models.layers import Dense, Embedding, LayerNorm, activation
from tiger_jax.ops import rotary
from tiger_jax.ops.attention import attend_segments, attention_received
from tiger_jax.ops.rotary import rotate
from tiger_jax.sharding.rules import ParamRule, constrain

EPS = 1e-6
"""Of every layer norm; no config names it."""

# The class is made where no jax is (models/frames.py); here it becomes a pytree, as flax makes one.
jax.tree_util.register_dataclass(
    Frames, [field.name for field in dataclasses.fields(Frames)], meta_fields=[]
)

VISION_RULES = (
    ParamRule(r"vision_tower/patch_embedding/kernel", (None, "embed")),
    ParamRule(r"vision_tower/position_embedding/embedding", (None, "embed")),
    ParamRule(r"vision_tower/.*/norm\d/(scale|bias)", (None,)),
    # Queries, keys and values lie side by side: a cut over heads would go through between them.
    ParamRule(r"vision_tower/.*/attention/qkv/kernel", ("embed", None)),
    ParamRule(r"vision_tower/.*/attention/out/kernel", (None, "embed")),
    ParamRule(r"vision_tower/.*/mlp/fc1/kernel", ("embed", "mlp")),
    ParamRule(r"vision_tower/.*/mlp/fc1/bias", ("mlp",)),
    ParamRule(r"vision_tower/.*/mlp/fc2/kernel", ("mlp", "embed")),
    ParamRule(r"vision_tower/(.*/)?(patch_embedding|qkv|out|fc2)/bias", (None,)),
)
"""Where the tower's parameters live on a mesh."""


Rope = tuple[Array, Array]


class Attention(nn.Module):
    """Full self-attention of a frame, with one projection for queries, keys and values."""

    config: Qwen3VisionConfig
    dtype: DTypeLike

    def setup(self) -> None:
        width = self.config.hidden_size
        self.qkv = Dense(3 * width, use_bias=True, dtype=self.dtype)
        self.out = Dense(width, use_bias=True, dtype=self.dtype)

    def __call__(self, x: Float[Array, "N P E"], segments: Array, rope: Rope) -> Array:
        return self.out(attend_segments(*self._project(x, rope), segments))

    def received(self, x: Float[Array, "N P E"], segments: Array, rope: Rope) -> Array:
        """How much the patches of its frame look at each patch, mean over them and over heads."""
        queries, keys, _ = self._project(x, rope)
        return attention_received(queries, keys, segments)

    def _project(self, x: Float[Array, "N P E"], rope: Rope) -> tuple[Array, Array, Array]:
        heads = (*x.shape[:2], 3, self.config.num_heads, -1)
        # The projection is whole on each device; from here on each has its own heads.
        queries, keys, values = (
            constrain(y, "batch", None, "heads", None)
            for y in jnp.moveaxis(self.qkv(x).reshape(heads), 2, 0)
        )
        # Turned in float32, unlike the decoder's.
        turned = (rotate(y.astype(jnp.float32), *rope).astype(self.dtype) for y in (queries, keys))
        return *turned, values


class MLP(nn.Module):
    """fc2(act(fc1(x)))."""

    hidden: int
    features: int
    activation: str
    dtype: DTypeLike

    def setup(self) -> None:
        self.fc1 = Dense(self.hidden, use_bias=True, dtype=self.dtype)
        self.fc2 = Dense(self.features, use_bias=True, dtype=self.dtype)

    def __call__(self, x: Float[Array, "*B E"]) -> Float[Array, "*B O"]:
        return self.fc2(activation(self.activation)(self.fc1(x)))


class EncoderLayer(nn.Module):
    """One pre-norm block."""

    config: Qwen3VisionConfig
    dtype: DTypeLike

    def setup(self) -> None:
        cfg = self.config
        self.norm1 = LayerNorm(EPS)
        self.attention = Attention(cfg, self.dtype)
        self.norm2 = LayerNorm(EPS)
        self.mlp = MLP(cfg.intermediate_size, cfg.hidden_size, cfg.activation, self.dtype)

    def __call__(self, x: Float[Array, "N P E"], segments: Array, rope: Rope) -> Array:
        x = x + self.attention(self.norm1(x), segments, rope)
        return x + self.mlp(self.norm2(x))

    def received(self, x: Float[Array, "N P E"], segments: Array, rope: Rope) -> Array:
        """How much each patch is looked at in this block."""
        return self.attention.received(self.norm1(x), segments, rope)


class Qwen3Vision(nn.Module):
    """Patches to rows."""

    config: Qwen3VisionConfig
    dtype: DTypeLike

    def setup(self) -> None:
        cfg = self.config
        self.patch_embedding = Dense(cfg.hidden_size, use_bias=True, dtype=self.dtype)
        self.position_embedding = Embedding(cfg.num_positions, cfg.hidden_size, self.dtype)
        self.layers = [EncoderLayer(cfg, self.dtype) for _ in range(cfg.num_layers)]

    def __call__(
        self, frames: Frames
    ) -> tuple[Float[Array, "N P E"], tuple[Float[Array, "N P E"], ...]]:
        """Rows of the last block, and of the blocks that DeepStack taps, in their order there."""
        outputs = self._states(frames)[1:]
        return outputs[-1], tuple(outputs[layer] for layer in self.config.deepstack_layers)

    def received(self, frames: Frames) -> Float[Array, "N P"]:
        """How much each patch is looked at in the last block."""
        before = self._states(frames)[-2]
        return self.layers[-1].received(before, segments_of(frames), self._rope(frames))

    def embed(self, frames: Frames) -> Float[Array, "N P E"]:
        """Projected patches with their interpolated positions."""
        return self.patch_embedding(frames.patches) + self.positions(frames)

    def positions(self, frames: Frames) -> Float[Array, "N P E"]:
        """The learned table between its rows: products and sum in float32, then one cast."""
        parts = [
            self.position_embedding(frames.taps[..., tap]).astype(jnp.float32)
            * frames.weights[..., tap : tap + 1]
            for tap in range(frames.taps.shape[-1])
        ]
        return sum(parts).astype(self.dtype)

    def _states(self, frames: Frames) -> list[Float[Array, "N P E"]]:
        """What enters the first block, and what leaves each."""
        segments, rope = segments_of(frames), self._rope(frames)
        states = [self.embed(frames)]
        for layer in self.layers:
            states.append(layer(states[-1], segments, rope))
        return states

    def _rope(self, frames: Frames) -> Rope:
        head_dim = self.config.hidden_size // self.config.num_heads
        return rotary.grid_tables(frames.places, head_dim)


class Merger(nn.Module):
    """Squares of patches to visual tokens: norm, two layers with an exact GELU between them."""

    config: Qwen3VisionConfig
    dtype: DTypeLike
    norm_squares: bool = False
    """Whether the norm goes over a whole square (DeepStack's) or over each patch (the last one)."""

    def setup(self) -> None:
        cfg = self.config
        self.norm = LayerNorm(EPS)
        square = cfg.merge_size**2 * cfg.hidden_size
        # fc1 and fc2 stand beside the norm in the checkpoint, so they are no module of their own.
        self.fc1 = Dense(square, use_bias=True, dtype=self.dtype)
        self.fc2 = Dense(cfg.out_hidden_size, use_bias=True, dtype=self.dtype)

    def __call__(self, rows: Float[Array, "N P E"]) -> Float[Array, "N r D"]:
        if self.norm_squares:
            squares = self.norm(group_squares(rows, self.config))
        else:
            squares = group_squares(self.norm(rows), self.config)
        return self.fc2(activation("gelu")(self.fc1(squares)))


def segments_of(frames: Frames) -> Int[Array, "N P"]:
    """Which frame of its tile each patch belongs to, -1 behind the last: a frame begins at its
    patch (0, 0)."""
    first = (frames.places == 0).all(axis=-1)
    real = jnp.arange(first.shape[1])[None] < frames.counts[:, None]
    return jnp.where(real, jnp.cumsum(first, axis=1) - 1, -1)


def group_squares(rows: Float[Array, "N P E"], config: Qwen3VisionConfig) -> Float[Array, "N r F"]:
    """The patches of each visual token side by side."""
    return rows.reshape(rows.shape[0], -1, config.merge_size**2 * rows.shape[-1])
