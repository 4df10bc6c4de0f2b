"""Draft heads: one decoder layer, or a few residual blocks, on a verifier's own hidden states.

B: batch, T: rows, D: verifier width, W: head width, F: width of the tapped hidden states, H, K:
query and key/value heads, d: head dim, R: bank rows, U: pictures, n: vectors of a picture, V:
vocabulary of the verifier, Vd: of the drafts.

A head reads pairs and says what follows them; E are the verifier's embeddings, f its states:

    row i of a text       (E[t_{i+1}], f_i)  ->  g_i, which stands for f_{i+1}; law of t_{i+2}
    row i of a picture    (v_i, f_i)             only its key and value are ever read

    eagle2   x = fc [E; f]                 g = x + attend(x) + mlp(norm .)     lm_head(g)
    eagle3   x = [norm(E); norm(f)]        g = f + attend(x) + mlp(norm .)     own norm, own lm_head
    tiger    as eagle3, f fused from states of equal size                      own norm, lm_head
    medusa   no layer: g_m = f + silu(W_m f + b_m) stands for f_{i+m+1}        lm_head(g_m)

Embeddings, final norm and lm_head are the verifier's (`Shared`): frozen, and never copied. A head
narrower than its verifier (W < D) fuses f down before anything else and lifts g up at the end.
Sources: EAGLE-2 (arXiv 2406.16858), EAGLE-3 (2503.01840), ViSpec (2509.15235), Medusa (2401.10774).
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from tiger_jax.errors import UserError
from tiger_jax.models.config import TextConfig
from tiger_jax.models.layers import Dense, RMSNorm
from tiger_jax.models.resampler import Glance, Resampler
from tiger_jax.models.text_decoder import Attention, GatedMLP
from tiger_jax.ops import rotary
from tiger_jax.ops.sampling import NEVER

LAYOUTS = ("eagle2", "eagle3", "tiger", "medusa")
VISUALS = ("none", "full", "routed", "resampler")

Params = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class HeadConfig:
    """The architecture of a head. Part of the compile key."""

    layout: str
    """eagle2 | eagle3 | tiger | medusa: what the layer reads, and which lm_head reads it."""
    hidden_size: int
    """D of the verifier."""
    vocab_size: int
    """V of the verifier."""
    num_layers: int
    """Layers of the verifier."""
    features: tuple[int, ...] = ()
    """Hidden states that are fused: 0 = embeddings, i = output of layer i - 1, none of them normed;
    () = the last one, after the final norm."""
    visual: str = "none"
    """What of the pictures is seen: none | full | routed (k rows of all) | resampler (ViSpec)."""
    width: int = 0
    """W; 0 = D."""
    num_heads: int = 1
    num_kv_heads: int = 1
    head_dim: int = 32
    intermediate_size: int = 0
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    draft_vocab: int = 0
    """Vd of an eagle3 head: tokens that it can draft (Shared.draft_ids); 0 = all."""
    resampler_queries: int = 2
    """Learned queries a picture: all but the last give vectors in its place, the last one a vector
    that joins every later state."""
    medusa_heads: int = 4

    def __post_init__(self) -> None:
        for name, allowed in (("layout", LAYOUTS), ("visual", VISUALS)):
            if getattr(self, name) not in allowed:
                choices = ", ".join(allowed)
                raise UserError(f"{name}: expected one of {choices}, got {getattr(self, name)!r}")
        if wrong := [tap for tap in self.features if not 0 <= tap <= self.num_layers]:
            raise UserError(f"features: expected 0..{self.num_layers}, got {wrong[0]}")
        if self.visual == "resampler" and self.layout != "eagle2":
            raise UserError(f"visual: expected the resampler with eagle2, got {self.layout}")
        if self.layout == "medusa" and (self.visual != "none" or self.features or self.width):
            raise UserError("medusa: expected only medusa_heads to be set, it reads f_i alone")
        if self.draft_vocab and self.layout != "eagle3":
            raise UserError(f"draft_vocab: expected it with eagle3, got {self.layout}")
        if self.draft_vocab > self.vocab_size:
            raise UserError(
                f"draft_vocab: expected at most {self.vocab_size}, got {self.draft_vocab}"
            )

    @property
    def inner(self) -> int:
        """W."""
        return self.width or self.hidden_size

    @property
    def input_width(self) -> int:
        """X: what the layer reads a row at."""
        return self.inner + (self.hidden_size if self.norms_input else 0)

    @property
    def norms_input(self) -> bool:
        """Whether embedding and state are normed and stand side by side, as in EAGLE-3."""
        return self.layout in ("eagle3", "tiger")

    @property
    def lifts(self) -> bool:
        """Whether g has to be brought to the width of the verifier's lm_head."""
        return self.layout in ("eagle2", "tiger") and self.inner != self.hidden_size

    @property
    def taps(self) -> tuple[int, ...]:
        """The verifier's hidden states that a head wants."""
        return self.features or (self.num_layers,)

    @property
    def fuses(self) -> bool:
        """Whether f has to be brought to the head's width."""
        return len(self.taps) > 1 or self.inner != self.hidden_size

    @property
    def layer(self) -> TextConfig:
        """The one decoder layer."""
        return TextConfig(
            vocab_size=self.vocab_size, hidden_size=self.inner,
            intermediate_size=self.intermediate_size, num_layers=1, num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads, head_dim=self.head_dim,
            rms_norm_eps=self.rms_norm_eps, rope_theta=self.rope_theta, max_positions=0,
        )  # fmt: skip


@struct.dataclass
class Shared:
    """What a head uses of its verifier; the arrays are the verifier's own."""

    embedding: Float[Array, "V D"]
    norm_scale: Float[Array, "D"]
    lm_head: Float[Array, "D V"]
    draft_ids: Int[Array, "Vd"] | None = None
    """The verifier's id of each draft token; None where drafts have the whole vocabulary."""


def shared_weights(params: Params, draft_ids: Int[Array, "Vd"] | None = None) -> Shared:
    """The parts of a verifier's parameters that its heads read."""
    text = params["language_model"]
    embedding = text["embed_tokens"]["embedding"]
    lm_head = text["lm_head"]["kernel"] if "lm_head" in text else embedding.T
    return Shared(embedding, text["final_norm"]["scale"], lm_head, draft_ids)


class _ResidualBlock(nn.Module):
    """f + silu(W f + b), the identity at first."""

    features: int
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        kernel = self.param("kernel", nn.initializers.zeros, (self.features, self.features))
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        bias = bias.astype(self.dtype).reshape((1,) * (x.ndim - 1) + (-1,))
        return x + jax.nn.silu(x @ kernel.astype(self.dtype) + bias)


class _HeadModule(nn.Module):
    """All weights of a head; which there are is the config's matter."""

    config: HeadConfig
    dtype: DTypeLike

    def setup(self) -> None:
        cfg, dtype = self.config, self.dtype
        if cfg.layout == "medusa":
            self.blocks = [_ResidualBlock(cfg.hidden_size, dtype) for _ in range(cfg.medusa_heads)]
            return
        if cfg.fuses:
            self.fuse = Dense(cfg.inner, dtype=dtype)
        if cfg.norms_input:
            self.embedding_norm = RMSNorm(cfg.rms_norm_eps)
            self.feature_norm = RMSNorm(cfg.rms_norm_eps)
            self.final_norm = RMSNorm(cfg.rms_norm_eps)
        else:
            self.fc = Dense(cfg.inner, use_bias=True, dtype=dtype)
        if cfg.lifts:
            self.lift = Dense(cfg.hidden_size, dtype=dtype)
        if cfg.layout == "eagle3":
            self.lm_head = Dense(cfg.draft_vocab or cfg.vocab_size, dtype=dtype)
        self.attention = Attention(cfg.layer, dtype)
        self.post_attention_norm = RMSNorm(cfg.rms_norm_eps)
        self.mlp = GatedMLP(cfg.layer, dtype)
        if cfg.visual == "resampler":
            self.resampler = Resampler(
                cfg.resampler_queries, cfg.num_heads, cfg.head_dim, cfg.inner, dtype
            )
            self.glance = Glance(cfg.inner, dtype)

    def rows(self, embeddings: Array, features: Array, glance: Array | None) -> tuple[Array, Array]:
        """What the layer reads, and what its output is added to."""
        if glance is not None:
            features = self.glance(features, glance)
        if not self.config.norms_input:
            x = self.fc(jnp.concatenate([embeddings, features], axis=-1))
            return x, x
        normed = self.embedding_norm(embeddings), self.feature_norm(features)
        return jnp.concatenate(normed, axis=-1), features

    def project(self, x: Array, positions: Array) -> tuple[Array, Array, Array]:
        """Rotated queries, rotated keys, values."""
        cfg = self.config
        rope = rotary.rotary_tables(positions, cfg.head_dim, cfg.rope_theta, self.dtype)
        return self.attention.project(x, rope)

    def finish(self, residual: Array, mixed: Array) -> Array:
        """Add the attention's output, then the MLP's."""
        x = residual + self.attention.out(mixed)
        return x + self.mlp(self.post_attention_norm(x))

    def state(self, g: Array) -> Array:
        """What an lm_head reads."""
        if self.config.norms_input:
            g = self.final_norm(g)
        return self.lift(g) if self.config.lifts else g

    def draft_logits(self, g: Array) -> Array:
        """Of an eagle3 head, over its own vocabulary."""
        return self.lm_head(self.state(g))

    def declare(self) -> None:
        """Touch every weight once; only `init` calls it."""
        cfg = self.config
        wide = jnp.zeros((1, 1, cfg.hidden_size), self.dtype)
        if cfg.layout == "medusa":
            for block in self.blocks:
                block(wide)
            return
        features = jnp.zeros((1, 1, cfg.inner), self.dtype)
        if cfg.fuses:
            features = self.fuse(jnp.zeros((1, 1, len(cfg.taps) * cfg.hidden_size), self.dtype))
        glance = None
        if cfg.visual == "resampler":
            glance = self.resampler(wide, jnp.zeros((1, 1), jnp.int32), 1)[:, 0, -1:]
        x, residual = self.rows(wide, features, glance)
        _, _, values = self.project(x, jnp.zeros((1, 1), jnp.int32))
        mixed = jnp.zeros((1, 1, cfg.num_heads * cfg.head_dim), values.dtype)
        g = self.finish(residual, mixed)
        if cfg.layout == "eagle3":
            self.draft_logits(g)
        else:
            self.state(g)


@dataclasses.dataclass(frozen=True)
class DraftHead:
    """A head bound to its configuration and a compute dtype; every method is a pure function."""

    config: HeadConfig
    dtype: DTypeLike = jnp.float32

    def init_params(self, key: Array) -> Params:
        """Random parameters, float32."""
        return self._module.init(key, method="declare")["params"]

    def abstract_params(self) -> Params:
        """Shapes and dtypes of the parameters, without any memory."""
        return jax.eval_shape(lambda: self.init_params(jax.random.key(0)))

    def embed(self, shared: Shared, tokens: Int[Array, "*B"]) -> Float[Array, "*B D"]:
        """The verifier's embeddings."""
        return jnp.take(shared.embedding, tokens, axis=0, mode="clip").astype(self.dtype)

    def read(
        self, params: Params, shared: Shared, tapped: Float[Array, "*B F"]
    ) -> Float[Array, "*B W"]:
        """f of rows whose hidden states the verifier has given (those at `config.taps`)."""
        cfg, f = self.config, tapped.astype(self.dtype)
        if not cfg.features:
            f = self.last_state(shared, f)
        if cfg.layout == "tiger":
            # The states of a verifier grow from layer to layer, and far beyond its embeddings.
            parts = jnp.split(f, len(cfg.taps), axis=-1)
            f = jnp.concatenate([_unit(part, cfg.rms_norm_eps) for part in parts], axis=-1)
        return self._apply(params, "fuse", f) if cfg.fuses else f

    def last_state(self, shared: Shared, tapped: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        """The verifier's last hidden state after its final norm."""
        norm = RMSNorm(self.config.rms_norm_eps)
        return norm.apply({"params": {"scale": shared.norm_scale}}, tapped)

    def rows(
        self, params: Params, embeddings: Float[Array, "B T D"], features: Float[Array, "B T W"],
        glance: Float[Array, "B T W"] | None = None,
    ) -> tuple[Float[Array, "B T X"], Float[Array, "B T W"]]:  # fmt: skip
        """(what the layer reads, what its output is added to) of pairs.

        Args:
            glance: of a resampler, the global vector of the last picture before each row.
        """
        return self._apply(params, "rows", embeddings, features, glance)

    def project(
        self, params: Params, x: Float[Array, "B T X"], positions: Int[Array, "B T"]
    ) -> tuple[Float[Array, "B T H d"], Float[Array, "B T K d"], Float[Array, "B T K d"]]:
        """Rotated queries, rotated keys, values: all that other rows ever see of a row."""
        return self._apply(params, "project", x, positions)

    def finish(
        self, params: Params, residual: Float[Array, "B T W"], mixed: Float[Array, "B T Hd"]
    ) -> Float[Array, "B T W"]:
        """g: the layer's output, which stands for the next row's f."""
        return self._apply(params, "finish", residual, mixed)

    def resample(
        self, params: Params, tokens: Float[Array, "B R D"], images: Int[Array, "B R"], count: int
    ) -> tuple[Float[Array, "B U m W"], Float[Array, "B U W"]]:
        """(m = queries - 1 vectors that stand in each picture's place, its global vector)."""
        vectors = self._apply(params, "resampler", tokens, images, count)
        return vectors[:, :, :-1], vectors[:, :, -1]

    def ahead(self, params: Params, f: Float[Array, "*B D"], step: int) -> Float[Array, "*B D"]:
        """g_m of a Medusa head, from f alone."""

        def block(module: _HeadModule, x: Array) -> Array:
            return module.blocks[step](x)

        return self._module.apply({"params": params}, f, method=block)

    def state(self, params: Params, g: Float[Array, "*B W"]) -> Float[Array, "*B D"]:
        """What the lm_head reads; of eagle2 and medusa it stands for the verifier's last state."""
        return g if self.config.layout == "medusa" else self._apply(params, "state", g)

    def logits(
        self, params: Params, shared: Shared, g: Float[Array, "*B W"]
    ) -> Float[Array, "*B V"]:
        """Scores over the verifier's vocabulary, float32; NEVER where a head cannot draft."""
        if self.config.layout != "eagle3":
            wide = self.state(params, g)
            return (wide @ shared.lm_head.astype(wide.dtype)).astype(jnp.float32)
        scores = self._apply(params, "draft_logits", g).astype(jnp.float32)
        if shared.draft_ids is None:
            return scores
        everything = jnp.full((*scores.shape[:-1], self.config.vocab_size), NEVER)
        return everything.at[..., shared.draft_ids].set(scores)

    @property
    def _module(self) -> _HeadModule:
        return _HeadModule(self.config, self.dtype)

    def _apply(self, params: Params, name: str, *args):
        def call(module: _HeadModule, *inner):
            return getattr(module, name)(*inner)

        return self._module.apply({"params": params}, *args, method=call)


def _unit(x: Float[Array, "*B D"], eps: float) -> Float[Array, "*B D"]:
    """x over its root mean square."""
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return wide.astype(x.dtype)
