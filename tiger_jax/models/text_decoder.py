"""The Llama decoder, with one way through it for each use: prefill, cached extension, training.

B: batch, T: tokens, C: cache rows, L, S: tokens of a context, M: branches, U: rows of a branch,
H: query heads, K: key/value heads, d: head dim, D: width, V: vocabulary.

Layers are unrolled in Python with one cache array each: scanning them would copy every layer's
weights, and the caches, in each decoding step (docs/decisions.md).
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from tiger_jax.models.config import TextConfig
from tiger_jax.models.layers import Dense, Embedding, RMSNorm
from tiger_jax.ops import rotary
from tiger_jax.ops.attention import (
    attend,
    attend_branches,
    attend_causal,
    attend_dense,
    attention_weights,
)
from tiger_jax.ops.kv_cache import Context, KVCache, append_rows

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
        return hidden, _gather_layers(KVCache, stored), tapped

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
        return hidden, _gather_layers(KVCache, stored), tapped

    def context(
        self, x: Float[Array, "B L D"], positions: Int[Array, "B L"], mask: Bool[Array, "#B L L"],
        taps: tuple[int, ...] = (),
    ) -> tuple[Float[Array, "B L D"], Context, Float[Array, "B L F"]]:  # fmt: skip
        """Training pass of a text that others continue: hidden states, keys and values, and the
        hidden states at `taps`.

        Between the attentions all tokens of the batch form one row [1, B * L, D]: the gradient of a
        kernel is then a plain matrix product instead of one that sums over two axes.
        """

        def attention(index: int, queries: Array, keys: Array, values: Array) -> Array:
            queries, keys, values = (_rows(h, *x.shape[:2]) for h in (queries, keys, values))
            stored.append((keys, values))
            return attend_dense(queries, keys, values, mask)

        stored: list[tuple[Array, Array]] = []
        hidden, tapped = self._run_flat(x, positions, attention, taps)
        return hidden, _gather_layers(Context, stored), tapped

    def branch(
        self, x: Float[Array, "B M T D"], positions: Int[Array, "B M T"], context: Context,
        context_mask: Bool[Array, "B M #T S"], own_mask: Bool[Array, "#B #M T U"],
        own: Context | None = None, start: Int[Array, ""] | int = 0, taps: tuple[int, ...] = (),
    ) -> tuple[
        Float[Array, "B M T D"], Context, Float[Array, "B M T S"], Float[Array, "B M T F"]
    ]:  # fmt: skip
        """M short texts that continue one context, each seeing a part of it and itself.

        With `own`, keys and values of U rows a branch, the T new tokens are written at `start` and
        see those before them: drafting step by step. Returns hidden states, the branches' keys and
        values, how much each token looks at the context (mean over heads and layers), and the
        hidden states at `taps`.
        """
        shape = x.shape[:3]

        def attention(index: int, queries: Array, keys: Array, values: Array) -> Array:
            queries, keys, values = (_rows(h, *shape) for h in (queries, keys, values))
            if own is not None:
                keys = lax.dynamic_update_slice_in_dim(own.keys[index], keys, start, axis=2)
                values = lax.dynamic_update_slice_in_dim(own.values[index], values, start, axis=2)
            stored.append((keys, values))
            shared = context.keys[index], context.values[index]
            mixed, look = attend_branches(queries, shared, (keys, values), context_mask, own_mask)
            looks.append(look)
            return mixed

        stored: list[tuple[Array, Array]] = []
        looks: list[Array] = []
        hidden, tapped = self._run_flat(x, positions, attention, taps)
        return hidden, _gather_layers(Context, stored), sum(looks) / len(looks), tapped

    def attention_weights(
        self, layer: int, x: Float[Array, "B T D"], positions: Int[Array, "B T"],
        keys: Float[Array, "B K C d"], mask: Bool[Array, "B T C"],
    ) -> Float[Array, "B T C"]:  # fmt: skip
        """How much a few tokens look at the cached keys of one layer, mean over heads; x are their
        states before it."""
        queries, _, _ = self.layers[layer].project(x, self._rope(positions))
        return attention_weights(queries, keys, mask)

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

    def _run_flat(
        self, x: Float[Array, "*B D"], positions: Int[Array, "*B"], attention, taps: tuple[int, ...]
    ) -> tuple[Array, Array]:
        """`_run` with all tokens in one row; `attention` brings them back into their own shape."""

        def flat(index: int, queries: Array, keys: Array, values: Array) -> Array:
            mixed = attention(index, queries, keys, values)
            return mixed.reshape(1, -1, mixed.shape[-2] * mixed.shape[-1])

        row = x.reshape(1, -1, x.shape[-1])
        found = self._run(row, positions.reshape(1, -1), flat, taps)
        return tuple(states.reshape(*x.shape[:-1], states.shape[-1]) for states in found)

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


def _rows(heads: Float[Array, "1 N H d"], *shape: int) -> Float[Array, "*B H d"]:
    return heads.reshape(*shape, *heads.shape[2:])


def _gather_layers(kind: type, stored: list[tuple[Array, Array]]):
    """(keys, values) of each layer as one KVCache or Context."""
    keys, values = zip(*stored, strict=True)
    return kind(keys=keys, values=values)
