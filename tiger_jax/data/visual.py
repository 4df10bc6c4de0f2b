"""What one picture or video becomes: the tokens in its placeholder's place, and its tiles."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int32

from tiger_jax.models.frames import Tiles

TEXT = -1
"""In the place of a row, a frame or a place of a token that is text or padding."""
IMAGE_TOKEN, VIDEO_TOKEN = "<image>", "<video>"
"""How a question says where its pictures and videos go, whatever the family's own tokens are."""


class Visual(NamedTuple):
    """n tokens of one placeholder, over f frames.

    A picture's own table of visual rows is that of its tiles, one after the other, `tile_rows`
    rows each. In a prompt a tile begins where `pack_tiles` puts it, and its rows stay together.
    """

    tokens: Int32[np.ndarray, " n"]
    """Ids; those of a video hold each frame's time and marks too."""
    rows: Int32[np.ndarray, " n"]
    """Own table row, tile * tile_rows + row; -1 for text, -2 for a learned newline."""
    places: Float32[np.ndarray, "n 2"]
    """(y, x) in 0..1 of the patch centre in its frame; -1 for text."""
    frames: Int32[np.ndarray, " n"]
    """Which frame of this placeholder; 0 for a picture, -1 for text."""
    grids: Int32[np.ndarray, "f 2"]
    """Rows and columns of each frame in tokens; [0, 2] where positions do not need them."""
    tiles: Tiles
    tile_rows: int
