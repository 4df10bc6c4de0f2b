"""The CLIP vision transformer (Radford et al., arXiv 2103.00020), one tile at a time.

N: tiles, R: rows (class token + patches), E: width, H: heads, d: head dim, p: patch side.
"""

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from tiger_jax.errors import UserError
from tiger_jax.models.config import VisionConfig
from tiger_jax.models.layers import Dense, Embedding, LayerNorm, activation
from tiger_jax.ops.attention import attend, attention_weights
from tiger_jax.sharding.rules import ParamRule

VISION_RULES = (
    ParamRule(r"vision_tower/class_embedding", (None,)),
    ParamRule(r"vision_tower/patch_embedding/kernel", (None, "embed")),
    ParamRule(r"vision_tower/position_embedding/embedding", (None, "embed")),
    ParamRule(r"vision_tower/(.*/)?\w*norm\d?/(scale|bias)", (None,)),
    ParamRule(r"vision_tower/.*/attention/(query|key|value)/kernel", ("embed", "heads")),
    ParamRule(r"vision_tower/.*/attention/(query|key|value)/bias", ("heads",)),
    ParamRule(r"vision_tower/.*/attention/out/kernel", ("heads", "embed")),
    ParamRule(r"vision_tower/.*/mlp/fc1/kernel", ("embed", "mlp")),
    ParamRule(r"vision_tower/.*/mlp/fc1/bias", ("mlp",)),
    ParamRule(r"vision_tower/.*/mlp/fc2/kernel", ("mlp", "embed")),
    ParamRule(r"vision_tower/.*/(attention/out|mlp/fc2)/bias", (None,)),
)
"""Where the tower's parameters live on a mesh."""


class Attention(nn.Module):
    """Full self-attention with biased projections."""

    config: VisionConfig
    dtype: DTypeLike

    def setup(self) -> None:
        width = self.config.hidden_size
        self.query = Dense(width, use_bias=True, dtype=self.dtype)
        self.key = Dense(width, use_bias=True, dtype=self.dtype)
        self.value = Dense(width, use_bias=True, dtype=self.dtype)
        self.out = Dense(width, use_bias=True, dtype=self.dtype)

    def __call__(self, x: Float[Array, "N R E"]) -> Float[Array, "N R E"]:
        queries, keys, values = (self._heads(f(x)) for f in (self.query, self.key, self.value))
        everything = jnp.ones((x.shape[0], x.shape[1], x.shape[1]), bool)
        return self.out(attend(queries, keys.swapaxes(1, 2), values.swapaxes(1, 2), everything))

    def first_row_weights(self, x: Float[Array, "N R E"]) -> Float[Array, "N R"]:
        """Where row 0 (the class token) looks, mean over heads."""
        query, keys = self._heads(self.query(x[:, :1])), self._heads(self.key(x))
        everything = jnp.ones((x.shape[0], 1, x.shape[1]), bool)
        return attention_weights(query, keys.swapaxes(1, 2), everything)[:, 0]

    def _heads(self, x: Float[Array, "N R E"]) -> Float[Array, "N R H d"]:
        return x.reshape(*x.shape[:2], self.config.num_heads, -1)


class MLP(nn.Module):
    """fc2(act(fc1(x)))."""

    config: VisionConfig
    dtype: DTypeLike

    def setup(self) -> None:
        self.fc1 = Dense(self.config.intermediate_size, use_bias=True, dtype=self.dtype)
        self.fc2 = Dense(self.config.hidden_size, use_bias=True, dtype=self.dtype)

    def __call__(self, x: Float[Array, "N R E"]) -> Float[Array, "N R E"]:
        return self.fc2(activation(self.config.activation)(self.fc1(x)))


class EncoderLayer(nn.Module):
    """One pre-norm block."""

    config: VisionConfig
    dtype: DTypeLike

    def setup(self) -> None:
        self.norm1 = LayerNorm(self.config.layer_norm_eps)
        self.attention = Attention(self.config, self.dtype)
        self.norm2 = LayerNorm(self.config.layer_norm_eps)
        self.mlp = MLP(self.config, self.dtype)

    def __call__(self, x: Float[Array, "N R E"]) -> Float[Array, "N R E"]:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))

    def class_attention(self, x: Float[Array, "N R E"]) -> Float[Array, "N R"]:
        """Where the class token looks, mean over heads."""
        return self.attention.first_row_weights(self.norm1(x))


class ClipVision(nn.Module):
    """The tower. Blocks behind the selected layer and post_norm are carried, never run."""

    config: VisionConfig
    dtype: DTypeLike

    def setup(self) -> None:
        cfg = self.config
        self.class_embedding = self.param(
            "class_embedding", nn.initializers.normal(0.02), (cfg.hidden_size,)
        )
        self.patch_embedding = Dense(cfg.hidden_size, dtype=self.dtype)
        self.position_embedding = Embedding(cfg.grid**2 + 1, cfg.hidden_size, dtype=self.dtype)
        self.pre_norm = LayerNorm(cfg.layer_norm_eps)
        self.layers = [EncoderLayer(cfg, self.dtype) for _ in range(cfg.num_layers)]
        self.post_norm = LayerNorm(cfg.layer_norm_eps)

    def __call__(
        self, tiles: Float[Array, "N S S 3"], feature_layers: tuple[int, ...]
    ) -> Float[Array, "N R F"]:
        """Hidden states at `feature_layers`, side by side (F = E * number of layers).

        The states are numbered as in Hugging Face: 0 after pre_norm, i after block i - 1, negative
        ones from the end; none of them has seen post_norm.
        """
        chosen = self._state_indices(feature_layers)
        x = self.embed(tiles)
        states = [x]
        for layer in self.layers[: max(chosen)]:
            x = layer(x)
            states.append(x)
        return jnp.concatenate([states[index] for index in chosen], axis=-1)

    def class_attention(
        self, tiles: Float[Array, "N S S 3"], feature_layers: tuple[int, ...]
    ) -> Float[Array, "N R"]:
        """Where the class token looks in the block behind the last of `feature_layers`, mean over
        heads; state 0 has no block and takes the first one's."""
        last = max(max(self._state_indices(feature_layers)) - 1, 0)
        x = self.embed(tiles)
        for layer in self.layers[:last]:
            x = layer(x)
        return self.layers[last].class_attention(x)

    def embed(self, tiles: Float[Array, "N S S 3"]) -> Float[Array, "N R E"]:
        """Class token and patches with positions, after pre_norm."""
        patches = self.patch_embedding(patch_rows(tiles, self.config.patch_size))
        first = self.class_embedding.astype(self.dtype)[None, None]
        first = jnp.broadcast_to(first, (patches.shape[0], 1, patches.shape[2]))
        rows = jnp.concatenate([first, patches], axis=1)
        positions = self.position_embedding(jnp.arange(rows.shape[1]))
        return self.pre_norm(rows + positions[None])

    def touch(self, tiles: Float[Array, "N S S 3"]) -> Array:
        """Run everything, also what no feature layer needs: declares every weight for `init`."""
        x = self.embed(tiles)
        for layer in self.layers:
            x = layer(x)
        return self.post_norm(x)

    def _state_indices(self, layers: tuple[int, ...]) -> list[int]:
        count = self.config.num_layers + 1
        for layer in layers:
            if not -count <= layer < count:
                raise UserError(
                    f"vision_feature_layer: expected {-count} <= layer < {count}, got {layer}"
                )
        return [layer % count for layer in layers]


def patch_rows(tiles: Float[Array, "N S S 3"], patch: int) -> Float[Array, "N g2 pp3"]:
    """Cut tiles into patches, row-major, each flattened in (row, column, channel) order."""
    count, side, _, channels = tiles.shape
    grid = side // patch
    rows = tiles.reshape(count, grid, patch, grid, patch, channels).transpose(0, 1, 3, 2, 4, 5)
    return rows.reshape(count, grid * grid, patch * patch * channels)
