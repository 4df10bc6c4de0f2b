"""Prompts as arrays: one token for each visual row, padded into a few fixed shapes.

Letters: B prompts, S tokens, n tiles of one prompt, N tiles of the batch, H, W tile height, width,
r visual rows a tile.

`image_rows` is the whole layout of the pictures. It indexes the flat table that the vision tower
makes of the tiles; where a family has a learned newline, that is the last row:

    table row:   0 .. r-1 | r .. 2r-1 | ... | N*r
                 tile 0     tile 1            image_newline
    token:       <s> USER : <image> <image> ... \\n   What ...
    image_rows:   -1  -1  -1   0       1    ...  -1   -1
    image_ids:    -1  -1  -1   0       0    ...  -1   -1
"""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int, Int32
from PIL import Image

from tiger_jax.data.processor import Processor
from tiger_jax.data.prompts import check_length, check_placeholders, check_tiles
from tiger_jax.data.videos import Video
from tiger_jax.data.visual import TEXT, Visual
from tiger_jax.errors import UserError
from tiger_jax.models.config import ModelConfig
from tiger_jax.models.frames import Tiles, arrays_of, join_tiles, pack_tiles
from tiger_jax.models.image_geometry import NEWLINE

SEQ_BUCKETS = (64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 2560, 3072, 4096, 6144, 8192,
               12288, 16384, 24576, 32768)  # fmt: skip
TILE_BUCKETS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 256,
                384, 512, 768, 1024, 1536)  # fmt: skip


class PromptInputs(NamedTuple):
    """One prompt; `image_rows` indexes its own tiles, and n * r is its newline.

    `places` (y, x in 0..1) say where in its picture a visual token looked, `image_ids` in which
    picture or frame of a video: the first is 0.
    """

    tokens: Int32[np.ndarray, " S"]
    image_rows: Int32[np.ndarray, " S"]
    tiles: Tiles
    """float32 [n, H, W, 3], Frames, or PooledTiles."""
    places: Float32[np.ndarray, "S 2"]
    image_ids: Int32[np.ndarray, " S"]
    positions: Int32[np.ndarray, "S *A"]
    """Rotary positions, on one axis or several."""
    tile_rows: int
    """r of `image_rows`."""

    @property
    def picture_bytes(self) -> int:
        """Memory of its tiles."""
        return sum(array.nbytes for array in arrays_of(self.tiles))

    @property
    def tokens_per_frame(self) -> tuple[int, ...]:
        """Visual tokens of each picture and each frame of a video, in their order."""
        return tuple(np.bincount(self.image_ids[self.image_ids >= 0]).tolist())

    @property
    def next_position(self) -> int:
        """Rotary position of the text behind it."""
        return int(self.positions.max(initial=-1)) + 1

    def cut(self, end: int) -> "PromptInputs":
        """The first `end` tokens, with all tiles."""
        rows = ("tokens", "image_rows", "places", "image_ids", "positions")
        return self._replace(**{name: getattr(self, name)[:end] for name in rows})

    def followed_by(self, tokens: Int32[np.ndarray, " T"]) -> "PromptInputs":
        """With some text behind it."""
        text = np.full(len(tokens), TEXT, np.int32)
        places = self.next_position + np.arange(len(tokens), dtype=np.int32)
        axes = self.positions.shape[1:]
        places = np.broadcast_to(places.reshape(-1, *[1] * len(axes)), (len(tokens), *axes))
        return self._replace(
            tokens=np.concatenate([self.tokens, tokens]),
            image_rows=np.concatenate([self.image_rows, text]),
            places=np.concatenate([self.places, np.full((len(tokens), 2), TEXT, np.float32)]),
            image_ids=np.concatenate([self.image_ids, text]),
            positions=np.concatenate([self.positions, places]),
        )


class PromptBatch(NamedTuple):
    """Prompts padded on the right; `image_rows` indexes the batch's flat table of visual rows."""

    tokens: Int32[np.ndarray, "B S"]
    lengths: Int32[np.ndarray, " B"]
    image_rows: Int32[np.ndarray, "B S"]
    tiles: Tiles
    positions: Int32[np.ndarray, "B S *A"]


def round_up(n: int, buckets: Sequence[int]) -> int:
    """The smallest bucket that holds n. Raises UserError naming the largest if none does."""
    for bucket in buckets:
        if n <= bucket:
            return bucket
    raise UserError(f"bucket: expected at most {buckets[-1]}, got {n}")


def longest_prompt(config: ModelConfig) -> int:
    """Tokens that a prompt may have: as many as the model has positions and a batch columns."""
    return min(config.text.max_positions, SEQ_BUCKETS[-1])


def make_prompt(
    processor: Processor,
    config: ModelConfig,
    text: str,
    images: Sequence[Image.Image | np.ndarray] = (),
    max_length: int | None = None,
    videos: Sequence[Video] = (),
) -> PromptInputs:
    """Expand a rendered prompt: each placeholder becomes the tokens of its picture or video.

    Args:
        images: RGB pictures in the order of their placeholders.
        max_length: longest prompt allowed; `longest_prompt` by default.
        videos: in the order of their placeholders, as the images are.

    Raises:
        UserError: placeholders and pictures differ in number, the expanded prompt does not fit, or
            as `Processor.visuals`.
    """
    ids = processor.encode_prompt(text, len(videos))
    waiting = {}
    for kind, pictures in (("image", images), ("video", videos)):
        token = processor.placeholder(kind)
        check_placeholders(ids.count(token), len(pictures), kind)
        waiting[token] = iter(pictures)
    shown = processor.visuals([next(waiting[token]) for token in ids if token in waiting])
    parts, visuals = [], iter(shown)
    for pictured, run in groupby(ids, waiting.__contains__):
        tokens = list(run)
        parts += [next(visuals) for _ in tokens] if pictured else [_text(tokens)]
    needed = sum(len(part.tokens) for part in parts)
    pictured = sum(int((part.frames >= 0).sum()) for part in parts)
    check_length(needed, pictured, max_length or longest_prompt(config), len(videos))
    prompt = _join(processor, parts)
    check_tiles(len(prompt.tiles), processor.most_tiles, len(videos))
    return prompt


def batch_prompts(
    prompts: Sequence[PromptInputs],
    config: ModelConfig,
    seq_bucket: int | None = None,
    tile_bucket: int | None = None,
) -> PromptBatch:
    """Right-pad prompts to `seq_bucket` tokens and their tiles to `tile_bucket`.

    The smallest usual buckets by default. Padding tokens hold the pad id, position 0 and
    `image_rows` -1; padding tiles are empty and no token points at them.
    """
    lengths = np.array([len(prompt.tokens) for prompt in prompts], np.int32)
    width = choose_bucket("tokens", int(lengths.max()), seq_bucket, SEQ_BUCKETS)
    n_tiles = sum(len(prompt.tiles) for prompt in prompts)
    height = choose_bucket("tiles", n_tiles, tile_bucket, TILE_BUCKETS)
    return PromptBatch(
        tokens=pad_rows([prompt.tokens for prompt in prompts], width, config.pad_token_id),
        lengths=lengths,
        image_rows=pad_rows(table_rows(prompts, height), width, TEXT),
        tiles=join_tiles([prompt.tiles for prompt in prompts], height),
        positions=pad_rows([prompt.positions for prompt in prompts], width, 0),
    )


def table_rows(prompts: Sequence[PromptInputs], batch_tiles: int) -> list[np.ndarray]:
    """Each prompt's own table rows as rows of the table of `batch_tiles` tiles.

    A tile moves on by the tiles before it, and has as many rows as the largest; the newline is the
    row behind all of them.
    """
    per_tile = max(prompt.tile_rows for prompt in prompts)
    found, first = [], 0
    for prompt in prompts:
        own = prompt.image_rows
        tile, row = np.divmod(own, max(prompt.tile_rows, 1))
        moved = (tile + first) * per_tile + row
        newline = own == len(prompt.tiles) * prompt.tile_rows
        moved = np.where(newline, batch_tiles * per_tile, moved)
        found.append(np.where(own == TEXT, TEXT, moved).astype(np.int32))
        first += len(prompt.tiles)
    return found


def pad_rows(rows: Sequence[np.ndarray], width: int, fill: int) -> Int32[np.ndarray, "B width *A"]:
    """Rows of different lengths, padded on the right."""
    padded = np.full((len(rows), width, *rows[0].shape[1:]), fill, np.int32)
    for b, row in enumerate(rows):
        padded[b, : len(row)] = row
    return padded


def round_width(n: int) -> int:
    """Width of rows of n tokens in training: few shapes are compiled for pictures of any size, and
    small ones are hardly padded. Multiples of 16 up to 256, then SEQ_BUCKETS."""
    return -(-n // 16) * 16 if n <= 256 else round_up(n, SEQ_BUCKETS)


def round_tiles(n: int, rows: int) -> int:
    """Tiles of a batch of `rows` prompts in training: a usual number for each, so that a mesh cuts
    the tiles as it cuts the rows."""
    return rows * round_up(-(-n // rows), TILE_BUCKETS)


def choose_bucket(what: str, needed: int, wanted: int | None, buckets: Sequence[int]) -> int:
    """`wanted` if it holds what is needed, else UserError; without it the smallest that does."""
    if wanted is None:
        return round_up(needed, buckets)
    if needed > wanted:
        raise UserError(f"batch: expected at most {wanted} {what} (the bucket), got {needed}")
    return wanted


def _text(ids: Sequence[int]) -> Visual:
    """A run of text, in the form of a picture's tokens."""
    tokens = np.array(ids, np.int32)
    none, nowhere = np.full_like(tokens, TEXT), np.full((len(tokens), 2), TEXT, np.float32)
    return Visual(tokens, none, nowhere, none, np.zeros((0, 2), np.int32), None, 0)


def _join(processor: Processor, parts: Sequence[Visual]) -> PromptInputs:
    """Texts and pictures one after the other; frames are numbered through, tiles put together."""
    pictures = [part for part in parts if part.tiles is not None]
    tile_rows = max((part.tile_rows for part in pictures), default=0)
    tiles, begins = processor.empty_tiles(), np.zeros(0, int)
    if pictures:
        shapes = zip(*((part.tiles, part.tile_rows) for part in pictures), strict=True)
        tiles, begins = pack_tiles(*shapes)
    rows, image_ids, first, frame = [], [], 0, 0
    for part in parts:
        rows.append(_moved(part, begins[first:], len(tiles) * tile_rows))
        image_ids.append(np.where(part.frames >= 0, part.frames + frame, TEXT).astype(np.int32))
        first += 0 if part.tiles is None else len(part.tiles)
        frame = max(frame, int(image_ids[-1].max(initial=TEXT)) + 1)
    tokens = np.concatenate([part.tokens for part in parts])
    grids = np.concatenate([part.grids for part in parts])
    return PromptInputs(
        tokens=tokens,
        image_rows=np.concatenate(rows),
        tiles=tiles,
        places=np.concatenate([part.places for part in parts]),
        image_ids=np.concatenate(image_ids),
        positions=processor.positions(tokens, grids),
        tile_rows=tile_rows,
    )


def _moved(part: Visual, begins: Int[np.ndarray, " n"], newline: int) -> Int32[np.ndarray, " S"]:
    """A part's visual rows where its tiles begin at `begins`."""
    if part.tiles is None:
        return part.rows
    tile, row = np.divmod(part.rows, part.tile_rows)
    rows = begins[np.maximum(tile, 0)] + row
    return np.select([part.rows == TEXT, part.rows == NEWLINE], [TEXT, newline], rows).astype(
        np.int32
    )
