"""Pictures as the tower of Qwen3-VL takes them, and tiles of either family put together.

N: tiles, P: patches of a tile (a bucket), V: numbers of one patch.

A frame is one still for the tower: a picture twice, or two neighbouring pictures of a video. Its
patches stand in the order of the squares that become one visual token each:

    0 1 4 5
    2 3 6 7     rows of a 2 x 4 grid; a token is made of patches 0..3, the next one of 4..7

A tile holds one frame, or several that are smaller than the others of a prompt.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

PATCH_BUCKETS = (
    64, 128, 256, 384, 512, 768, 1024, 1280, 1536, 2048, 2560, 3072, 4096, 6144, 8192, 12288,
    16384, 24576, 32768, 49152, 65536,
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Frames:
    """Tiles of frames, padded to one number of patches; numpy on the host, arrays on devices.

    A pytree once models/qwen3_vision.py is imported: the host's side needs no jax.
    """

    patches: Any
    """float [N, P, V]: values in the order (channel, picture, row, column); 0 behind `counts`."""
    counts: Any
    """int32 [N]: patches of each tile, those of all its frames."""
    places: Any
    """int32 [N, P, 2]: row and column of each patch in its frame, which begins at (0, 0)."""
    taps: Any
    """int32 [N, P, 4]: the rows of the position table around each patch."""
    weights: Any
    """float32 [N, P, 4]: their shares; 0 behind `counts`."""

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, index: slice) -> "Frames":
        return Frames(**{name: value[index] for name, value in vars(self).items()})

    def astype(self, dtype: Any) -> "Frames":
        """Patches in another dtype; positions keep theirs."""
        return dataclasses.replace(self, patches=self.patches.astype(dtype))


@dataclasses.dataclass(frozen=True)
class PooledTiles:
    """Tiles of LLaVA-NeXT whose visual rows are averaged in squares; as Frames, a pytree once
    models/llava_next.py is imported."""

    pixels: Any
    """float [N, S, S, 3], S the side of a tile in pixels."""
    strides: Any
    """int32 [N]: patches on a side of each square. 1 averages nothing; 0 is padding."""

    def __len__(self) -> int:
        return len(self.strides)

    def __getitem__(self, index: slice) -> "PooledTiles":
        return PooledTiles(self.pixels[index], self.strides[index])

    def astype(self, dtype: Any) -> "PooledTiles":
        """Pixels in another dtype."""
        return dataclasses.replace(self, pixels=self.pixels.astype(dtype))


Tiles = np.ndarray | Frames | PooledTiles
"""What the vision tower of a family takes, one entry a tile."""


def pack_tiles(
    parts: Sequence[Tiles], tile_rows: Sequence[int]
) -> tuple[Tiles, Int[np.ndarray, " n"]]:
    """Tiles of several pictures in their order; frames of less than the largest size share tiles.
    Else the stills of a video would each be as large as a photograph beside it.

    Args:
        tile_rows: visual rows of a tile of each part.

    Returns:
        the tiles, and the visual row at which each of the n given ones begins.
    """
    widest, begins = max(tile_rows), []
    tile, used = -1, widest
    for part, own in zip(parts, tile_rows, strict=True):
        for rows in _real_rows(part, own):
            if own == widest or used + rows > widest:
                tile, used = tile + 1, 0
            begins.append(tile * widest + used)
            used += rows
    begins = np.array(begins, int)
    if not isinstance(parts[0], Frames):
        return join_tiles(parts, len(begins)), begins
    return _copy_frames(parts, begins * parts[0].patches.shape[1] // tile_rows[0], tile + 1), begins


def _real_rows(tiles: Tiles, tile_rows: int) -> list[int]:
    if not isinstance(tiles, Frames):
        return [tile_rows] * len(tiles)
    return (tiles.counts * tile_rows // tiles.patches.shape[1]).tolist()


def _copy_frames(parts: Sequence[Frames], begins: Int[np.ndarray, " n"], count: int) -> Frames:
    """`count` tiles of the largest size; frame i begins at their patch begins[i]."""
    size = max(part.patches.shape[1] for part in parts)
    packed = {
        name: np.zeros((count * size, *array.shape[2:]), array.dtype)
        for name, array in vars(parts[0]).items() if name != "counts"
    }  # fmt: skip
    counts = np.zeros(count, np.int32)
    frames = [(part, i) for part in parts for i in range(len(part))]
    for (part, i), begin in zip(frames, begins, strict=True):
        own = part.counts[i]
        counts[begin // size] += own
        for name, array in packed.items():
            array[begin : begin + own] = getattr(part, name)[i, :own]
    tiled = {name: array.reshape(count, size, *array.shape[1:]) for name, array in packed.items()}
    return Frames(counts=counts, **tiled)


def join_tiles(parts: Sequence[Tiles], count: int) -> Tiles:
    """All tiles one after the other, then empty ones up to `count`; smaller frames are padded.

    Tiles beside pooled ones are pooled with a stride of 1, which keeps each of their rows.
    """
    if any(isinstance(part, PooledTiles) for part in parts):
        parts = [_with_strides(part) for part in parts]
    joined = [_join(leaves, count) for leaves in zip(*map(arrays_of, parts), strict=True)]
    kind = type(parts[0])
    return kind(*joined) if issubclass(kind, Frames | PooledTiles) else joined[0]


def arrays_of(tiles: Tiles) -> list[np.ndarray]:
    """What tiles are made of."""
    return list(vars(tiles).values()) if isinstance(tiles, Frames | PooledTiles) else [tiles]


def _with_strides(tiles: np.ndarray | PooledTiles) -> PooledTiles:
    if isinstance(tiles, PooledTiles):
        return tiles
    return PooledTiles(tiles, np.ones(len(tiles), np.int32))


def _join(parts: Sequence[np.ndarray], count: int) -> np.ndarray:
    shape = np.max([part.shape[1:] for part in parts], axis=0).astype(int)
    joined = np.zeros((count, *shape), parts[0].dtype)
    first = 0
    for part in parts:
        joined[(slice(first, first + len(part)), *map(slice, part.shape[1:]))] = part
        first += len(part)
    return joined
