"""How many visual tokens a LLaVA prompt may have, and how its pictures are made to fit.

LLaVA-v1.6 has 4,096 positions; a picture takes up to 2,880 of them (and a newline for each line of
its grid), a frame of a video 576. The rule, for everything that one prompt shows:

1. The budget counts the rows of patches. Newlines are not counted: they come on top, at most one
   for each line of an anyres grid. By default it is one anyres picture's worth (`default_budget`).
2. If all fit, pictures are anyres (base tile and grid) and a frame of a video is one base tile.
3. Else every picture is its base tile only, as a frame is.
4. Else every base tile of n x n rows is pooled to ceil(n / s)^2, the mean of each square of s x s,
   by one stride s for the whole prompt: the smallest with which all fit.
5. More pictures and frames than the budget has tokens are refused: no stride leaves less than one
   row each. Text never changes the choice, and text that does not fit beside it stays an error
   (prompts.check_length): nothing is ever cut.

    budget 2,880, n = 24    frames     5    20    45    80   115   180   320   720   2,880
                            stride     1     2     3     4     5     6     8    12      24
                            rows     576   144    64    36    25    16     9     4       1   a frame
"""

from collections.abc import Sequence
from typing import NamedTuple

from tiger_jax.errors import UserError
from tiger_jax.models.config import LlavaNextConfig


class Layout(NamedTuple):
    """How the pictures and frames of one prompt are shown."""

    anyres: bool
    """Pictures have their grids of tiles; else only their base tile."""
    stride: int
    """Patches on a side of the squares that base tiles are averaged in; 1 with `anyres`."""


def default_budget(config: LlavaNextConfig) -> int:
    """Visual tokens of a prompt where nobody says: three quarters of the positions in whole tiles,
    and never less than one anyres picture has. 2,880 for LLaVA-v1.6 by either."""
    rows, side = config.vision.grid**2, config.vision.image_size
    tiles = 1 + max(height // side * (width // side) for height, width in config.pinpoints)
    return max(config.text.max_positions * 3 // 4 // rows, tiles) * rows


def choose_layout(budget: int, pictures: Sequence[int], frames: int, side: int) -> Layout:
    """The first layout of the rule that keeps a prompt's visual tokens within the budget.

    Args:
        pictures: rows of patches that each picture has with its grid.
        frames: of all videos together.
        side: rows of patches on one side of a tile.

    Raises:
        UserError: more pictures and frames than the budget has tokens.
    """
    if sum(pictures) + frames * side**2 <= budget:
        return Layout(anyres=True, stride=1)
    shown = len(pictures) + frames
    for stride in range(1, side + 1):
        if shown * (-(-side // stride)) ** 2 <= budget:
            return Layout(anyres=False, stride=stride)
    raise UserError(
        f"prompt: expected at most {budget} pictures and frames of videos (one token each of the "
        f"visual budget of {budget}), got {shown}: give fewer (a lower fps or max_frames)"
    )
