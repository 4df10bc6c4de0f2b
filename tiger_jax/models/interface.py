"""The one face that every model family shows to decoding and training.

N: tiles, R: visual rows, B: batch, S, L: length of a prompt or context, T: new tokens, C: cache
rows, M: branches, U: rows of a branch, D: width, W: width of a visual row, F: width of the tapped
hidden states, V: vocabulary, A: axes of a position.

All methods are pure functions of their arguments. `params` is the plain nested dict of the family.

Positions are one number a token, or one for each of the family's axes; a token of a text may always
have one. Embedded tokens are D wide, or as wide as a visual row: then what stands behind the
embedding is added after the decoder's first layers, and `widen` makes text of the same width.
"""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from tiger_jax.models import llava_next, qwen3_vl
from tiger_jax.models.config import LlavaNextConfig, ModelConfig, Qwen3VLConfig
from tiger_jax.models.frames import Frames, PooledTiles
from tiger_jax.models.layers import widen
from tiger_jax.ops.kv_cache import Context, KVCache
from tiger_jax.sharding.rules import ParamRule, constrain

Params = dict
DeviceTiles = Float[Array, "tiles side side 3"] | Frames | PooledTiles
"""What the vision tower of a family takes."""
FAMILIES = {
    LlavaNextConfig: (llava_next.LlavaNext, llava_next.RULES),
    Qwen3VLConfig: (qwen3_vl.Qwen3VL, qwen3_vl.RULES),
}
"""What a configuration stands for: its module and where its parameters live on a mesh."""


@dataclasses.dataclass(frozen=True)
class VisionLanguageModel:
    """A model family bound to a configuration and a compute dtype."""

    config: ModelConfig
    module: nn.Module

    @property
    def dtype(self) -> DTypeLike:
        """The dtype of activations and caches."""
        return self.module.dtype

    @property
    def rules(self) -> tuple[ParamRule, ...]:
        """Where its parameters live on a mesh."""
        return FAMILIES[type(self.config)][1]

    @property
    def tower_rules(self) -> tuple[ParamRule, ...]:
        """Those of its vision tower alone."""
        return tuple(rule for rule in self.rules if rule.pattern.startswith("vision_tower/"))

    @property
    def row_width(self) -> int:
        """W: numbers of a visual row."""
        return self.module.row_width

    def unrolled(self) -> "VisionLanguageModel":
        """The model for passes without a gradient."""
        return dataclasses.replace(self, module=self.module.clone(remat=False))

    @property
    def decoder_weights(self) -> int:
        """Weights that a token meets: the layers' matrices and the head."""
        text = self.config.text
        inner = text.head_dim * (text.num_heads + text.num_kv_heads)
        layer = text.hidden_size * (2 * inner + 3 * text.intermediate_size)
        return text.num_layers * layer + text.vocab_size * text.hidden_size

    def init_params(self, key: Array, dtype: DTypeLike = jnp.float32) -> Params:
        """Random parameters."""
        params = self.module.init(key, method="declare")["params"]
        return jax.tree.map(lambda x: x.astype(dtype), params)

    def abstract_params(self, dtype: DTypeLike = jnp.float32) -> Params:
        """Shapes and dtypes of the parameters, without any memory."""
        return jax.eval_shape(lambda: self.init_params(jax.random.key(0), dtype))

    def init_cache(self, batch: int, capacity: int) -> KVCache:
        """An empty cache of `capacity` rows for each of `batch` sequences."""
        text = self.config.text
        shape = (batch, text.num_kv_heads, capacity, text.head_dim)
        cache = KVCache.zeros(text.num_layers, shape, self.dtype)
        return jax.tree.map(lambda rows: constrain(rows, "batch", "kv_heads", None, None), cache)

    def vision_features(self, params: Params, tiles: DeviceTiles) -> Float[Array, "N r E"]:
        """Rows of the vision tower before they are projected, one a visual token."""
        return self._apply(params, tiles, method="vision_features")

    def vision_saliency(self, params: Params, tiles: DeviceTiles) -> Float[Array, "N r"]:
        """How much the tower looks at each of the rows of `vision_features`, in the layer that made
        them, mean over heads: its class token, or all rows of the frame where it has none."""
        return self._apply(params, tiles, method="vision_saliency")

    def encode_images(self, params: Params, tiles: DeviceTiles) -> Float[Array, "R W"]:
        """The flat table of visual rows that `embed` picks from, tile by tile; a family with a
        newline has it in the last row."""
        return self._apply(params, tiles, method="encode_images")

    def embed(
        self, params: Params, tokens: Int[Array, "B S"],
        image_rows: Int[Array, "B S"] | None = None, table: Float[Array, "R W"] | None = None,
    ) -> Float[Array, "B S X"]:  # fmt: skip
        """Embeddings of a prompt: image_rows >= 0 names a row of `table`, -1 keeps the token."""
        return self._apply(params, tokens, image_rows, table, method="embed")

    def widen(self, words: Float[Array, "*B D"]) -> Float[Array, "*B W"]:
        """Embedded text with the width of a visual row: nothing is added to it later."""
        return widen(words, self.row_width)

    def prefill(
        self, params: Params, x: Float[Array, "B S W"], cache: KVCache,
        taps: tuple[int, ...] = (), positions: Int[Array, "B S *A"] | None = None,
    ) -> tuple[Float[Array, "B S D"], KVCache, Float[Array, "B S F"]]:  # fmt: skip
        """Run right-padded prompts, at positions 0 .. S - 1 unless told, into an empty cache.

        Returns hidden states after the final norm, the cache, and the hidden states at `taps`
        side by side (Hugging Face numbering: 0 = embeddings, i = output of layer i - 1).
        """
        if positions is None:
            positions = jnp.arange(x.shape[1], dtype=jnp.int32)[None]
            positions = jnp.broadcast_to(positions, x.shape[:2])
        return self._text(params, "prefill", x, positions, cache, taps)

    def extend(
        self, params: Params, tokens: Int[Array, "B T"], positions: Int[Array, "B T *A"],
        cache: KVCache, starts: Int[Array, "B"], mask: Bool[Array, "B T C"],
        taps: tuple[int, ...] = (),
    ) -> tuple[Float[Array, "B T D"], KVCache, Float[Array, "B T F"]]:  # fmt: skip
        """Run T more tokens of each sequence, stored from cache row starts[b] on.

        `mask[b, t]` says which cache rows token t sees, its own among them: a chain or a tree.
        """
        x = self.embed(params, tokens)
        return self.extend_embedded(params, x, positions, cache, starts, mask, taps)

    def extend_embedded(
        self, params: Params, x: Float[Array, "B T W"], positions: Int[Array, "B T *A"],
        cache: KVCache, starts: Int[Array, "B"], mask: Bool[Array, "B T C"],
        taps: tuple[int, ...] = (),
    ) -> tuple[Float[Array, "B T D"], KVCache, Float[Array, "B T F"]]:  # fmt: skip
        """`extend` by rows that are embedded already, such as routed visual tokens."""
        return self._text(params, "extend", x, positions, cache, starts, mask, taps)

    def context(
        self, params: Params, x: Float[Array, "B L W"], positions: Int[Array, "B L *A"],
        mask: Bool[Array, "#B L L"], taps: tuple[int, ...] = (),
    ) -> tuple[Float[Array, "B L D"], Context, Float[Array, "B L F"]]:  # fmt: skip
        """Training pass of a text that others continue: hidden states, keys and values, and the
        hidden states at `taps`."""
        return self._text(params, "context", x, positions, mask, taps)

    def branch(
        self, params: Params, x: Float[Array, "B M T W"], positions: Int[Array, "B M T *A"],
        context: Context, context_mask: Bool[Array, "B M #T S"],
        own_mask: Bool[Array, "#B #M T U"], own: Context | None = None,
        start: Int[Array, ""] | int = 0, taps: tuple[int, ...] = (),
    ) -> tuple[
        Float[Array, "B M T D"], Context, Float[Array, "B M T S"], Float[Array, "B M T F"]
    ]:  # fmt: skip
        """M short texts that continue one context: hidden states, their keys and values, how much
        each token looks at the context, and the hidden states at `taps`. With `own` the T tokens
        are written into it at `start` (TextDecoder.branch)."""
        return self._text(
            params, "branch", x, positions, context, context_mask, own_mask, own, start, taps
        )

    def attention_weights(
        self, params: Params, layer: int, x: Float[Array, "B T D"], positions: Int[Array, "B T *A"],
        keys: Float[Array, "B K C d"], mask: Bool[Array, "B T C"],
    ) -> Float[Array, "B T C"]:  # fmt: skip
        """How much T tokens look at the cached keys of one layer, mean over heads, float32.

        Args:
            x: hidden states before the layer: `prefill` with the tap `layer`.
        """
        return self._text(params, "attention_weights", layer, x, positions, keys, mask)

    def logits(self, params: Params, hidden: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
        """Scores over the vocabulary, float32."""
        return self._text(params, "logits", hidden)

    def _apply(self, params: Params, *args, method):
        return self.module.apply({"params": params}, *args, method=method)

    def _text(self, params: Params, name: str, *args):
        def call(module: nn.Module, *inner):
            return getattr(module.language_model, name)(*inner)

        return self._apply(params, *args, method=call)


def build_model(
    config: ModelConfig, dtype: DTypeLike = jnp.float32, remat: bool = False
) -> VisionLanguageModel:
    """The model of a configuration.

    Args:
        dtype: of activations and caches.
        remat: `context` and `branch` loop over stacked layers and keep no activations inside them.
    """
    module, _ = FAMILIES[type(config)]
    return VisionLanguageModel(config, module(config=config, dtype=dtype, remat=remat))
