"""The one face that every model family shows to decoding and training.

N: tiles, R: visual rows, B: batch, S, L: length of a prompt or context, T: new tokens, C: cache
rows, M: branches, U: rows of a branch, D: width, F: width of the tapped hidden states,
V: vocabulary.

All methods are pure functions of their arguments. `params` is the plain nested dict of the family.
"""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from tiger_jax.models.config import LlavaNextConfig
from tiger_jax.models.llava_next import LlavaNext
from tiger_jax.ops.kv_cache import Context, KVCache
from tiger_jax.sharding.rules import LLAVA_NEXT_RULES, ParamRule, constrain

Params = dict


@dataclasses.dataclass(frozen=True)
class VisionLanguageModel:
    """A model family bound to a configuration and a compute dtype."""

    config: LlavaNextConfig
    module: nn.Module

    @property
    def dtype(self) -> DTypeLike:
        """The dtype of activations and caches."""
        return self.module.dtype

    @property
    def rules(self) -> tuple[ParamRule, ...]:
        """Where its parameters live on a mesh."""
        return LLAVA_NEXT_RULES

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

    def vision_features(
        self, params: Params, tiles: Float[Array, "N S S 3"]
    ) -> Float[Array, "N r E"]:
        """Rows of the vision tower before they are projected."""
        return self._apply(params, tiles, method="vision_features")

    def vision_saliency(
        self, params: Params, tiles: Float[Array, "N S S 3"]
    ) -> Float[Array, "N r"]:
        """How much the tower's class token looks at each of the rows of `vision_features`: in the
        layer that made them, mean over heads."""
        return self._apply(params, tiles, method="vision_saliency")

    def encode_images(self, params: Params, tiles: Float[Array, "N S S 3"]) -> Float[Array, "R D"]:
        """The flat table of visual rows that `embed` picks from; its last row is the newline."""
        return self._apply(params, tiles, method="encode_images")

    def embed(
        self, params: Params, tokens: Int[Array, "B S"],
        image_rows: Int[Array, "B S"] | None = None, table: Float[Array, "R D"] | None = None,
    ) -> Float[Array, "B S D"]:  # fmt: skip
        """Embeddings of a prompt: image_rows >= 0 names a row of `table`, -1 keeps the token."""
        return self._apply(params, tokens, image_rows, table, method="embed")

    def prefill(
        self, params: Params, x: Float[Array, "B S D"], cache: KVCache,
        taps: tuple[int, ...] = (), positions: Int[Array, "B S"] | None = None,
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
        self, params: Params, tokens: Int[Array, "B T"], positions: Int[Array, "B T"],
        cache: KVCache, starts: Int[Array, "B"], mask: Bool[Array, "B T C"],
        taps: tuple[int, ...] = (),
    ) -> tuple[Float[Array, "B T D"], KVCache, Float[Array, "B T F"]]:  # fmt: skip
        """Run T more tokens of each sequence, stored from cache row starts[b] on.

        `mask[b, t]` says which cache rows token t sees, its own among them: a chain or a tree.
        """
        x = self.embed(params, tokens)
        return self.extend_embedded(params, x, positions, cache, starts, mask, taps)

    def extend_embedded(
        self, params: Params, x: Float[Array, "B T D"], positions: Int[Array, "B T"],
        cache: KVCache, starts: Int[Array, "B"], mask: Bool[Array, "B T C"],
        taps: tuple[int, ...] = (),
    ) -> tuple[Float[Array, "B T D"], KVCache, Float[Array, "B T F"]]:  # fmt: skip
        """`extend` by rows that are embedded already, such as routed visual tokens."""
        return self._text(params, "extend", x, positions, cache, starts, mask, taps)

    def context(
        self, params: Params, x: Float[Array, "B L D"], positions: Int[Array, "B L"],
        mask: Bool[Array, "#B L L"], taps: tuple[int, ...] = (),
    ) -> tuple[Float[Array, "B L D"], Context, Float[Array, "B L F"]]:  # fmt: skip
        """Training pass of a text that others continue: hidden states, keys and values, and the
        hidden states at `taps`."""
        return self._text(params, "context", x, positions, mask, taps)

    def branch(
        self, params: Params, x: Float[Array, "B M T D"], positions: Int[Array, "B M T"],
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
        self, params: Params, layer: int, x: Float[Array, "B T D"], positions: Int[Array, "B T"],
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
    config: LlavaNextConfig, dtype: DTypeLike = jnp.float32, remat: bool = False
) -> VisionLanguageModel:
    """The model of a configuration.

    Args:
        dtype: of activations and caches.
        remat: `context` and `branch` loop over stacked layers and keep no activations inside them.
    """
    return VisionLanguageModel(config, LlavaNext(config=config, dtype=dtype, remat=remat))
