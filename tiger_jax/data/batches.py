"""Prompts as arrays: one token for each visual row, padded into a few fixed shapes.

Letters: B prompts, S tokens, n tiles of one prompt, N tiles of the batch, H, W tile height, width,
r visual rows a tile.

`image_rows` is the whole layout of the pictures. It indexes the flat table that the vision tower
makes of the tiles, whose last row is the learned newline:

    table row:   0 .. r-1 | r .. 2r-1 | ... | N*r
                 tile 0     tile 1            image_newline
    token:       <s> USER : <image> <image> ... \\n   What ...
    image_rows:   -1  -1  -1   0       1    ...  -1   -1
    image_ids:    -1  -1  -1   0       0    ...  -1   -1
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int32
from PIL import Image

from tiger_jax.data.processor import Processor
from tiger_jax.data.prompts import check_length, check_placeholders
from tiger_jax.errors import UserError
from tiger_jax.models.config import LlavaNextConfig
from tiger_jax.models.image_geometry import NEWLINE, image_token_places, image_token_rows

TEXT = -1
"""`image_rows`, `image_ids` and both `places` of a token that is text or padding."""
SEQ_BUCKETS = (64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 2560, 3072, 4096, 6144, 8192)
TILE_BUCKETS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 256)


class PromptInputs(NamedTuple):
    """One prompt; `image_rows` indexes its own tiles, and n * r is its newline.

    `places` (y, x in 0..1) say where in its picture a visual token looked, `image_ids` in which
    picture: the first is 0.
    """

    tokens: Int32[np.ndarray, " S"]
    image_rows: Int32[np.ndarray, " S"]
    tiles: Float32[np.ndarray, "n H W 3"]
    places: Float32[np.ndarray, "S 2"]
    image_ids: Int32[np.ndarray, " S"]


class PromptBatch(NamedTuple):
    """Prompts padded on the right; `image_rows` indexes the batch's flat table [N * r + 1]."""

    tokens: Int32[np.ndarray, "B S"]
    lengths: Int32[np.ndarray, " B"]
    image_rows: Int32[np.ndarray, "B S"]
    tiles: Float32[np.ndarray, "N H W 3"]


def round_up(n: int, buckets: Sequence[int]) -> int:
    """The smallest bucket that holds n. Raises UserError naming the largest if none does."""
    for bucket in buckets:
        if n <= bucket:
            return bucket
    raise UserError(f"bucket: expected at most {buckets[-1]}, got {n}")


def make_prompt(
    processor: Processor,
    config: LlavaNextConfig,
    text: str,
    images: Sequence[Image.Image | np.ndarray] = (),
    max_length: int | None = None,
) -> PromptInputs:
    """Expand a rendered prompt: each "<image>" becomes one token for each row of its picture.

    Args:
        images: RGB pictures in the order of their placeholders.
        max_length: longest prompt allowed; the model's positions by default.

    Raises:
        UserError: placeholders and images differ in number, or the expanded prompt is too long.
    """
    ids = processor.encode(text)
    check_placeholders(ids.count(config.image_token_id), len(images))
    tiles, pictures = _tile_images(processor, config, images)
    image_tokens = sum(len(picture) for picture, _ in pictures)
    needed = len(ids) - len(images) + image_tokens
    check_length(needed, image_tokens, max_length or config.text.max_positions)

    text_rows, text_places = np.full(1, TEXT, np.int32), np.full((1, 2), TEXT, np.float32)
    tokens, rows, places, image_ids, seen = [], [], [], [], 0
    for token in ids:
        is_image = token == config.image_token_id
        here, where = pictures[seen] if is_image else (text_rows, text_places)
        tokens.append(np.full(len(here), token, np.int32))
        rows.append(here)
        places.append(where)
        image_ids.append(np.full(len(here), seen if is_image else TEXT, np.int32))
        seen += is_image
    tokens, rows, places, image_ids = map(np.concatenate, (tokens, rows, places, image_ids))
    return PromptInputs(tokens, rows, tiles, places, image_ids)


def batch_prompts(
    prompts: Sequence[PromptInputs],
    config: LlavaNextConfig,
    seq_bucket: int | None = None,
    tile_bucket: int | None = None,
) -> PromptBatch:
    """Right-pad prompts to `seq_bucket` tokens and their tiles to `tile_bucket`.

    The smallest usual buckets by default. Padding tokens hold the pad id and `image_rows` -1;
    padding tiles are zero and no token points at them.
    """
    lengths = np.array([len(prompt.tokens) for prompt in prompts], np.int32)
    n_tiles = sum(len(prompt.tiles) for prompt in prompts)
    width = choose_bucket("tokens", int(lengths.max()), seq_bucket, SEQ_BUCKETS)
    height = choose_bucket("tiles", n_tiles, tile_bucket, TILE_BUCKETS)

    tokens = np.full((len(prompts), width), config.pad_token_id, np.int32)
    image_rows = np.full((len(prompts), width), TEXT, np.int32)
    size = config.vision.image_size
    tiles = np.zeros((height, size, size, 3), np.float32)
    first = 0
    for b, prompt in enumerate(prompts):
        n = len(prompt.tiles)
        tokens[b, : lengths[b]] = prompt.tokens
        image_rows[b, : lengths[b]] = shift_rows(
            prompt.image_rows, n, first, height, config.rows_per_tile
        )
        tiles[first : first + n] = prompt.tiles
        first += n
    return PromptBatch(tokens, lengths, image_rows, tiles)


def shift_rows(
    rows: np.ndarray, n_tiles: int, first_tile: int, batch_tiles: int, rows_per_tile: int
) -> np.ndarray:
    """A prompt's own table rows as rows of the batch's table.

    Tiles move on by `first_tile`; the newline goes to the batch's last row.
    """
    shifted = np.where(
        rows == n_tiles * rows_per_tile,
        batch_tiles * rows_per_tile,
        rows + first_tile * rows_per_tile,
    )
    return np.where(rows == TEXT, TEXT, shifted)


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


def _tile_images(
    processor: Processor, config: LlavaNextConfig, images: Sequence[Image.Image | np.ndarray]
) -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
    """All tiles of the pictures [n, H, W, 3], and for each picture its tokens' rows and places."""
    size = config.vision.image_size
    tiles, offset = [np.zeros((0, size, size, 3), np.float32)], 0
    found = []
    for image in images:
        picture, (height, width) = processor.tiles(image)
        own = image_token_rows(height, width, config)
        found.append((own, offset, image_token_places(height, width, config)))
        tiles.append(picture)
        offset += len(picture) * config.rows_per_tile
    # the newline is the row after the last picture's tiles: known only now
    pictures = [
        (np.where(own == NEWLINE, offset, own + start).astype(np.int32), places)
        for own, start, places in found
    ]
    return np.concatenate(tiles), pictures
