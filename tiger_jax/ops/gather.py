"""Picking rows of each sequence.

B: batch, T: picked rows.
"""

import jax.numpy as jnp
from jaxtyping import Array, Int


def take_rows(values: Array, places: Int[Array, "B T"]) -> Array:
    """values[b, places[b, t], ...]; places beyond the ends give the first or last row."""
    index = places.reshape(*places.shape, *[1] * (values.ndim - 2))
    return jnp.take_along_axis(values, index, axis=1, mode="clip")
