"""Where each visual token looked: boxes in the pixels of the picture as it was given.

H, W: height and width of the picture; p: patch side; n: patches on a tile's side; s: patches on a
side of a pooled square; t: visual tokens of a picture.

The box of a token is what its patch covers, projected back through resizing and padding. Resizing
mixes in a few pixels beyond the border, and the tower's attention all others: a box is where the
token stands, not all it knows.

    LLaVA-NeXT   base view   the picture squashed into n x n patches: a box is H/n by W/n; where a
                             budget pools them, s times that, and less at the edge that cuts it
                 crops       the picture fitted into a grid of tiles and padded evenly: a patch is
                             p / scale by p / scale; patches that saw padding alone have no box
                 newlines    end each line of the crops, and have no box
    Qwen3-VL     the picture squashed to multiples of the token's side: H/rows by W/columns
"""

import math
from functools import singledispatch
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from tiger_jax.models.config import LlavaNextConfig, ModelConfig, Qwen3VLConfig
from tiger_jax.models.image_geometry import best_resolution, unpadded_grid

BASE, CROP, NEWLINE, WHOLE = "base view", "crop", "newline", "picture"
"""Parts of a picture's tokens; Qwen3-VL has the whole alone."""


class Box(NamedTuple):
    """Edges in pixels of the picture: (0, 0, H, W) is all of it."""

    top: float
    left: float
    bottom: float
    right: float


class Patch(NamedTuple):
    """One visual token of a picture."""

    part: str
    """BASE, CROP, NEWLINE or WHOLE."""
    row: int
    """Line of the part, from 0."""
    column: int
    box: Box | None
    """None for a newline, and for a patch that saw padding alone."""

    @property
    def name(self) -> str:
        """In words, counted from 1."""
        if self.part == NEWLINE:
            return f"newline of crop line {self.row + 1}"
        where = f"row {self.row + 1}, column {self.column + 1}"
        return where if self.part == WHOLE else f"{self.part}, {where}"


@singledispatch
def picture_patches(
    config: ModelConfig, height: int, width: int, places: Float[np.ndarray, "t 2"]
) -> list[Patch]:
    """Patches of one picture, or of one frame of a video, in the order of its tokens.

    Args:
        height, width: of the picture as it was given, in pixels.
        places: (y, x) in 0..1 of each token as the prompt has it. They say how the processor cut
            the picture: their number and spacing alone are read, never a box.

    Raises:
        TypeError: a model whose geometry is not known.
    """
    raise TypeError(f"config: expected a known family, got {type(config).__name__}")


@picture_patches.register
def _(
    config: Qwen3VLConfig, height: int, width: int, places: Float[np.ndarray, "t 2"]
) -> list[Patch]:
    rows, columns = (len(np.unique(places[:, axis])) for axis in (0, 1))
    return even_patches(WHOLE, height, width, rows, columns)


@picture_patches.register
def _(
    config: LlavaNextConfig, height: int, width: int, places: Float[np.ndarray, "t 2"]
) -> list[Patch]:
    base_rows = config.vision.grid**2
    if len(places) > base_rows:  # anyres
        return [*base_patches(config, height, width), *crop_patches(config, height, width)]
    # The first square is whole: its centre is half a stride from the edge.
    stride = round(float(places[0, 0]) * 2 * config.vision.grid)
    return base_patches(config, height, width, stride)


def even_patches(part: str, height: int, width: int, rows: int, columns: int) -> list[Patch]:
    """A picture that was squashed into rows x columns tokens, line by line."""
    return [
        Patch(part, i, j, Box(i * height / rows, j * width / columns,
                              (i + 1) * height / rows, (j + 1) * width / columns))
        for i in range(rows) for j in range(columns)
    ]  # fmt: skip


def base_patches(config: LlavaNextConfig, height: int, width: int, stride: int = 1) -> list[Patch]:
    """The picture squashed into one tile; pixels behind the last whole patch are not seen.

    Args:
        stride: patches on a side of the squares that are averaged to one token each.
    """
    vision = config.vision
    lines = [min(first, vision.grid) for first in range(0, vision.grid + stride, stride)]
    shares = [line * vision.patch_size / vision.image_size for line in lines]
    edges = list(pairwise(shares))
    return [
        Patch(BASE, i, j, Box(top * height, left * width, bottom * height, right * width))
        for i, (top, bottom) in enumerate(edges) for j, (left, right) in enumerate(edges)
    ]  # fmt: skip


def crop_patches(config: LlavaNextConfig, height: int, width: int) -> list[Patch]:
    """The lines of the tiles with their newlines.

    The picture is resized to whole pixels and padded by floor and ceil halves of what is left, as
    the image processor does it.
    """
    side, p = config.vision.image_size, config.vision.patch_size
    target = best_resolution(height, width, config.pinpoints)
    fitted = fitted_size(height, width, target)
    pad = (target[0] - fitted[0]) // 2, (target[1] - fitted[1]) // 2
    grid = config.vision.grid
    lines, columns = (edge // side * grid for edge in target)
    row0, row1, col0, col1 = unpadded_grid(height, width, lines, columns)

    def edges(index: int, axis: int) -> tuple[float, float] | None:
        """What patch `index` of an axis covers of the picture."""
        tile, own = divmod(index, grid)
        first = tile * side + own * p - pad[axis]
        low, high = max(first, 0), min(first + p, fitted[axis])
        scale = (height, width)[axis] / fitted[axis]
        return (low * scale, high * scale) if low < high else None

    patches = []
    for i in range(row0, row1):
        ys = edges(i, 0)
        for j in range(col0, col1):
            xs = edges(j, 1)
            box = Box(ys[0], xs[0], ys[1], xs[1]) if ys and xs else None
            patches.append(Patch(CROP, i - row0, j - col0, box))
        patches.append(Patch(NEWLINE, i - row0, col1 - col0, None))
    return patches


def fitted_size(height: int, width: int, target: tuple[int, int]) -> tuple[int, int]:
    """(height, width) of a picture inside a grid of tiles: as large as fits, in whole pixels; float
    scales and ceilings as published."""
    scale_h, scale_w = target[0] / height, target[1] / width
    if scale_w < scale_h:
        return min(math.ceil(height * scale_w), target[0]), target[1]
    return target[0], min(math.ceil(width * scale_h), target[1])
