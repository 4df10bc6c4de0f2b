"""The decoder of Llama and Qwen3, with one way through it for each use: prefill, cached extension,
training.

B: batch, T: tokens, C: cache rows, L, S: tokens of a context, M: branches, U: rows of a branch,
H: query heads, K: key/value heads, d: head dim, D: width, W: width of what enters, V: vocabulary,
A: axes of a position (ops/rotary.py).

What enters is D wide, or wider by a multiple of D: then the first D numbers are the embedding, and
the n-th D behind them are added to the output of layer n (DeepStack, arXiv 2406.04334).

Decoding unrolls the layers in Python with one cache array each: scanning them would copy every
layer's weights, and the caches, in each step. Training at real size scans them and computes each
layer anew in the backward pass, so that one layer's activations and gathered weights exist at a
time (docs/decisions.md).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

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
from tiger_jax.sharding.rules import ParamRule, constrain

Rope = tuple[Array, Array]
Columns = tuple[Sequence[Array] | Array, ...]
"""What every layer has one of: a tuple over layers, or an array whose first axis is layers."""
Attend = Callable[..., tuple[Array, tuple[Array, ...]]]
"""(queries, keys, values, *what the layer has) -> (mixed values, what the layer leaves)."""


DECODER_RULES = (
    ParamRule(r"language_model/embed_tokens/embedding", ("vocab", "embed")),
    ParamRule(r"language_model/(.*/)?\w*norm/scale", (None,)),
    ParamRule(r"language_model/.*/attention/(query|key|value)/kernel", ("embed", "heads")),
    ParamRule(r"language_model/.*/attention/out/kernel", ("heads", "embed")),
    ParamRule(r"language_model/.*/mlp/(gate|up)/kernel", ("embed", "mlp")),
    ParamRule(r"language_model/.*/mlp/down/kernel", ("mlp", "embed")),
    ParamRule(r"language_model/lm_head/kernel", ("embed", "vocab"), optional=True),
)
"""Where the decoder's parameters live on a mesh."""


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
        if cfg.qk_norm:
            self.query_norm = RMSNorm(cfg.rms_norm_eps)
            self.key_norm = RMSNorm(cfg.rms_norm_eps)

    def project(
        self, x: Float[Array, "B T D"], rope: Rope
    ) -> tuple[Float[Array, "B T H d"], Float[Array, "B T K d"], Float[Array, "B T K d"]]:
        """Rotated queries, rotated keys, values."""

        def heads(y: Array) -> Array:
            return y.reshape(*y.shape[:2], -1, self.config.head_dim)

        queries, keys = heads(self.query(x)), heads(self.key(x))
        if self.config.qk_norm:
            queries, keys = self.query_norm(queries), self.key_norm(keys)
        return rotary.rotate(queries, *rope), rotary.rotate(keys, *rope), heads(self.value(x))


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
    remat: bool = False
    """Scan the layers of training passes and keep only what goes from layer to layer."""

    def setup(self) -> None:
        cfg = self.config
        self.embed_tokens = Embedding(cfg.vocab_size, cfg.hidden_size, self.dtype, "vocab")
        self.layers = [DecoderLayer(cfg, self.dtype) for _ in range(cfg.num_layers)]
        self.final_norm = RMSNorm(cfg.rms_norm_eps)
        if not cfg.tie_embeddings:
            self.lm_head = Dense(cfg.vocab_size, dtype=self.dtype)

    def prefill(
        self, x: Float[Array, "B T W"], positions: Int[Array, "B T *A"], cache: KVCache,
        taps: tuple[int, ...] = (),
    ) -> tuple[Float[Array, "B T D"], KVCache, Float[Array, "B T F"]]:  # fmt: skip
        """Run fresh prompts and write their keys and values into rows 0 .. T - 1 of the cache.

        Prompts are padded on the right; what pads write lies beyond the caller's lengths.
        """
        starts = jnp.zeros((x.shape[0],), jnp.int32)

        def attention(queries: Array, keys: Array, values: Array, *rows: Array) -> Any:
            return attend_causal(queries, keys, values), _append(rows, keys, values, starts)

        hidden, stored, tapped = self._run(x, positions, attention, taps, _columns(cache))
        return hidden, KVCache(*stored), tapped

    def extend(
        self, x: Float[Array, "B T W"], positions: Int[Array, "B T *A"], cache: KVCache,
        starts: Int[Array, "B"], mask: Bool[Array, "B T C"], taps: tuple[int, ...] = (),
    ) -> tuple[Float[Array, "B T D"], KVCache, Float[Array, "B T F"]]:  # fmt: skip
        """Run T more tokens of each sequence, stored at cache rows starts[b] .. starts[b] + T - 1.

        `mask` says which cache rows each token sees, its own among them; for a chain that is every
        row up to its own, for a tree its committed prefix and its ancestors.
        """

        def attention(queries: Array, keys: Array, values: Array, *rows: Array) -> Any:
            stored = _append(rows, keys, values, starts)
            return attend(queries, *stored, mask), stored

        hidden, stored, tapped = self._run(x, positions, attention, taps, _columns(cache))
        return hidden, KVCache(*stored), tapped

    def context(
        self, x: Float[Array, "B L W"], positions: Int[Array, "B L *A"],
        mask: Bool[Array, "#B L L"], taps: tuple[int, ...] = (),
    ) -> tuple[Float[Array, "B L D"], Context, Float[Array, "B L F"]]:  # fmt: skip
        """Training pass of a text that others continue: hidden states, keys and values, and the
        hidden states at `taps`.

        Between the attentions all tokens of the batch form one row [1, B * L, D]: the gradient of a
        kernel is then a plain matrix product instead of one that sums over two axes.
        """

        def attention(queries: Array, keys: Array, values: Array) -> Any:
            queries, keys, values = (_rows(h, *x.shape[:2]) for h in (queries, keys, values))
            return attend_dense(queries, keys, values, mask), (keys, values)

        hidden, stored, tapped = self._run_flat(x, positions, attention, taps)
        return hidden, Context(*stored), tapped

    def branch(
        self, x: Float[Array, "B M T W"], positions: Int[Array, "B M T *A"], context: Context,
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

        def attention(queries: Array, keys: Array, values: Array, *has: Array) -> Any:
            queries, keys, values = (_rows(h, *shape) for h in (queries, keys, values))
            shared, rows = has[:2], has[2:]
            if rows:
                keys, values = (
                    lax.dynamic_update_slice_in_dim(old, new, start, axis=2)
                    for old, new in zip(rows, (keys, values), strict=True)
                )
            mixed, look = attend_branches(queries, shared, (keys, values), context_mask, own_mask)
            return mixed, (keys, values, look)

        columns = _columns(context) + (_columns(own) if own is not None else ())
        hidden, (*stored, looks), tapped = self._run_flat(x, positions, attention, taps, columns)
        look = looks.mean(axis=0) if self.remat else sum(looks) / len(looks)
        return hidden, Context(*stored), look, tapped

    def attention_weights(
        self, layer: int, x: Float[Array, "B T D"], positions: Int[Array, "B T *A"],
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
        # Unpinned, logits are wanted whole, and XLA would gather the head's weights for a few rows.
        axes = ("batch", *[None] * (hidden.ndim - 2), "vocab")
        return constrain(hidden.astype(jnp.float32), *axes)

    def _rope(self, positions: Int[Array, "B T *A"]) -> Rope:
        cfg = self.config
        return rotary.rotary_tables(
            positions, cfg.head_dim, cfg.rope_theta, self.dtype, cfg.mrope_section
        )

    def _run_flat(
        self, x: Float[Array, "*B W"], positions: Int[Array, "..."], attention: Attend,
        taps: tuple[int, ...], columns: Columns = (),
    ) -> tuple[Array, Columns, Array]:  # fmt: skip
        """`_run` with all tokens in one row; `attention` brings them back into their own shape."""

        def flat(*arguments: Array) -> Any:
            mixed, left = attention(*arguments)
            return mixed.reshape(1, -1, mixed.shape[-2] * mixed.shape[-1]), left

        row = constrain(x.reshape(1, -1, x.shape[-1]), None, "batch", None)
        run = self._scan if self.remat and not self.is_initializing() else self._run
        axes = positions.shape[x.ndim - 1 :]
        hidden, left, tapped = run(row, positions.reshape(1, -1, *axes), flat, taps, columns)
        hidden, tapped = (
            states.reshape(*x.shape[:-1], states.shape[-1]) for states in (hidden, tapped)
        )
        return hidden, left, tapped

    def _run(
        self, x: Float[Array, "B T W"], positions: Int[Array, "B T *A"], attention: Attend,
        taps: tuple[int, ...], columns: Columns = (),
    ) -> tuple[Float[Array, "B T D"], Columns, Float[Array, "B T F"]]:  # fmt: skip
        """All layers and the final norm; `taps` are hidden-state indices, 0 being the
        embeddings.
        """
        rope = self._rope(positions)
        x, deep = self._split(x)
        states, left = [x], []
        for index, layer in enumerate(self.layers):
            has = (column[index] for column in columns)
            mixed, leaves = attention(*layer.project(x, rope), *has)
            x = layer.finish(x, mixed)
            if index < len(deep):
                x = x + deep[index]
            states.append(x)
            left.append(leaves)
        return self.final_norm(x), tuple(zip(*left, strict=True)), _tapped(states, taps)

    def _scan(
        self, x: Float[Array, "B T W"], positions: Int[Array, "B T *A"], attention: Attend,
        taps: tuple[int, ...], columns: Columns = (),
    ) -> tuple[Float[Array, "B T D"], Columns, Float[Array, "B T F"]]:  # fmt: skip
        """`_run` as one loop; what the layers leave comes stacked.

        Weights are cast before they are stacked: gathered over the mesh, a layer's then travel in
        the compute dtype.
        """
        rope = self._rope(positions)
        layer = DecoderLayer(self.config, self.dtype, parent=None)
        weights = [self.variables["params"][f"layers_{i}"] for i in range(self.config.num_layers)]
        stacked = jax.tree.map(lambda *parts: jnp.stack([self._cast(w) for w in parts]), *weights)
        columns = tuple(jnp.stack(c) if isinstance(c, tuple) else c for c in columns)
        x, deep = self._split(x)
        deep = deep[: self.config.num_layers]

        @partial(jax.checkpoint, prevent_cse=False)
        def step(x: Array, inputs: tuple) -> tuple[Array, tuple]:
            weights, has, index = inputs
            bound = layer.bind({"params": weights})
            mixed, leaves = attention(*bound.project(x, rope), *has)
            after = constrain(bound.finish(x, mixed), None, "batch", None)
            if deep:
                branches = [lambda part=part: after + part for part in deep]
                after = lax.switch(index, [*branches, lambda: after])  # clamps behind the last
            return after, (leaves, x if taps else ())

        order = jnp.arange(self.config.num_layers)
        last, (left, before) = lax.scan(step, x, (stacked, columns, order))
        states = [*before, last] if taps else [last]
        return self.final_norm(last), left, _tapped(states, taps)

    def _split(self, x: Float[Array, "B T W"]) -> tuple[Array, list[Array]]:
        """The embedding, and what is added after each of the first layers."""
        x, *deep = jnp.split(x, x.shape[-1] // self.config.hidden_size, axis=-1)
        return x, deep

    def _cast(self, weight: Array) -> Array:
        return weight.astype(self.dtype)


def _rows(heads: Float[Array, "1 N H d"], *shape: int) -> Float[Array, "*B H d"]:
    return heads.reshape(*shape, *heads.shape[2:])


def _append(
    rows: tuple[Array, ...], keys: Array, values: Array, starts: Int[Array, "B"]
) -> tuple[Array, Array]:
    """A layer's cache, the keys' rows and the values', with new ones at `starts`."""
    return append_rows(rows[0], keys, starts), append_rows(rows[1], values, starts)


def _columns(rows: KVCache | Context) -> Columns:
    return rows.keys, rows.values


def _tapped(states: Sequence[Array], taps: tuple[int, ...]) -> Float[Array, "B T F"]:
    """The states at `taps` side by side; of width 0 without any."""
    return jnp.concatenate([states[tap] for tap in taps] or [states[-1][..., :0]], axis=-1)
