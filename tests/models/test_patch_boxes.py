"""Boxes of visual tokens: hand-computed ones, and what really reaches the tower when a patch is
painted."""

import math

import numpy as np
import pytest

from tests.assets import TINY_LLAVA, TINY_QWEN3_VL
from tiger_jax.data.processor import Processor
from tiger_jax.data.videos import Video
from tiger_jax.models.frames import Frames
from tiger_jax.models.image_geometry import count_image_tokens, pooled_token_places
from tiger_jax.models.patch_boxes import (
    BASE,
    CROP,
    NEWLINE,
    WHOLE,
    Box,
    fitted_size,
    picture_patches,
)
from tiger_jax.testing.tiny import tiny_qwen3_vl_config
from tiger_jax.traces.views import video_views


@pytest.fixture(scope="module")
def llava():
    """8 x 8 patches of 14 pixels a tile of 112."""
    return Processor.from_folder(TINY_LLAVA / "verifier")


@pytest.fixture(scope="module")
def qwen():
    """Tokens of 14 pixels, 12,544 to 50,176 pixels a picture."""
    return Processor.from_folder(TINY_QWEN3_VL / "verifier")


def patches_of(processor, height, width):
    visual = processor.visual(np.zeros((height, width, 3), np.uint8))
    return picture_patches(processor.config, height, width, visual.places)


def at(patches, part, row, column):
    (found,) = [patch for patch in patches if patch[:3] == (part, row, column)]
    return found.box


def test_llava_without_padding(llava):
    """100 x 300 fits 112 x 336 exactly: 12.5 pixels a patch, three tiles side by side."""
    patches = patches_of(llava, 100, 300)
    assert len(patches) == count_image_tokens(100, 300, llava.config) == 64 + 8 * 25
    assert at(patches, BASE, 3, 5) == pytest.approx((37.5, 187.5, 50, 225))
    assert at(patches, CROP, 0, 0) == pytest.approx((0, 0, 12.5, 12.5))
    # column 9 is the second of the second tile
    assert at(patches, CROP, 2, 9) == pytest.approx((25, 112.5, 37.5, 125))
    assert at(patches, CROP, 7, 23) == pytest.approx((87.5, 287.5, 100, 300))
    newlines = [patch for patch in patches if patch.part == NEWLINE]
    assert [patch.row for patch in newlines] == list(range(8))
    assert all(patch.box is None for patch in newlines)
    assert patches[64 + 24] == newlines[0], "a newline ends the first line of the crops"
    assert newlines[0].name == "newline of crop line 1"


def test_llava_half_a_line_of_padding(llava):
    """90 x 200 becomes 101 x 224 in 112 x 224, 5 lines of padding above and 6 below: all eight
    lines stay, the first sees 14 - 5 lines of picture, the last 14 - 6."""
    assert fitted_size(90, 200, (112, 224)) == (101, 224)
    patches = patches_of(llava, 90, 200)
    scale = 90 / 101
    assert at(patches, CROP, 0, 0) == pytest.approx((0, 0, 9 * scale, 12.5))
    assert at(patches, CROP, 1, 15) == pytest.approx((9 * scale, 187.5, 23 * scale, 200))
    assert at(patches, CROP, 7, 3) == pytest.approx((93 * scale, 37.5, 90, 50))
    assert at(patches, BASE, 3, 5) == pytest.approx((33.75, 125, 45, 150))


def test_llava_lines_of_padding_are_gone(llava):
    """60 x 200 becomes 68 x 224 with 22 lines above: two of eight lines are cropped at each end,
    and the first that stays begins 28 - 22 = 6 lines inside the picture."""
    patches = patches_of(llava, 60, 200)
    assert len(patches) == 64 + 4 * 17
    scale = 60 / 68
    assert at(patches, CROP, 0, 0) == pytest.approx((6 * scale, 0, 20 * scale, 12.5))
    assert at(patches, CROP, 3, 15) == pytest.approx((48 * scale, 187.5, 62 * scale, 200))


def test_llava_columns_of_padding(llava):
    """The same picture on its side."""
    lying, upright = patches_of(llava, 60, 200), patches_of(llava, 200, 60)
    for row, column in ((0, 0), (3, 15), (1, 8)):
        box = at(lying, CROP, row, column)
        turned = Box(box.left, box.top, box.right, box.bottom)
        assert at(upright, CROP, column, row) == pytest.approx(turned)


@pytest.mark.parametrize(
    ("stride", "place", "expected"),
    [
        (3, (0, 0), (0, 0, 30, 60)),
        (3, (2, 1), (60, 60, 80, 120)),  # squares of 3, 3 and the 2 patches that are left
        (8, (0, 0), (0, 0, 80, 160)),
        (5, (1, 1), (50, 100, 80, 160)),
        (1, (7, 0), (70, 0, 80, 20)),
    ],
)
def test_pooled_squares(llava, stride, place, expected):
    places = pooled_token_places(stride, llava.config)
    patches = picture_patches(llava.config, 80, 160, places)
    assert len(patches) == len(places) == math.ceil(8 / stride) ** 2
    assert at(patches, BASE, *place) == pytest.approx(expected)


def test_qwen_grid(qwen):
    """150 x 100 has more than the fewest pixels, so it is rounded to 154 x 98: 11 x 7 tokens."""
    patches = patches_of(qwen, 150, 100)
    assert len(patches) == 77
    assert at(patches, WHOLE, 0, 0) == pytest.approx((0, 0, 150 / 11, 100 / 7))
    assert at(patches, WHOLE, 10, 6) == pytest.approx((1500 / 11, 600 / 7, 150, 100))
    assert patches[8].name == "row 2, column 2"


def test_a_large_qwen_picture_is_resized(qwen):
    """400 x 800 has too many pixels: 154 x 308 is the largest that fits, 11 x 22 tokens."""
    patches = patches_of(qwen, 400, 800)
    assert len(patches) == 242
    assert at(patches, WHOLE, 1, 2) == pytest.approx((400 / 11, 1600 / 22, 800 / 11, 2400 / 22))


# What really reaches the tower.


def tower_inputs(processor, shown):
    """What the tower reads for each visual token, [tokens, values]; zeros for newlines."""
    visual = processor.visual(shown)
    rows = visual.rows[visual.frames >= 0]
    if isinstance(visual.tiles, Frames):
        merge = processor.config.vision.merge_size**2
        table = visual.tiles.patches.reshape(-1, merge * visual.tiles.patches.shape[2])
        return table[rows]
    n, p = processor.config.vision.grid, processor.config.vision.patch_size
    tiles = visual.tiles.reshape(-1, n, p, n, p, 3).transpose(0, 1, 3, 2, 4, 5)
    table = tiles.reshape(-1, p * p * 3)
    return np.where((rows >= 0)[:, None], table[np.maximum(rows, 0)], 0)


def painted(picture, box):
    """The picture with the whole pixels of a box inverted, and the box of those."""
    top, left = math.floor(box.top), math.floor(box.left)
    bottom, right = math.ceil(box.bottom), math.ceil(box.right)
    copy = picture.copy()
    copy[top:bottom, left:right] = 255 - copy[top:bottom, left:right]
    return copy, Box(top, left, bottom, right)


def overlap(a, b, margin=0.0):
    """The smaller side of what two boxes share, the first one grown by `margin`."""
    high = min(a.bottom + margin, b.bottom) - max(a.top - margin, b.top)
    wide = min(a.right + margin, b.right) - max(a.left - margin, b.left)
    return min(high, wide)


def check_by_painting(patches, inputs_of, picture, chosen):
    """Painting a token's box changes its own input, that of every token whose box shares a pixel's
    width with the paint, and of none that lies further away than the filter reaches."""
    before = inputs_of(picture)
    for index in chosen:
        copy, paint = painted(picture, patches[index].box)
        changed = np.abs(inputs_of(copy) - before).max(axis=1) > 1e-6
        assert changed[index]
        for patch, is_changed in zip(patches, changed, strict=True):
            if patch.box is None:
                assert not is_changed, f"{patch} has no box but sees the picture"
                continue
            side = patch.box.bottom - patch.box.top, patch.box.right - patch.box.left
            # Bicubic: two pixels of the smaller of the two pictures. A token has 14 pixels.
            reach = 2 * max(1.0, max(side) / 14) + 1
            if overlap(patch.box, paint) >= 1:
                assert is_changed, f"{patch} does not see the paint at {paint}"
            if overlap(patch.box, paint, reach) < 0:
                assert not is_changed, f"{patch} sees the paint at {paint}"


def noise(*shape):
    return np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)


def sample(patches, count=9):
    """Boxes all over the picture, the corners of each part among them."""
    boxed = [i for i, patch in enumerate(patches) if patch.box]
    ends = [boxed[0], boxed[-1], *[i for i in boxed if patches[i].part == CROP][:1]]
    middle = np.random.default_rng(1).choice(boxed, min(count, len(boxed)), replace=False)
    return sorted({*ends, *middle.tolist()})


@pytest.mark.parametrize(
    "size", [(100, 300), (90, 200), (60, 200), (200, 60), (231, 219), (40, 37), (500, 150)]
)
def test_llava_boxes_by_painting(llava, size):
    """Base view and crops, pictures with and without padding, enlarged and shrunk."""
    patches = patches_of(llava, *size)
    parts = {patch.part for patch in patches}
    assert parts == {BASE, CROP, NEWLINE}
    check_by_painting(
        patches, lambda shown: tower_inputs(llava, shown), noise(*size), sample(patches)
    )


@pytest.mark.parametrize("size", [(150, 100), (400, 300), (60, 70), (113, 500)])
def test_qwen_boxes_by_painting(qwen, size):
    patches = patches_of(qwen, *size)
    check_by_painting(
        patches, lambda shown: tower_inputs(qwen, shown), noise(*size), sample(patches)
    )


def test_frames_of_a_qwen_video_by_painting(qwen):
    """Five pictures are three frames of two; the last one stands twice in the third."""
    pictures = noise(5, 90, 130)
    video = Video(pictures, (0.0, 0.5, 1.0, 1.5, 2.0))
    views = list(video_views(1, video, 2))
    assert [len(view.stills) for view in views] == [2, 2, 1]
    assert views[1].name == "video 1, frame 2 (1.0 and 1.5 s)"
    assert views[2].name == "video 1, frame 3 (2.0 s)"
    visual = qwen.visual(video)
    frames = visual.frames[visual.frames >= 0]
    places = visual.places[visual.frames == 0]
    patches = picture_patches(qwen.config, 90, 130, places)
    before = tower_inputs(qwen, video)
    for number in range(5):
        index = 7 * number + 3
        copies = pictures.copy()
        copies[number], paint = painted(pictures[number], patches[index].box)
        after = tower_inputs(qwen, Video(copies, video.seconds))
        changed = np.abs(after - before).max(axis=1) > 1e-6
        assert set(frames[changed]) == {number // 2}
        own = changed[frames == number // 2]
        assert own[index]
        far = [overlap(patch.box, paint, 4) < 0 for patch in patches]
        assert not own[far].any()


def test_frames_of_a_llava_video_by_painting(llava):
    """A frame is one base tile, whatever its shape."""
    pictures = noise(3, 70, 160)
    views = list(video_views(1, Video(pictures, (0.0, 1.0, 2.0), (140, 320)), 1))
    assert [view.name for view in views] == [f"video 1, frame {n} ({n - 1}.0 s)" for n in (1, 2, 3)]
    assert views[0].size == (140, 320), "as it was before it was fitted while reading"
    visual = llava.visual(Video(pictures, (0.0, 1.0, 2.0)))
    patches = picture_patches(llava.config, 70, 160, visual.places[visual.frames == 0])
    assert len(patches) == 64
    box = patches[27].box
    assert box == pytest.approx((3 * 70 / 8, 3 * 160 / 8, 4 * 70 / 8, 4 * 160 / 8))
    copies = pictures.copy()
    copies[1], paint = painted(pictures[1], box)
    before = tower_inputs(llava, Video(pictures, (0.0, 1.0, 2.0)))
    changed = np.abs(tower_inputs(llava, Video(copies, (0.0, 1.0, 2.0))) - before).max(axis=1) > 0
    assert set(visual.frames[changed]) == {1}
    own = changed[visual.frames == 1]
    assert own[27]
    assert not own[[overlap(patch.box, paint, 5) < 0 for patch in patches]].any()


def test_tokens_of_a_tiny_model_are_raster(qwen):
    """Tokens stand line by line whatever the order of the patches in them."""
    config = tiny_qwen3_vl_config()
    places = np.stack(np.meshgrid([0.25, 0.75], [1 / 6, 0.5, 5 / 6], indexing="ij"), -1)
    patches = picture_patches(config, 20, 30, places.reshape(-1, 2).astype(np.float32))
    assert [patch.box[:2] for patch in patches] == [
        (0, 0), (0, 10), (0, 20), (10, 0), (10, 10), (10, 20)
    ]  # fmt: skip
