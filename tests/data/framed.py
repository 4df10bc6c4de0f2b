"""Prompts of frames by hand, with M-RoPE positions: pictures and videos without a processor."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tiger_jax.data.batches import PromptInputs
from tiger_jax.models.frame_geometry import mrope_positions
from tiger_jax.models.frames import Frames, join_tiles

IMAGE, VIDEO, START, END = 90, 91, 92, 93
TEXT = -1


class Shown(NamedTuple):
    """A picture, or a video of frames with a token of text (its time) before each of them."""

    rows: int
    columns: int
    frames: int = 0
    """0 for a picture."""


def framed_prompt(*parts: int | Shown) -> PromptInputs:
    """Text tokens (their ids) and what is shown, in the order given; merge side 2, V = 3."""
    tokens, kinds, rows, places, ids, grids, tiles = [], [], [], [], [], [], []

    def text(token: int) -> None:
        for values, value in ((tokens, token), (kinds, 0), (rows, (-1, -1)), (places, (-1, -1)),
                              (ids, -1)):  # fmt: skip
            values.append(value)

    for part in parts:
        if isinstance(part, int):
            text(part)
            continue
        for frame in range(max(part.frames, 1)):
            if part.frames:
                text(10 + frame)
            text(START)
            n = part.rows * part.columns
            tokens += [VIDEO if part.frames else IMAGE] * n
            kinds += [2 if part.frames else 1] * n
            rows += [(len(tiles), row) for row in range(n)]
            places += [((y + 0.5) / part.rows, (x + 0.5) / part.columns)
                       for y in range(part.rows) for x in range(part.columns)]  # fmt: skip
            ids += [len(tiles)] * n
            grids.append((part.rows, part.columns))
            tiles.append(frame_of(n, len(tiles) + 1))
            text(END)
    joined = join_tiles([empty(), *tiles], len(tiles))
    tile_rows = joined.patches.shape[1] // 4 if tiles else 0
    flat = [TEXT if tile < 0 else tile * tile_rows + row for tile, row in rows]
    return PromptInputs(
        tokens=np.array(tokens, np.int32),
        image_rows=np.array(flat, np.int32),
        tiles=joined,
        places=np.array(places, np.float32),
        image_ids=np.array(ids, np.int32),
        positions=mrope_positions(np.array(kinds), np.array(grids, np.int32).reshape(-1, 2)),
        tile_rows=tile_rows,
    )


def frame_of(tokens: int, value: float, bucket: int = 16) -> Frames:
    """One frame of `tokens` tokens, padded to a multiple of `bucket` patches."""
    n = 4 * tokens
    size = -(-n // bucket) * bucket
    patches = np.zeros((1, size, 3), np.float32)
    patches[0, :n] = value
    return Frames(
        patches,
        np.array([n], np.int32),
        np.zeros((1, size, 2), np.int32),
        np.zeros((1, size, 4), np.int32),
        np.zeros((1, size, 4), np.float32),
    )


def empty() -> Frames:
    return frame_of(4, 0)[:0]


def values_at(prompts: Sequence[PromptInputs], rows: Sequence[np.ndarray], tiles: Frames) -> list:
    """What each prompt's rows find in the batch's table: the patch value of their token, TEXT."""
    table = tiles.patches[:, ::4, 0].reshape(-1)
    return [[TEXT if row < 0 else float(table[row]) for row in some[: len(prompt.tokens)]]
            for prompt, some in zip(prompts, rows, strict=True)]  # fmt: skip
