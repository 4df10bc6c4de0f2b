"""The weights that every model is made of: thin linen modules without hidden state.

Kernels are [in, out]. `dtype` is the compute dtype; the stored dtype belongs to the parameters.
"""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from tiger_jax.errors import UserError
from tiger_jax.sharding.rules import constrain


def quick_gelu(x: Array) -> Array:
    """x * sigmoid(1.702 x), CLIP's activation."""
    return x * jax.nn.sigmoid(1.702 * x)


def activation(name: str) -> Callable[[Array], Array]:
    """The function that a Hugging Face config calls by this name."""
    known = {
        "quick_gelu": quick_gelu,
        "gelu": lambda x: jax.nn.gelu(x, approximate=False),
        "gelu_pytorch_tanh": lambda x: jax.nn.gelu(x, approximate=True),
        "silu": jax.nn.silu,
    }
    if name not in known:
        raise UserError(f"activation {name!r} is unknown, expected one of {sorted(known)}")
    return known[name]


class Dense(nn.Module):
    """x @ kernel (+ bias)."""

    features: int
    use_bias: bool = False
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "*B I"]) -> Float[Array, "*B O"]:
        init = nn.initializers.variance_scaling(1.0, "fan_in", "normal")
        kernel = self.param("kernel", init, (x.shape[-1], self.features))
        y = x.astype(self.dtype) @ kernel.astype(self.dtype)
        if self.use_bias:
            bias = self.param("bias", nn.initializers.zeros, (self.features,))
            y = y + _as_row(bias, y)
        return y


class RMSNorm(nn.Module):
    """Root-mean-square norm (arXiv 1910.07467): float32 inside, weight applied after the cast."""

    eps: float

    @nn.compact
    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.eps)
        return wide.astype(x.dtype) * _as_row(scale, x)


class LayerNorm(nn.Module):
    """Layer norm with scale and bias, statistics in float32."""

    eps: float

    @nn.compact
    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        bias = self.param("bias", nn.initializers.zeros, (x.shape[-1],))
        wide = x.astype(jnp.float32)
        centred = wide - wide.mean(axis=-1, keepdims=True)
        wide = centred * jax.lax.rsqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + self.eps)
        wide = wide * _as_row(scale.astype(jnp.float32), x) + _as_row(bias.astype(jnp.float32), x)
        return wide.astype(x.dtype)


class Embedding(nn.Module):
    """A table of rows, looked up by index."""

    rows: int
    features: int
    dtype: DTypeLike = jnp.float32
    axis: str | None = None
    """Logical axis of the rows."""

    def setup(self) -> None:
        self.embedding = self.param(
            "embedding", nn.initializers.normal(self.features**-0.5), (self.rows, self.features)
        )

    def __call__(self, ids: Array) -> Array:
        # Rows are brought together over fsdp, or the lookup's batch and the rows' own split would
        # ask for the same mesh axis.
        table = constrain(self.embedding.astype(self.dtype), self.axis, None)
        if ids.size > 1:
            return jnp.take(table, ids, axis=0, mode="clip")
        # A lone lookup is a slice, for which XLA brings the whole table together in every step.
        return jnp.take(table, jnp.stack([ids, ids]), axis=0, mode="clip")[0]


def widen(x: Float[Array, "*B D"], width: int) -> Float[Array, "*B W"]:
    """Zeros behind every vector, up to `width` numbers."""
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, width - x.shape[-1])])


def _as_row(vector: Array, like: Array) -> Array:
    """Shape a [D] vector for a product with [..., D]; ranks are never promoted silently."""
    return vector.astype(like.dtype).reshape((1,) * (like.ndim - 1) + (-1,))
