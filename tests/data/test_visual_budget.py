"""The rule of the visual budget: never over it, and nothing smaller than it must be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiger_jax.data.visual_budget import Layout, choose_layout, default_budget
from tiger_jax.errors import UserError
from tiger_jax.models.config_reader import llava_next_config
from tiger_jax.models.image_geometry import image_token_rows
from tiger_jax.models.published import published_config
from tiger_jax.testing.tiny import tiny_config

REAL = 24
"""Rows of patches on one side of a real tile."""
budgets = st.integers(1, 3000)
pictures = st.lists(st.integers(REAL**2, 5 * REAL**2), max_size=30)
frames = st.integers(0, 1600)


def used(layout, grown, frames, side):
    """Visual tokens of a layout, counted one by one."""
    if layout.anyres:
        return sum(grown) + frames * side * side
    squares = len(range(0, side, layout.stride)) ** 2
    return sum(squares for _ in grown) + frames * squares


@given(budgets, pictures, frames, st.sampled_from((2, 5, 8, REAL)))
def test_the_first_layout_that_fits(budget, grown, frames, side):
    """Every layout before the chosen one is over the budget; where none is chosen, all are."""
    order = [Layout(True, 1), *(Layout(False, stride) for stride in range(1, side + 1))]
    fitting = [layout for layout in order if used(layout, grown, frames, side) <= budget]
    if fitting:
        assert choose_layout(budget, grown, frames, side) == fitting[0]
    else:
        assert len(grown) + frames > budget
        with pytest.raises(UserError, match=f"got {len(grown) + frames}: give fewer"):
            choose_layout(budget, grown, frames, side)


@pytest.mark.parametrize(
    ("frames", "stride"),
    [(0, 1), (5, 1), (6, 2), (8, 2), (20, 2), (21, 3), (45, 3), (46, 4), (64, 4), (80, 4), (81, 5),
     (115, 5), (116, 6), (180, 6), (181, 8), (320, 8), (321, 12), (720, 12), (721, 24), (1000, 24),
     (2880, 24)],
)  # fmt: skip
def test_strides_of_the_real_sizes(frames, stride):
    """The table of the rule: 24 x 24 rows a frame, 2,880 tokens."""
    assert choose_layout(2880, [], frames, REAL) == Layout(frames < 6, stride)


def test_more_than_one_token_each():
    with pytest.raises(UserError) as caught:
        choose_layout(2880, [1152], 2880, REAL)
    assert str(caught.value) == (
        "prompt: expected at most 2880 pictures and frames of videos (one token each of the visual "
        "budget of 2880), got 2881: give fewer (a lower fps or max_frames)"
    )


def test_many_pictures_lose_their_grids_first():
    """1,728 rows for each of 1x2 tiles: one has its grid, up to five their base tile, 20 a fourth
    of it (20 x 144 = 2,880). A video beside one takes its grid away, not its base tile."""
    layouts = [choose_layout(2880, [1728] * n, 0, REAL) for n in (1, 2, 5, 6, 20, 21)]
    assert layouts == [(True, 1), (False, 1), (False, 1), (False, 2), (False, 2), (False, 3)]
    assert choose_layout(2880, [1728], 2, REAL) == Layout(True, 1)
    assert choose_layout(2880, [1728], 3, REAL) == Layout(False, 1)


def test_default_budgets():
    """2,880 = 5 x 576 is both three quarters of 4,096 positions and the largest picture; the tiny
    model has 512 positions and 4 rows a tile."""
    config = llava_next_config(published_config("llava-v1.6-vicuna-7b-hf"))
    assert default_budget(config) == 2880
    assert (image_token_rows(672, 672, config) >= 0).sum() == 2880
    assert default_budget(tiny_config()) == 384
