"""Which tiles a picture becomes, and which visual row stands at each of its image tokens.

LLaVA-NeXT ("anyres") shows the vision tower the whole picture squashed into one base tile, then the
picture fitted into the best of a few grids ("pinpoints") and cut into tiles row by row. The rows of
those tiles are laid out as one image, the rows that only saw padding are cropped, and a learned
`image_newline` row ends every line:

    base tile, n*n rows | r00 r01 .. r0w NEWLINE | r10 r11 .. r1w NEWLINE | ...

A tile may also stand alone, its rows averaged in squares of s x s patches (`pooled_token_rows`).

Everything here is numpy on the host: the jitted model sees one static gather index.
Letters: H, W picture height, width (pixels); n patch rows on one side of a tile.
"""

import numpy as np
from jaxtyping import Float32, Int

from tiger_jax.errors import UserError
from tiger_jax.models.config import LlavaNextConfig

NEWLINE = -2
"""Sentinel in `image_token_rows`: the learned `image_newline` row, which belongs to no tile."""


def best_resolution(
    height: int, width: int, pinpoints: tuple[tuple[int, int], ...]
) -> tuple[int, int]:
    """The pinpoint (height, width) that keeps most of the picture's pixels, then wastes fewest.

    Ties go to the first in the list, so the order of `pinpoints` decides for pictures smaller than
    one tile: (h, w) pairs as Hugging Face reads them pick the wide grid, pairs swapped as the
    original code reads them pick the tall one.
    """
    _check_size(height, width)

    def merit(pinpoint: tuple[int, int]) -> tuple[int, int]:
        # float64 and truncation, as published
        scale = min(pinpoint[1] / width, pinpoint[0] / height)
        kept = min(int(width * scale) * int(height * scale), width * height)
        return kept, kept - pinpoint[0] * pinpoint[1]

    return max(pinpoints, key=merit)  # max returns the first of equals


def unpadded_grid(height: int, width: int, grid_h: int, grid_w: int) -> tuple[int, int, int, int]:
    """(row0, row1, col0, col1): the part of a grid of visual rows that saw picture, not padding.

    Exact integer floors: floats give one line less for some sizes (2990x2990 would get 47 of 48
    lines). The padding is cut evenly, so an odd remainder leaves one padded line in. Very thin
    pictures leave nothing.
    """
    _check_size(height, width)
    if width * grid_h > grid_w * height:
        pad = (grid_h - height * grid_w // width) // 2
        return pad, grid_h - pad, 0, grid_w
    pad = (grid_w - width * grid_h // height) // 2
    return 0, grid_h, pad, grid_w - pad


def tile_grid(height: int, width: int, config: LlavaNextConfig) -> tuple[int, int]:
    """(rows, columns) of the tiles that follow the base tile."""
    best_h, best_w = best_resolution(height, width, config.pinpoints)
    return best_h // config.vision.image_size, best_w // config.vision.image_size


def count_tiles(height: int, width: int, config: LlavaNextConfig) -> int:
    """Tiles of one picture: the base tile and its grid."""
    rows, cols = tile_grid(height, width, config)
    return 1 + rows * cols


def image_token_rows(
    height: int, width: int, config: LlavaNextConfig
) -> Int[np.ndarray, " tokens"]:
    """For each image token its row in this picture's own tiles, or NEWLINE: int32 [tokens].

    Rows are tile * rows_per_tile + row. Raises UserError for tiles that keep their class row: such
    rows cannot be laid out as an image.
    """
    _check_strategy(config)
    side = config.vision.grid
    tiles_h, tiles_w = tile_grid(height, width, config)
    base = np.arange(side * side)
    tiles = side * side * (1 + np.arange(tiles_h * tiles_w)).reshape(tiles_h, 1, tiles_w, 1)
    lines = (tiles + base.reshape(1, side, 1, side)).reshape(tiles_h * side, tiles_w * side)

    row0, row1, col0, col1 = unpadded_grid(height, width, *lines.shape)
    lines = np.pad(lines[row0:row1, col0:col1], ((0, 0), (0, 1)), constant_values=NEWLINE)
    return np.concatenate([base, lines.ravel()]).astype(np.int32)


def image_token_places(
    height: int, width: int, config: LlavaNextConfig
) -> Float32[np.ndarray, "tokens 2"]:
    """(y, x) in 0..1 of the patch centre that each image token saw in its picture: [tokens, 2].

    In the order of `image_token_rows`. A newline stands at the end of its line, x = 1. A patch
    whose centre is padding (a crop may leave half a line of it) is moved to the picture's edge.
    """
    side = config.vision.grid
    tiles_h, tiles_w = tile_grid(height, width, config)
    grid_h, grid_w = tiles_h * side, tiles_w * side
    row0, row1, col0, col1 = unpadded_grid(height, width, grid_h, grid_w)
    scale = min(grid_h / height, grid_w / width)  # patch rows for each pixel of the picture

    base = (np.arange(side) + 0.5) / side
    ys = _centres(row0, row1, grid_h, height * scale)
    xs = np.append(_centres(col0, col1, grid_w, width * scale), 1.0)
    parts = [np.stack(np.meshgrid(*axes, indexing="ij"), -1) for axes in ((base, base), (ys, xs))]
    return np.concatenate([part.reshape(-1, 2) for part in parts]).astype(np.float32)


def count_image_tokens(height: int, width: int, config: LlavaNextConfig) -> int:
    """Image tokens of one picture: n*n of the base tile + cropped lines, each with its newline."""
    side = config.vision.grid
    tiles_h, tiles_w = tile_grid(height, width, config)
    row0, row1, col0, col1 = unpadded_grid(height, width, tiles_h * side, tiles_w * side)
    return side * side + (row1 - row0) * (col1 - col0 + 1)


def pooled_side(stride: int, config: LlavaNextConfig) -> int:
    """Squares of `stride` x `stride` patches on one side of a tile, the last one perhaps cut."""
    return -(-config.vision.grid // stride)


def pooled_token_rows(stride: int, config: LlavaNextConfig) -> Int[np.ndarray, " tokens"]:
    """For each token of a tile that is averaged in squares its row in the tile: int32 [tokens].

    The means lie where the first ones of n x n rows would, so a tile has as many rows as ever:

        n = 4, stride 2     0 1 . .
                            4 5 . .     tokens 0 1 4 5; the others are 0 and never read
                            . . . .

    Raises UserError as `image_token_rows`.
    """
    _check_strategy(config)
    squares = np.arange(pooled_side(stride, config))
    return (squares[:, None] * config.vision.grid + squares).astype(np.int32).ravel()


def pooled_token_places(stride: int, config: LlavaNextConfig) -> Float32[np.ndarray, "tokens 2"]:
    """(y, x) in 0..1 of the centre of each square, in the order of `pooled_token_rows`; of a cut
    one of what is left of it."""
    side = config.vision.grid
    first = np.arange(0, side, stride)
    centres = (first + np.minimum(first + stride, side)) / (2 * side)
    return np.stack(np.meshgrid(centres, centres, indexing="ij"), -1).reshape(-1, 2).astype(
        np.float32
    )  # fmt: skip


def _check_strategy(config: LlavaNextConfig) -> None:
    if config.select_strategy != "default":
        raise UserError(
            f"vision_feature_select_strategy: expected 'default', got {config.select_strategy!r}"
        )


def _centres(first: int, end: int, grid: int, pictured: float) -> np.ndarray:
    """Centres of patch rows first..end-1 in a picture of `pictured` rows, centred in `grid`."""
    padding = (grid - pictured) / 2
    return np.clip((np.arange(first, end) + 0.5 - padding) / pictured, 0.0, 1.0)


def _check_size(height: int, width: int) -> None:
    if height < 1 or width < 1:
        raise UserError(f"image size: expected at least 1x1 pixels, got {height}x{width} (h x w)")
