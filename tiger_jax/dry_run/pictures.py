"""The largest picture that a dry run asks about, in each family's form.

N: tiles or frames, S: tile side, P: patches of a frame, V: numbers of a patch.

A LLaVA picture is as large as its pinpoints allow: 672 x 672 pixels are five tiles and 2,928 visual
tokens. Qwen3-VL sets no such bound below 16 million pixels, so it is asked about 1,024 x 1,024:
4,096 patches, 1,024 visual tokens, a photograph of one megapixel.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import ShapeDtypeStruct as Shape
from jax.typing import DTypeLike

from tiger_jax.models.config import LlavaNextConfig, ModelConfig, Qwen3VLConfig
from tiger_jax.models.frames import Frames
from tiger_jax.models.image_geometry import image_token_rows

SIDE = 1024
"""Pixels of a picture without bounds of its own."""


class Picture(NamedTuple):
    """One picture."""

    visual: int
    """Visual tokens."""
    tiles: int
    shapes: Callable[[int, DTypeLike], Any]
    """(N, dtype) -> N tiles or frames like its own, as shapes."""


def largest_picture(config: ModelConfig) -> Picture:
    """Of a model."""
    return _FAMILIES[type(config)](config)


def _llava_picture(config: LlavaNextConfig) -> Picture:
    height, width = max(config.pinpoints, key=lambda size: size[0] * size[1])
    side = config.vision.image_size

    def shapes(count: int, dtype: DTypeLike) -> Shape:
        return Shape((count, side, side, 3), dtype)

    visual = len(image_token_rows(height, width, config))
    return Picture(visual, 1 + height * width // side**2, shapes)


def _qwen3_picture(config: Qwen3VLConfig) -> Picture:
    # A small model's positions may not hold so many tokens; half of them are left to the text.
    vision, most = config.vision, math.isqrt(config.text.max_positions // 2)
    tokens = min(SIDE // vision.token_side, most) ** 2
    patches = tokens * vision.merge_size**2

    def shapes(count: int, dtype: DTypeLike) -> Frames:
        return Frames(
            patches=Shape((count, patches, vision.patch_values), dtype),
            counts=Shape((count,), jnp.int32), places=Shape((count, patches, 2), jnp.int32),
            taps=Shape((count, patches, 4), jnp.int32),
            weights=Shape((count, patches, 4), jnp.float32),
        )  # fmt: skip

    return Picture(tokens, 1, shapes)


_FAMILIES: dict[type, Callable[[Any], Picture]] = {
    LlavaNextConfig: _llava_picture,
    Qwen3VLConfig: _qwen3_picture,
}
