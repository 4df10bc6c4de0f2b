"""ViSpec's view of pictures (arXiv 2509.15235): a few learned queries, and a glance of each state.

B: batch, R: bank rows, U: pictures, n: vectors of a picture, D: width of the tokens, W: width of
the vectors, H: heads, d: head dim.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from tiger_jax.models.layers import Dense
from tiger_jax.ops.sampling import NEVER

RESAMPLER_INIT = 0.02


class Resampler(nn.Module):
    """Cross attention of learned queries to the tokens of a picture; no norm, no residual."""

    count: int
    """n."""
    num_heads: int
    head_dim: int
    features: int
    """W."""
    dtype: DTypeLike

    def setup(self) -> None:
        size = self.num_heads * self.head_dim
        self.key = Dense(size, dtype=self.dtype)
        self.value = Dense(size, dtype=self.dtype)
        self.out = Dense(self.features, dtype=self.dtype)
        shape = (self.count, self.num_heads, self.head_dim)
        self.queries = self.param("queries", nn.initializers.normal(RESAMPLER_INIT), shape)

    def __call__(
        self, tokens: Float[Array, "B R D"], images: Int[Array, "B R"], count: int
    ) -> Float[Array, "B U n W"]:
        """n vectors for each of `count` pictures; zeros for one that is not there."""
        batch = tokens.shape[0]

        def heads(x: Array) -> Array:
            return x.reshape(batch, -1, self.num_heads, self.head_dim)

        keys, values = heads(self.key(tokens)), heads(self.value(tokens))
        queries = self.queries.astype(self.dtype) * self.head_dim**-0.5
        scores = jnp.einsum("nhd,brhd->bnhr", queries, keys, preferred_element_type=jnp.float32)
        inside = images[:, None] == jnp.arange(count)[None, :, None]  # [B, U, R]
        scores = jnp.where(inside[:, :, None, None], scores[:, None], NEVER)
        weights = jax.nn.softmax(scores, axis=-1) * inside.any(-1)[:, :, None, None, None]
        mixed = jnp.einsum("bunhr,brhd->bunhd", weights.astype(values.dtype), values)
        return self.out(mixed.reshape(*mixed.shape[:3], -1))


def _keep_first(key: Array, shape: tuple[int, int], dtype: DTypeLike = jnp.float32) -> Array:
    """[I | 0]: the second half of the input counts for nothing at first."""
    del key
    return jnp.eye(*shape, dtype=dtype)


class Glance(nn.Module):
    """f <- [f; u] W + b, u the global vector of the last picture (ViSpec's img_fc)."""

    features: int
    dtype: DTypeLike

    @nn.compact
    def __call__(self, f: Float[Array, "*B W"], u: Float[Array, "*B W"]) -> Float[Array, "*B W"]:
        kernel = self.param("kernel", _keep_first, (2 * self.features, self.features))
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        both = jnp.concatenate([f, u.astype(f.dtype)], axis=-1)
        bias = bias.astype(self.dtype).reshape((1,) * (f.ndim - 1) + (-1,))
        return both @ kernel.astype(self.dtype) + bias
