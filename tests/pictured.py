"""Prompts with random pictures and videos for tests of drafters, without a tokenizer."""

import jax.numpy as jnp
import numpy as np

from tiger_jax.data.batches import PromptInputs, batch_prompts
from tiger_jax.data.visual_stream import batch_streams
from tiger_jax.decoding.drafters import protocol
from tiger_jax.models import frame_geometry
from tiger_jax.models.config import Qwen3VLConfig
from tiger_jax.models.frames import PATCH_BUCKETS, Frames, PooledTiles, join_tiles
from tiger_jax.models.image_geometry import (
    NEWLINE,
    image_token_places,
    image_token_rows,
    pooled_token_places,
    pooled_token_rows,
)
from tiger_jax.routing.bank import Stream, make_stream

SIZES = ((28, 28), (28, 56), (56, 28), (56, 56))
GRIDS = ((2, 4), (2, 1, 3), (4, 1), (3, 2))
"""Of Qwen3-VL; the second one is a video of two frames."""


def pictured_prompt(config, pictures, text=(3, 4, 5, 6, 7), seed=0):
    """`text` with `pictures` (indices of SIZES, or of GRIDS) behind its first token."""
    if isinstance(config, Qwen3VLConfig):
        return framed_prompt(config, [GRIDS[i] for i in pictures], text, seed)
    rng = np.random.default_rng(seed)
    side, per_tile = config.vision.image_size, config.rows_per_tile
    geometry = [
        (image_token_rows(*SIZES[i], config), image_token_places(*SIZES[i], config))
        for i in pictures
    ]
    counts = [int(rows.max()) // per_tile + 1 for rows, _ in geometry]
    firsts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]) * per_tile
    tokens, image_rows = [text[:1]], [[-1]]
    places, image_ids = [np.full((1, 2), -1)], [[-1]]
    for image, (rows, where) in enumerate(geometry):
        tokens.append([config.image_token_id] * len(rows))
        image_rows.append(np.where(rows == NEWLINE, firsts[-1], rows + firsts[image]))
        places.append(where)
        image_ids.append([image] * len(rows))
    rest = text[1:]
    tokens.append(rest)
    image_rows.append([-1] * len(rest))
    places.append(np.full((len(rest), 2), -1))
    image_ids.append([-1] * len(rest))
    return PromptInputs(
        tokens=np.concatenate(tokens).astype(np.int32),
        image_rows=np.concatenate(image_rows).astype(np.int32),
        tiles=rng.normal(size=(sum(counts), side, side, 3)).astype(np.float32),
        places=np.concatenate(places).astype(np.float32),
        image_ids=np.concatenate(image_ids).astype(np.int32),
        positions=np.arange(sum(map(len, tokens)), dtype=np.int32),
        tile_rows=per_tile,
    )


def filmed_prompt(config, frames, stride, text=(3, 4, 5, 6, 7), seed=0):
    """`text` with a video of LLaVA behind its first token, its rows averaged in squares."""
    rows, places = pooled_token_rows(stride, config), pooled_token_places(stride, config)
    side, per_tile, own = config.vision.image_size, config.rows_per_tile, len(rows)
    shown = frames * own
    images = np.repeat(np.arange(frames), own)
    around = ((1, len(text) - 1), (0, 0))
    pixels = np.random.default_rng(seed).normal(size=(frames, side, side, 3)).astype(np.float32)
    return PromptInputs(
        tokens=np.array([text[0], *[config.image_token_id] * shown, *text[1:]], np.int32),
        image_rows=np.pad(images * per_tile + np.tile(rows, frames), around[0],
                          constant_values=-1).astype(np.int32),
        tiles=PooledTiles(pixels, np.full(frames, stride, np.int32)),
        places=np.pad(np.tile(places, (frames, 1)), around, constant_values=-1),
        image_ids=np.pad(images, around[0], constant_values=-1).astype(np.int32),
        positions=np.arange(shown + len(text), dtype=np.int32), tile_rows=per_tile,
    )  # fmt: skip


def framed_prompt(config, shown, text=(3, 4, 5, 6, 7), seed=0):
    """`text` with pictures and videos behind its first token: (rows, columns) of visual tokens, or
    (frames, rows, columns). A frame of a video has a token of text and its marks around it."""
    rng, vision = np.random.default_rng(seed), config.vision
    start, end = config.vision_start_token_id, config.vision_end_token_id
    tokens, rows, places, ids, kinds, grids, parts = [text[0]], [-1], [(-1, -1)], [-1], [0], [], []
    sizes = [grid for _, grid in _frames_of(shown)]
    width = max((h * w * 4 for h, w in sizes), default=4)
    padded = next(bucket for bucket in PATCH_BUCKETS if bucket >= width)

    def say(*words):
        for word in words:
            tokens.append(word), rows.append(-1), places.append((-1, -1)), ids.append(-1)
            kinds.append(0)

    for kind, (height, columns) in _frames_of(shown):
        frame = len(grids)
        say(*([start] if kind == 1 else [int(rng.integers(3, 60)), start]))
        for row in range(height * columns):
            tokens.append(config.image_token_id if kind == 1 else config.video_token_id)
            rows.append(frame * padded // 4 + row)
            places.append(((row // columns + 0.5) / height, (row % columns + 0.5) / columns))
            ids.append(frame), kinds.append(kind)
        say(end)
        grids.append((height, columns))
        parts.append(_frame(rng, vision, 2 * height, 2 * columns, padded))
    say(*text[1:])
    empty = _frame(rng, vision, 2, 2, padded)[:0]
    return PromptInputs(
        tokens=np.array(tokens, np.int32), image_rows=np.array(rows, np.int32),
        tiles=join_tiles([empty, *parts], len(parts)), places=np.array(places, np.float32),
        image_ids=np.array(ids, np.int32),
        positions=frame_geometry.mrope_positions(np.array(kinds), grids), tile_rows=padded // 4,
    )  # fmt: skip


def _frames_of(shown):
    """(kind, grid) of every frame: 1 a picture, 2 a frame of a video."""
    for grid in shown:
        yield from [(1, grid)] if len(grid) == 2 else [(2, grid[1:])] * grid[0]


def _frame(rng, vision, rows, columns, padded):
    count = rows * columns

    def pad(array):
        return np.pad(array, ((0, padded - count), *[(0, 0)] * (array.ndim - 1)))[None]

    side = round(vision.num_positions**0.5)
    taps, weights = frame_geometry.position_taps(rows, columns, side, vision.merge_size)
    return Frames(
        patches=pad(rng.normal(size=(count, vision.patch_values)).astype(np.float32)),
        counts=np.array([count], np.int32),
        places=pad(frame_geometry.frame_places(rows, columns, vision.merge_size)),
        taps=pad(taps), weights=pad(weights),
    )  # fmt: skip


def mixed_prompts(config, seed=0):
    """Four prompts of different shapes, one of them without any picture."""
    if isinstance(config, Qwen3VLConfig):
        shapes = (((3, 2), (2, 4)), 9), ((), 6), (((2, 2, 3), (1, 5)), 12), (((4, 6),), 4)
        rng = np.random.default_rng(seed)
        return [
            framed_prompt(config, shown, rng.integers(3, 60, length).tolist(), seed + row)
            for row, (shown, length) in enumerate(shapes)
        ]
    return _tiled_prompts(config, seed)


def _tiled_prompts(config, seed=0):
    """Two pictures, none, one with a column of tiles, one of a single tile."""
    rng = np.random.default_rng(seed)
    return [
        pictured_prompt(config, pictures, rng.integers(3, 90, length).tolist(), seed + row)
        for row, (pictures, length) in enumerate((((0, 1), 9), ((), 6), ((2,), 12), ((0,), 4)))
    ]


def prompt_arrays(config, prompts, pooled_tokens=1, query="visual", tile_bucket=None, width=128):
    """What the programs read, streams included."""
    batch = batch_prompts(prompts, config, seq_bucket=width, tile_bucket=tile_bucket)
    stream = batch_streams(prompts, config, pooled_tokens, query, tile_bucket)
    return protocol.prompt_arrays(batch, jnp.float32, device_stream(stream))


def device_stream(stream) -> Stream:
    """A StreamBatch as the programs see it."""
    return make_stream({name: jnp.asarray(value) for name, value in stream._asdict().items()})
