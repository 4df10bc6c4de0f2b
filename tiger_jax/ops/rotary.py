"""Rotary position embedding (Su et al., arXiv 2104.09864), half-split form.

B: batch, T: tokens, H: heads, d: head dim.
"""

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int


def rotary_tables(
    positions: Int[Array, "B T"], head_dim: int, theta: float, dtype: DTypeLike
) -> tuple[Float[Array, "B T d"], Float[Array, "B T d"]]:
    """Cosines and sines of position * theta^(-2i/d), repeated for both halves of a head.

    Positions stay integers and angles float32 up to the last cast: a bfloat16 angle is off by more
    than one radian at position 1000.
    """
    inverse = theta ** (-jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
    angles = positions[..., None].astype(jnp.float32) * inverse[None, None]
    angles = jnp.concatenate([angles, angles], axis=-1)
    return jnp.cos(angles).astype(dtype), jnp.sin(angles).astype(dtype)


def rotate(
    x: Float[Array, "B T H d"], cos: Float[Array, "B T d"], sin: Float[Array, "B T d"]
) -> Float[Array, "B T H d"]:
    """Rotate each head: element i pairs with element i + d/2."""
    first, second = jnp.split(x, 2, axis=-1)
    turned = jnp.concatenate([-second, first], axis=-1)
    return x * cos[:, :, None] + turned * sin[:, :, None]
