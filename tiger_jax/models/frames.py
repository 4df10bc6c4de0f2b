"""Pictures as the tower of Qwen3-VL takes them, and tiles of either family put together.

N: frames, P: patches of a frame (a bucket), V: numbers of one patch.

A frame is one still for the tower: a picture twice, or two neighbouring pictures of a video. Its
patches stand in the order of the squares that become one visual token each:

    0 1 4 5
    2 3 6 7     rows of a 2 x 4 grid; a token is made of patches 0..3, the next one of 4..7
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

PATCH_BUCKETS = (
    64, 128, 256, 384, 512, 768, 1024, 1280, 1536, 2048, 2560, 3072, 4096, 6144, 8192, 12288,
    16384, 24576, 32768, 49152, 65536,
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Frames:
    """Frames padded to one number of patches; numpy on the host, arrays on devices.

    A pytree once models/qwen3_vision.py is imported: the host's side needs no jax.
    """

    patches: Any
    """float [N, P, V]: values in the order (channel, picture, row, column); 0 behind `counts`."""
    counts: Any
    """int32 [N]: patches of each frame."""
    places: Any
    """int32 [N, P, 2]: row and column of each patch."""
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


Tiles = np.ndarray | Frames
"""What the vision tower of a family takes, one entry a tile or frame."""


def join_tiles(parts: Sequence[Tiles], count: int) -> Tiles:
    """All tiles one after the other, then empty ones up to `count`; smaller frames are padded."""
    joined = [_join(leaves, count) for leaves in zip(*map(arrays_of, parts), strict=True)]
    return Frames(*joined) if isinstance(parts[0], Frames) else joined[0]


def arrays_of(tiles: Tiles) -> list[np.ndarray]:
    """What tiles are made of."""
    return list(vars(tiles).values()) if isinstance(tiles, Frames) else [tiles]


def _join(parts: Sequence[np.ndarray], count: int) -> np.ndarray:
    shape = np.max([part.shape[1:] for part in parts], axis=0).astype(int)
    joined = np.zeros((count, *shape), parts[0].dtype)
    first = 0
    for part in parts:
        joined[(slice(first, first + len(part)), *map(slice, part.shape[1:]))] = part
        first += len(part)
    return joined
