"""A prompt as a routed drafter reads it: its visual tokens set apart, its text where it was.

Letters: B prompts, S prompt tokens, L stream tokens, r visual tokens of one prompt, R of a batch
(padded), P pooled tokens of a picture, U regions of a batch (most pictures of a prompt * P),
A axes of a position.

The bank holds every visual token of the prompt in order, newlines too. Region image * P + cell is
the part of a picture that one pooled token averages, cells in raster order on a G x G grid:

    prompt     <s> USER: <image> x 10 \\n Hi?        <image> tokens are bank tokens 0 .. 9
    positions   0   1     2 .. 11     12  13
    visual     <s> USER: pool 0, pool 1, pool 2, pool 3 \\n Hi?      visual -1 -1 -2 -3 -4 -5 -1 -1
    text_only  <s> USER: \\n Hi?
    full       the prompt itself, visual -1 -1 0 1 .. 9 -1 -1

Text keeps the rotary positions of the full prompt in each of them.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int32

from tiger_jax.data.batches import (
    SEQ_BUCKETS,
    TEXT,
    TILE_BUCKETS,
    PromptInputs,
    choose_bucket,
    pad_rows,
    round_up,
    table_rows,
)
from tiger_jax.errors import UserError
from tiger_jax.models.config import ModelConfig

QUERIES = ("visual", "text_only", "full")
POOLED_TOKENS = (1, 4, 9, 16)
FIRST_POOLED = -2
"""`visual` of the pooled token of region 0; region p is FIRST_POOLED - p."""
_GRID_TOLERANCE = 1e-6  # a centre on a cell's border is in the later cell whatever float32 made it


class StreamInputs(NamedTuple):
    """One prompt's stream and bank.

    `visual` is TEXT, a bank index, or FIRST_POOLED - region; `sources` say which prompt token each
    is, of a pooled one the first of its picture.
    """

    tokens: Int32[np.ndarray, " L"]
    sources: Int32[np.ndarray, " L"]
    positions: Int32[np.ndarray, "L *A"]
    visual: Int32[np.ndarray, " L"]
    bank_sources: Int32[np.ndarray, " r"]
    bank_positions: Int32[np.ndarray, "r *A"]
    bank_images: Int32[np.ndarray, " r"]
    bank_regions: Int32[np.ndarray, " r"]


class StreamBatch(NamedTuple):
    """Streams padded on the right; `bank_rows` index the batch's flat table of batches.py.

    Padding holds the pad id, source and position 0, and -1 elsewhere. `region_sizes` count the
    members.
    """

    tokens: Int32[np.ndarray, "B L"]
    lengths: Int32[np.ndarray, " B"]
    sources: Int32[np.ndarray, "B L"]
    positions: Int32[np.ndarray, "B L *A"]
    visual: Int32[np.ndarray, "B L"]
    bank_rows: Int32[np.ndarray, "B R"]
    bank_sources: Int32[np.ndarray, "B R"]
    bank_positions: Int32[np.ndarray, "B R *A"]
    bank_images: Int32[np.ndarray, "B R"]
    bank_regions: Int32[np.ndarray, "B R"]
    region_sizes: Float32[np.ndarray, "B U"]


def stream_inputs(prompt: PromptInputs, pooled_tokens: int, query: str) -> StreamInputs:
    """Split a prompt into its bank and the stream that a drafter reads.

    A pooled token stands at the mean of its members' positions, on each axis and with halves
    rounded up; a region without members has none. Pooled positions follow raster order, so they
    need not rise.

    Raises:
        UserError: `pooled_tokens` or `query` is none of POOLED_TOKENS or QUERIES.
    """
    _check("pooled_tokens", pooled_tokens, POOLED_TOKENS)
    _check("query", query, QUERIES)
    where = np.flatnonzero(prompt.image_ids >= 0)
    images = prompt.image_ids[where]
    regions = images * pooled_tokens + _cells(prompt.places[where], pooled_tokens)
    order, positions, visual = _stream(prompt, where, regions, pooled_tokens, query)
    return StreamInputs(
        tokens=prompt.tokens[order],
        sources=order.astype(np.int32),
        positions=positions.astype(np.int32),
        visual=visual.astype(np.int32),
        bank_sources=where.astype(np.int32),
        bank_positions=prompt.positions[where],
        bank_images=images,
        bank_regions=regions.astype(np.int32),
    )


def batch_streams(
    prompts: Sequence[PromptInputs],
    config: ModelConfig,
    pooled_tokens: int,
    query: str,
    tile_bucket: int | None = None,
    seq_bucket: int | None = None,
    bank_bucket: int | None = None,
) -> StreamBatch:
    """Right-pad the streams of some prompts; the smallest usual buckets by default.

    `bank_rows` agree with `batch_prompts` of the same prompts and tile bucket.

    Raises:
        UserError: a given bucket is too small, or as `stream_inputs`.
    """
    streams = [stream_inputs(prompt, pooled_tokens, query) for prompt in prompts]
    n_tiles = sum(len(prompt.tiles) for prompt in prompts)
    height = choose_bucket("tiles", n_tiles, tile_bucket, TILE_BUCKETS)
    lengths = np.array([len(stream.tokens) for stream in streams], np.int32)
    width = choose_bucket("tokens", int(lengths.max()), seq_bucket, SEQ_BUCKETS)
    most = max(len(stream.bank_sources) for stream in streams)
    bank_width = choose_bucket("visual tokens", most, bank_bucket, SEQ_BUCKETS)
    rows = [rows[rows >= 0] for rows in table_rows(prompts, height)]

    def padded(name: str, to: int, fill: int) -> np.ndarray:
        return pad_rows([getattr(stream, name) for stream in streams], to, fill)

    regions = padded("bank_regions", bank_width, TEXT)
    most = max(int(stream.bank_images.max(initial=TEXT)) + 1 for stream in streams)
    n_images = round_up(most, TILE_BUCKETS)  # a program serves videos of several lengths
    return StreamBatch(
        tokens=padded("tokens", width, config.pad_token_id),
        lengths=lengths,
        sources=padded("sources", width, 0),
        positions=padded("positions", width, 0),
        visual=padded("visual", width, TEXT),
        bank_rows=pad_rows(rows, bank_width, TEXT),
        bank_sources=padded("bank_sources", bank_width, 0),
        bank_positions=padded("bank_positions", bank_width, 0),
        bank_images=padded("bank_images", bank_width, TEXT),
        bank_regions=regions,
        region_sizes=_sizes(regions, max(n_images * pooled_tokens, 1)),
    )


def _cells(places: np.ndarray, pooled_tokens: int) -> np.ndarray:
    """Raster number of the grid cell that holds each place: int [r]."""
    side = int(pooled_tokens**0.5)
    cells = np.minimum((places * side + _GRID_TOLERANCE).astype(np.int32), side - 1)
    return cells[:, 0] * side + cells[:, 1]


def _stream(
    prompt: PromptInputs, where: np.ndarray, regions: np.ndarray, pooled_tokens: int, query: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(prompt token that gives the id, position [L] or [L, A], visual), each of L."""
    every = np.arange(len(prompt.tokens))
    if query == "full":
        visual = np.full(len(every), TEXT)
        visual[where] = np.arange(len(where))
        return every, prompt.positions, visual
    text = every[prompt.image_ids < 0]
    text_visual = np.full(len(text), TEXT)
    if query == "text_only":
        return text, prompt.positions[text], text_visual

    sizes = np.bincount(regions)
    pooled = np.flatnonzero(sizes)
    sums = np.zeros((len(sizes), *prompt.positions.shape[1:]), np.int64)
    np.add.at(sums, regions, prompt.positions[where])
    count = sizes[pooled].reshape(-1, *[1] * (sums.ndim - 1))
    means = (2 * sums[pooled] + count) // (2 * count)
    # all pooled tokens of a picture enter where it began, in the order of their regions
    _, firsts = np.unique(prompt.image_ids[where], return_index=True)
    begins = where[firsts][pooled // pooled_tokens]
    order = np.concatenate([text, begins])
    into = np.argsort(order, kind="stable")
    positions = np.concatenate([prompt.positions[text], means])
    visual = np.concatenate([text_visual, FIRST_POOLED - pooled])
    return order[into], positions[into], visual[into]


def _sizes(regions: np.ndarray, n_regions: int) -> Float32[np.ndarray, "B U"]:
    """Members of each region; padding belongs to none."""
    members = [np.bincount(row[row >= 0], minlength=n_regions) for row in regions]
    return np.stack(members).astype(np.float32)


def _check(name: str, value: object, allowed: tuple) -> None:
    if value not in allowed:
        raise UserError(f"{name}: expected one of {', '.join(map(str, allowed))}, got {value!r}")
