"""Sizes, patch order and positions of pictures and videos in Qwen3-VL: numpy on the host.

H, W: picture height, width in pixels; n: patches of a frame (rows * columns); S: tokens.

A picture is resized to multiples of `factor` (patch side * merge side), keeping its shape, so that
its area lies between two bounds. Its patches stand in the order of the merge x merge blocks that
become one visual token each (drawn in models/frames.py).
"""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float32, Int, Int32

from tiger_jax.errors import UserError

TEXT_KIND, IMAGE_KIND, VIDEO_KIND = 0, 1, 2
"""What `mrope_positions` is told about each token."""
_LARGEST_RATIO = 200


def smart_resize(
    height: int, width: int, factor: int, min_pixels: int, max_pixels: int
) -> tuple[int, int]:
    """(height, width) of a picture for the tower; models.md 5.4, as published.

    Halves are rounded to even: with factor 32, 48 -> 64 and 80 -> 64.

    Args:
        min_pixels, max_pixels: bounds of the area, not of a side.

    Raises:
        UserError: no pixels, or one side more than 200 times the other.
    """
    _check_sides(height, width)
    new = _rounded(height, factor), _rounded(width, factor)
    if new[0] * new[1] > max_pixels:
        return _shrunk(height, width, factor, math.sqrt(height * width / max_pixels))
    if new[0] * new[1] < min_pixels:
        return _grown(height, width, factor, math.sqrt(min_pixels / (height * width)))
    return new


def video_size(
    frames: int, height: int, width: int, factor: int, temporal: int, min_pixels: int,
    max_pixels: int,
) -> tuple[int, int]:  # fmt: skip
    """(height, width) of each of a video's pictures; models.md 5.7, as published.

    The bounds are those of the whole video's pixels. `frames` is rounded to multiples of `temporal`
    with halves to even (5 -> 4) for the comparison, while the scale counts them all. A video of
    fewer pictures than `temporal` counts as if its last one were repeated.

    Raises:
        UserError: no frames or pixels, or one side more than 200 times the other.
    """
    if frames < 1:
        raise UserError(f"video: expected at least one frame, got {frames}")
    _check_sides(height, width, ratio=False)
    if min(height, width) < factor:
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    _check_sides(height, width)
    frames = max(frames, temporal)
    new = _rounded(height, factor), _rounded(width, factor)
    pixels = _rounded(frames, temporal) * new[0] * new[1]
    total = frames * height * width
    if pixels > max_pixels:
        return _shrunk(height, width, factor, math.sqrt(total / max_pixels))
    if pixels < min_pixels:
        return _grown(height, width, factor, math.sqrt(min_pixels / total))
    return new


def frame_places(rows: int, columns: int, merge: int) -> Int32[np.ndarray, "n 2"]:
    """(row, column) of each patch of a frame of rows x columns patches, in block order."""
    places = np.stack(np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij"), -1)
    blocks = places.reshape(rows // merge, merge, columns // merge, merge, 2)
    return blocks.transpose(0, 2, 1, 3, 4).reshape(-1, 2).astype(np.int32)


def position_taps(
    rows: int, columns: int, side: int, merge: int
) -> tuple[Int32[np.ndarray, "n 4"], Float32[np.ndarray, "n 4"]]:
    """Rows of the learned side x side table around each patch, and their bilinear shares.

    The corners of the frame lie on the corners of the table (align_corners=True): patch i of a row
    of c stands at i * (side - 1) / (c - 1). In block order; models.md 3.1.
    """
    places = frame_places(rows, columns, merge)
    ends = np.maximum(np.array([rows, columns]) - 1, 1).astype(np.float32)
    at = (places * (side - 1)).astype(np.float32) / ends[None]  # in float32, as published
    low = np.floor(at).astype(np.int32)
    high = np.minimum(low + 1, side - 1)
    near = 1 - (at - low.astype(np.float32))
    ends_y = (low[:, 0], near[:, 0]), (high[:, 0], 1 - near[:, 0])
    ends_x = (low[:, 1], near[:, 1]), (high[:, 1], 1 - near[:, 1])
    taps = [y * side + x for y, _ in ends_y for x, _ in ends_x]
    weights = [wy * wx for _, wy in ends_y for _, wx in ends_x]
    return np.stack(taps, -1).astype(np.int32), np.stack(weights, -1).astype(np.float32)


def token_places(rows: int, columns: int) -> Float32[np.ndarray, "n 2"]:
    """(y, x) in 0..1 of the centre of each token of a grid, row by row."""
    centres = (np.arange(rows) + 0.5) / rows, (np.arange(columns) + 0.5) / columns
    return np.stack(np.meshgrid(*centres, indexing="ij"), -1).reshape(-1, 2).astype(np.float32)


def token_kinds(
    tokens: Int[np.ndarray, " S"], image_id: int, video_id: int
) -> Int32[np.ndarray, " S"]:
    """TEXT_KIND, IMAGE_KIND or VIDEO_KIND of each token of an expanded prompt."""
    ids = [tokens == image_id, tokens == video_id]
    return np.select(ids, [IMAGE_KIND, VIDEO_KIND], TEXT_KIND).astype(np.int32)


def mrope_positions(
    kinds: Int[np.ndarray, " S"], grids: Sequence[Sequence[int]] | Int[np.ndarray, "f 2"]
) -> Int32[np.ndarray, "S 3"]:
    """(time, row, column) of each token of an unpadded prompt; models.md 3.3 (get_rope_index).

    Text moves all three on by one. A frame of h x w tokens stands still in time and spans a square
    of max(h, w), so the text after it goes on there, not at its number of tokens:

        kind    0 0 1 1 1 1 1 1 0        grid (2, 3)
        time    0 1 2 2 2 2 2 2 5
        row     0 1 2 2 2 3 3 3 5
        column  0 1 2 3 4 2 3 4 5

    Args:
        kinds: TEXT_KIND, IMAGE_KIND or VIDEO_KIND of each token.
        grids: (rows, columns) in tokens of each picture and of each frame of a video, in order.

    Raises:
        UserError: the grids do not hold exactly the visual tokens, or one crosses text.
    """
    kinds = np.asarray(kinds)
    positions = np.zeros((len(kinds), 3), np.int32)
    here, place, left = 0, 0, list(grids)
    for end in _run_ends(kinds):
        if kinds[here] == TEXT_KIND:
            positions[here:end] = np.arange(place, place + end - here)[:, None]
            place += end - here
            here = end
            continue
        while here < end:
            rows, columns = map(int, left.pop(0)) if left else (0, 0)
            if not 0 < rows * columns <= end - here:
                raise UserError(
                    f"positions: expected a grid for the {end - here} visual tokens at {here}, "
                    f"got {rows}x{columns}"
                )
            frame = frame_places(rows, columns, 1)
            positions[here : here + len(frame)] = place + np.pad(frame, ((0, 0), (1, 0)))
            place += max(rows, columns)
            here += len(frame)
    if left:
        raise UserError(f"positions: expected visual tokens for each grid, got {len(left)} without")
    return positions


def _run_ends(kinds: np.ndarray) -> list[int]:
    """Where each run of equal kinds ends."""
    return [*(np.flatnonzero(np.diff(kinds)) + 1).tolist(), *([len(kinds)] if len(kinds) else [])]


def _rounded(size: int, factor: int) -> int:
    return round(size / factor) * factor  # Python rounds halves to even, as published


def _shrunk(height: int, width: int, factor: int, beta: float) -> tuple[int, int]:
    new = (max(factor, math.floor(size / beta / factor) * factor) for size in (height, width))
    return tuple(new)


def _grown(height: int, width: int, factor: int, beta: float) -> tuple[int, int]:
    return tuple(math.ceil(size * beta / factor) * factor for size in (height, width))


def _check_sides(height: int, width: int, ratio: bool = True) -> None:
    if height < 1 or width < 1:
        raise UserError(f"image size: expected at least 1x1 pixels, got {height}x{width} (h x w)")
    if ratio and max(height, width) / min(height, width) > _LARGEST_RATIO:
        raise UserError(
            f"image size: expected one side at most {_LARGEST_RATIO} times the other, "
            f"got {height}x{width} (h x w)"
        )
