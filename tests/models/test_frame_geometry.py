"""Sizes, patch order, position taps and M-RoPE: published tables, hand-made cases, transformers."""

from itertools import groupby
from types import MethodType, SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.published_source import from_source
from tiger_jax.errors import UserError
from tiger_jax.models import frame_geometry as geometry

IMAGE = {"factor": 32, "min_pixels": 65536, "max_pixels": 16777216}
VIDEO = {"factor": 32, "temporal": 2, "min_pixels": 4096, "max_pixels": 25165824}
SIDES = st.integers(1, 9000)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((224, 224), (256, 256)),
        ((1, 1), (256, 256)),
        ((100, 100), (256, 256)),
        ((272, 240), (256, 256)),
        ((480, 640), (480, 640)),
        ((768, 1024), (768, 1024)),
        ((1080, 1920), (1088, 1920)),
        ((1, 200), (32, 3648)),
        ((10, 2000), (32, 3648)),
        ((4000, 6000), (3328, 4992)),
        ((8000, 8000), (4096, 4096)),
        ((5000, 5000), (4096, 4096)),
        ((300, 400), (288, 384)),
        ((80, 1000), (96, 928)),  # 80 / 32 = 2.5 rounds to 2, and the area is then too small
        ((336, 336), (320, 320)),  # 10.5 -> 10: halves go to even, rounding up gives 352
        ((304, 304), (320, 320)),  # 9.5 -> 10
    ],
)
def test_image_sizes_of_the_published_table(size, expected):
    assert geometry.smart_resize(*size, **IMAGE) == expected


@given(SIDES, SIDES)
@settings(deadline=None)
def test_image_size_equals_transformers(height, width):
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    check_same(
        lambda: smart_resize(height, width, **IMAGE),
        lambda: geometry.smart_resize(height, width, **IMAGE),
    )


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((4, 240, 320), (256, 320)),
        ((8, 480, 640), (480, 640)),
        ((2, 720, 1280), (704, 1280)),  # an image of that size would stay 720 -> 736
        ((16, 1080, 1920), (928, 1664)),
        ((768, 720, 1280), (128, 224)),
        ((5, 100, 100), (96, 96)),
        ((4, 16, 16), (32, 32)),
        ((1, 240, 320), (256, 320)),  # counts as two pictures
    ],
)
def test_video_sizes_of_the_published_table(size, expected):
    assert geometry.video_size(*size, **VIDEO) == expected


@given(st.integers(2, 800), SIDES, SIDES)
@settings(deadline=None)
def test_video_size_equals_transformers(frames, height, width):
    published = from_source("models/qwen3_vl/video_processing_qwen3_vl.py", "smart_resize")
    check_same(
        lambda: published(frames, height, width, 2, 32, 4096, 25165824),
        lambda: geometry.video_size(frames, height, width, **VIDEO),
    )


def check_same(published, ours):
    try:
        expected = published()
    except ValueError:
        with pytest.raises(UserError, match="200 times"):
            ours()
    else:
        assert ours() == expected


@pytest.mark.parametrize("size", [(0, 5), (5, 0)])
def test_no_pixels(size):
    with pytest.raises(UserError, match="at least 1x1"):
        geometry.smart_resize(*size, **IMAGE)
    with pytest.raises(UserError, match="at least 1x1"):
        geometry.video_size(4, *size, **VIDEO)


def test_too_thin_and_no_frames():
    with pytest.raises(UserError, match=r"got 1x201 \(h x w\)"):
        geometry.smart_resize(1, 201, **IMAGE)
    with pytest.raises(UserError, match="at least one frame"):
        geometry.video_size(0, 5, 5, **VIDEO)


def test_patches_stand_in_blocks():
    rows, columns = geometry.frame_places(2, 4, 2).T.tolist()
    assert rows == [0, 0, 1, 1, 0, 0, 1, 1]
    assert columns == [0, 1, 0, 1, 2, 3, 2, 3]
    assert geometry.frame_places(4, 2, 2)[4].tolist() == [2, 0]  # raster order: [2, 0] too
    assert geometry.frame_places(4, 2, 2)[1:3].tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize("grid", [(4, 6), (2, 2), (20, 2), (48, 48), (2, 130), (8, 8)])
def test_position_taps_equal_interpolation_of_the_table(grid):
    torch = pytest.importorskip("torch")
    table = np.random.default_rng(0).normal(size=(48 * 48, 3)).astype(np.float32)
    taps, weights = geometry.position_taps(*grid, 48, 2)
    ours = (table[taps] * weights[:, :, None]).sum(1)

    square = torch.tensor(table).reshape(1, 48, 48, 3).permute(0, 3, 1, 2)
    wrong, right = (
        torch.nn.functional.interpolate(square, grid, mode="bilinear", align_corners=corners)
        for corners in (False, True)
    )
    places = geometry.frame_places(*grid, 2)
    expected = right[0].numpy()[:, places[:, 0], places[:, 1]].T
    np.testing.assert_allclose(ours, expected, atol=3e-5)  # torch's own places are off by 4e-6
    if grid != (48, 48):
        assert np.abs(ours - wrong[0].numpy()[:, places[:, 0], places[:, 1]].T).max() > 0.5


@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from([8, 48]))
@settings(deadline=None)
def test_position_taps_equal_transformers_bit_for_bit(rows, columns, side):
    torch = pytest.importorskip("torch")
    from transformers.vision_utils import get_vision_interpolation_indices_and_weights as published

    grid = torch.tensor([[1, 2 * rows, 2 * columns]])
    expected = published(grid, side, "bilinear", align_corners=True, spatial_merge_size=2)
    found = geometry.position_taps(2 * rows, 2 * columns, side, 2)
    np.testing.assert_array_equal(found[0], expected[0].numpy())
    np.testing.assert_array_equal(found[1], expected[1].numpy())


def test_a_single_row_stands_at_the_tables_start():
    taps, weights = geometry.position_taps(1, 3, 5, 1)
    assert taps[:, 0].tolist() == [0, 2, 4]
    assert weights[:, 0].tolist() == [1, 1, 1]


def positions(text: str, grids):
    """'t': text, 'i': image, 'v': video."""
    return geometry.mrope_positions(np.array(["tiv".index(kind) for kind in text], int), grids)


def test_one_image():
    time, row, column = positions("ttt" + "i" * 6 + "ttt", [(2, 3)]).T.tolist()
    assert time == [0, 1, 2, 3, 3, 3, 3, 3, 3, 6, 7, 8]
    assert row == [0, 1, 2, 3, 3, 3, 4, 4, 4, 6, 7, 8]
    assert column == [0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7, 8]


def test_two_images():
    found = positions("tt" + "i" * 6 + "ttt" + "i" * 4 + "tt", [(2, 3), (2, 2)])
    assert found[:, 0].tolist() == [0, 1, *[2] * 6, 5, 6, 7, *[8] * 4, 10, 11]
    assert found.max() + 1 - len(found) == -5


def test_each_frame_of_a_video_stands_still():
    text = "tttt" + ("v" * 4 + "tttt") * 2 + "v" * 4 + "tt"
    time, row, _ = positions(text, [(2, 2)] * 3).T.tolist()
    assert time == [0, 1, 2, 3, *[4] * 4, 6, 7, 8, 9, *[10] * 4, 12, 13, 14, 15, *[16] * 4, 18, 19]
    assert row[4:8] == [4, 4, 5, 5]
    assert row[12:16] == [10, 10, 11, 11]
    assert max(time) + 1 - len(text) == -6


def test_positions_that_do_not_fit():
    assert positions("", []).shape == (0, 3)
    for text, grids in (("tiiii", [(2, 3)]), ("tii", []), ("tii", [(1, 1)]), ("tii", [(0, 2)])):
        with pytest.raises(UserError, match="expected a grid"):
            positions(text, grids)
    with pytest.raises(UserError, match="1 without"):
        positions("tii", [(1, 2), (1, 2)])


PARTS = st.lists(
    st.tuples(st.sampled_from("tiv"), st.integers(1, 5), st.integers(1, 9)), min_size=1, max_size=9
)


@given(PARTS, st.integers(0, 3), st.integers(0, 3))
@settings(deadline=None)
def test_positions_equal_transformers_with_padding_on_either_side(parts, left, right):
    torch = pytest.importorskip("torch")
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel

    model = SimpleNamespace(
        config=SimpleNamespace(vision_config=SimpleNamespace(spatial_merge_size=2))
    )
    model.get_vision_position_ids = MethodType(Qwen3VLModel.get_vision_position_ids, model)
    text, grids, patches = "t", [], {"i": [], "v": []}
    for kind, rows, columns in parts:
        text += "t" * columns if kind == "t" else kind * (rows * columns) + "t"
        if kind != "t":
            grids.append((rows, columns))
            patches[kind].append([1, 2 * rows, 2 * columns])
    kinds = ["tiv".index(kind) for kind in text]
    padded = torch.tensor([[0] * left + kinds + [0] * right])
    mask = torch.tensor([[0] * left + [1] * len(kinds) + [0] * right])
    image, video = (torch.tensor(patches[k]) if patches[k] else None for k in "iv")
    expected, delta = Qwen3VLModel.get_rope_index(model, padded, padded, image, video, mask)

    ours = geometry.mrope_positions(np.array(kinds), grids)
    np.testing.assert_array_equal(ours.T, expected[:, 0, left : left + len(kinds)].numpy())
    assert ours.max() + 1 - len(kinds) == delta.item()
    runs = [kind for kind, _ in groupby(text) if kind != "t"]
    assert len(runs) == len(grids)
