"""The Llama decoder, with one way through it for each use: prefill, cached extension, training.

B: batch, T: tokens, C: cache rows, P: prefix tokens, H: query heads, K: key/value heads, d: head
dim, D: width, V: vocabulary.

Layers are unrolled in Python with one cache array each: scanning them would copy every layer's
weights, and the caches, in each decoding step (docs/decisions.md).
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from tiger_jax.models.config import TextConfig
from tiger_jax.models.layers import Dense, Embedding, RMSNorm
from tiger_jax.ops import rotary
from tiger_jax.ops.attention import attend, attend_causal
from tiger_jax.ops.kv_cache import KVCache, append_rows

Rope = tuple[Array, Array]


class Attention(nn.Module):
    """Projections of grouped-query self-attention; the attention itself is the caller's choice."""

    config: TextConfig
    dtype: DTypeLike

    def setup(self) -> None:
        cfg = self.config
        self.query = Dense(cfg.num_heads * cfg.head_dim, dtype=self.dtype)
        self.key = Dense(cfg.num_kv_heads * cfg.head_dim, dtype=self.dtype)
        self.value = Dense(cfg.num_kv_heads * cfg.head_dim, dtype=self.dtype)
        self.out = Dense(cfg.hidden_size, dtype=self.dtype)

    def project(
        self, x: Float[Array, "B T D"], rope: Rope
    ) -> tuple[Float[Array, "B T H d"], Float[Array, "B T K d"], Float[Array, "B T K d"]]:
        """Rotated queries, rotated keys, values."""

        def heads(y: Array) -> Array:
            return y.reshape(*y.shape[:2], -1, self.config.head_dim)

        queries = rotary.rotate(heads(self.query(x)), *rope)
        keys = rotary.rotate(heads(self.key(x)), *rope)
        return queries, keys, heads(self.value(x))


class GatedMLP(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    config: TextConfig
    dtype: DTypeLike

    def setup(self) -> None:
        self.gate = Dense(self.config.intermediate_size, dtype=self.dtype)
        self.up = Dense(self.config.intermediate_size, dtype=self.dtype)
        self.down = Dense(self.config.hidden_size, dtype=self.dtype)

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        return self.down(jax.nn.silu(self.gate(x)) * self.up(x))


class DecoderLayer(nn.Module):
    """One pre-norm layer, split at the attention so that each caller brings its own."""

    config: TextConfig
    dtype: DTypeLike

    def setup(self) -> None:
        self.input_norm = RMSNorm(self.config.rms_norm_eps)
        self.attention = Attention(self.config, self.dtype)
        self.post_attention_norm = RMSNorm(self.config.rms_norm_eps)
        self.mlp = GatedMLP(self.config, self.dtype)

    def project(self, x: Float[Array, "B T D"], rope: Rope) -> tuple[Array, Array, Array]:
        """Queries, keys and values of the normed input."""
        return self.attention.project(self.input_norm(x), rope)

    def finish(
        self, x: Float[Array, "B T D"], mixed: Float[Array, "B T Hd"]
    ) -> Float[Array, "B T D"]:
        """Add the attention's output, then the MLP's."""
        x = x + self.attention.out(mixed)
        return x + self.mlp(self.post_attention_norm(x))


class TextDecoder(nn.Module):
    """Token embeddings, decoder layers, final norm and language-model head."""

    config: TextConfig
    dtype: DTypeLike

    def setup(self) -> None:
        cfg = self.config
        self.embed_tokens = Embedding(cfg.vocab_size, cfg.hidden_size, dtype=self.dtype)
        self.layers = [DecoderLayer(cfg, self.dtype) for _ in range(cfg.num_layers)]
        self.final_norm = RMSNorm(cfg.rms_norm_eps)
        if not cfg.tie_embeddings:
            self.lm_head = Dense(cfg.vocab_size, dtype=self.dtype)

    def prefill(
        self, x: Float[Array, "B T D"], positions: Int[Array, "B T"], cache: KVCache,
        taps: tuple[int, ...] = (),
    ) -> tuple[Float[Array, "B T D"], KVCache, Float[Array, "B T F"]]:  # fmt: skip
        """Run fresh prompts and write their keys and values into rows 0 .. T - 1 of the cache.

        Prompts are padded on the right; what pads write lies beyond the caller's lengths.
        """
        starts = jnp.zeros((x.shape[0],), jnp.int32)

        def attention(index: int, queries: Array, keys: Array, values: Array) -> Array:
            stored.append(
                (append_rows(cache.keys[index], keys, starts),
                 append_rows(cache.values[index], values, starts))
            )  # fmt: skip
            return attend_causal(queries, keys, values)

        stored: list[tuple[Array, Array]] = []
        hidden, tapped = self._run(x, positions, attention, taps)
        return hidden, _as_cache(stored), tapped

    def extend(
        self, x: Float[Array, "B T D"], positions: Int[Array, "B T"], cache: KVCache,
        starts: Int[Array, "B"], mask: Bool[Array, "B T C"], taps: tuple[int, ...] = (),
    ) -> tuple[Float[Array, "B T D"], KVCache, Float[Array, "B T F"]]:  # fmt: skip
        """Run T more tokens of each sequence, stored at cache rows starts[b] .. starts[b] + T - 1.

        `mask` says which cache rows each token sees, its own among them; for a chain that is every
        row up to its own, for a tree its committed prefix and its ancestors.
        """

        def attention(index: int, queries: Array, keys: Array, values: Array) -> Array:
            all_keys = append_rows(cache.keys[index], keys, starts)
            all_values = append_rows(cache.values[index], values, starts)
            stored.append((all_keys, all_values))
            return attend(queries, all_keys, all_values, mask)

        stored: list[tuple[Array, Array]] = []
        hidden, tapped = self._run(x, positions, attention, taps)
        return hidden, _as_cache(stored), tapped

    def branch(
        self, x: Float[Array, "B N T D"], positions: Int[Array, "B N T"],
        prefix: Float[Array, "B P D"], prefix_lengths: Int[Array, "B"],
    ) -> Float[Array, "B N T D"]:  # fmt: skip
        """Training pass: N branches of T tokens, each continuing one shared prefix, without a
        cache.

        The prefix runs causally once; a branch sees the prefix and itself causally, never its
        siblings. The result holds the branches' hidden states only.
        """
        batch, branches, length, width = x.shape
        prefix_positions = jnp.broadcast_to(
            jnp.arange(prefix.shape[1], dtype=jnp.int32)[None], prefix.shape[:2]
        )
        prefix_rope = self._rope(prefix_positions)
        rope = self._rope(positions.reshape(batch * branches, length))
        mask = _branch_mask(prefix_lengths, prefix.shape[1], branches, length)
        flat = x.reshape(batch * branches, length, width)
        for layer in self.layers:
            queries, keys, values = layer.project(prefix, prefix_rope)
            prefix = layer.finish(prefix, attend_causal(queries, keys, values))
            own_queries, own_keys, own_values = layer.project(flat, rope)
            keys, values = (
                jnp.concatenate([jnp.repeat(shared, branches, axis=0), own], axis=1).swapaxes(1, 2)
                for shared, own in ((keys, own_keys), (values, own_values))
            )
            flat = layer.finish(flat, attend(own_queries, keys, values, mask))
        return self.final_norm(flat).reshape(x.shape)

    def logits(self, hidden: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
        """Scores over the vocabulary, float32."""
        if self.config.tie_embeddings:
            hidden = hidden @ self.embed_tokens.embedding.astype(self.dtype).T
        else:
            hidden = self.lm_head(hidden)
        return hidden.astype(jnp.float32)

    def _rope(self, positions: Int[Array, "B T"]) -> Rope:
        cfg = self.config
        return rotary.rotary_tables(positions, cfg.head_dim, cfg.rope_theta, self.dtype)

    def _run(self, x, positions, attention, taps: tuple[int, ...]) -> tuple[Array, Array]:
        """All layers and the final norm; `taps` are hidden-state indices, 0 being the
        embeddings.
        """
        rope = self._rope(positions)
        states = [x]
        for index, layer in enumerate(self.layers):
            x = layer.finish(x, attention(index, *layer.project(x, rope)))
            states.append(x)
        tapped = [states[tap] for tap in taps] or [x[..., :0]]
        return self.final_norm(x), jnp.concatenate(tapped, axis=-1)


def _as_cache(stored: list[tuple[Array, Array]]) -> KVCache:
    keys, values = zip(*stored, strict=True)
    return KVCache(keys=keys, values=values)


def _branch_mask(
    prefix_lengths: Int[Array, "B"], prefix_size: int, branches: int, length: int
) -> Bool[Array, "BN T PT"]:
    """[prefix | branch]: the real prefix tokens, then the branch up to and including itself."""
    real = jnp.arange(prefix_size)[None] < prefix_lengths[:, None]
    real = jnp.repeat(real, branches, axis=0)[:, None]
    shape = (real.shape[0], length)
    causal = jnp.tril(jnp.ones((length, length), bool))[None]
    return jnp.concatenate(
        [
            jnp.broadcast_to(real, (*shape, prefix_size)),
            jnp.broadcast_to(causal, (*shape, length)),
        ],
        axis=-1,
    )
