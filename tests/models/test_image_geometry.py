"""Image token counts and rows: the published table, transformers, and a hand-made case."""

from types import SimpleNamespace

import numpy as np
import pytest

from tiger_jax.errors import UserError
from tiger_jax.models import image_geometry as geometry
from tiger_jax.models.config_reader import llava_next_config

LLAVA = llava_next_config({"vision_config": {"image_size": 336, "patch_size": 14}})
TINY = llava_next_config(
    {
        "vision_config": {"image_size": 112, "patch_size": 14},
        "image_grid_pinpoints": [
            [112, 112], [112, 224], [224, 112], [224, 224], [336, 112], [112, 336],
        ],
    }
)  # fmt: skip
TABLE = [
    (336, 336, (336, 672), 3, (24, 24), 1176),
    (50, 50, (336, 672), 3, (24, 24), 1176),
    (1, 1, (336, 672), 3, (24, 24), 1176),
    (672, 672, (672, 672), 5, (48, 48), 2928),
    (1000, 1000, (672, 672), 5, (48, 48), 2928),
    (480, 640, (672, 672), 5, (36, 48), 2340),
    (768, 1024, (672, 672), 5, (36, 48), 2340),
    (640, 480, (672, 672), 5, (48, 36), 2352),
    (1080, 1920, (672, 672), 5, (28, 48), 1948),
    (1920, 1080, (672, 672), 5, (48, 28), 1968),
    (336, 1008, (336, 1008), 4, (24, 72), 2328),
    (1008, 336, (1008, 336), 4, (72, 24), 2376),
    (300, 1100, (336, 1008), 4, (20, 72), 2036),
    (100, 1000, (336, 1008), 4, (8, 72), 1160),
    (1000, 100, (1008, 336), 4, (72, 8), 1224),
    (10, 2000, (336, 1008), 4, (0, 72), 576),
    (1, 5000, (336, 672), 3, (0, 48), 576),
    (5000, 1, (336, 672), 3, (24, 0), 600),
    (2990, 2990, (672, 672), 5, (48, 48), 2928),
]


def random_sizes(count: int = 200) -> list[tuple[int, int]]:
    rng = np.random.default_rng(0)
    sizes = np.exp(rng.uniform(0, np.log(4000), size=(count, 2))).astype(int)
    return [(int(h), int(w)) for h, w in np.maximum(sizes, 1)]


@pytest.mark.parametrize(("height", "width", "best", "tiles", "grid", "tokens"), TABLE)
def test_published_table(height, width, best, tiles, grid, tokens):
    assert geometry.best_resolution(height, width, LLAVA.pinpoints) == best
    assert geometry.count_tiles(height, width, LLAVA) == tiles
    row0, row1, col0, col1 = geometry.unpadded_grid(height, width, best[0] // 14, best[1] // 14)
    assert (row1 - row0, col1 - col0) == grid
    assert geometry.count_image_tokens(height, width, LLAVA) == tokens
    assert len(geometry.image_token_rows(height, width, LLAVA)) == tokens


def test_tiny_pair_square_picture():
    rows = geometry.image_token_rows(112, 112, TINY)
    assert geometry.count_tiles(112, 112, TINY) == 2
    assert len(rows) == 64 + 8 * 9
    assert list(rows[:64]) == list(range(64))  # the base tile has no newline
    assert list(rows[64:74]) == [*range(64, 72), geometry.NEWLINE, 72]


def test_lines_run_across_tiles():
    """Line by line over both tiles: tile by tile would put row 72 after row 71."""
    rows = geometry.image_token_rows(112, 224, TINY)
    assert list(rows[64:81]) == [*range(64, 72), *range(128, 136), geometry.NEWLINE]


def test_tie_goes_to_the_first_pinpoint():
    assert geometry.best_resolution(50, 50, ((336, 672), (672, 336))) == (336, 672)
    assert geometry.best_resolution(50, 50, ((672, 336), (336, 672))) == (672, 336)


def test_height_and_width_are_not_swapped():
    wide, tall = (
        geometry.image_token_rows(400, 900, LLAVA),
        geometry.image_token_rows(900, 400, LLAVA),
    )
    assert (wide == geometry.NEWLINE).sum() < (tall == geometry.NEWLINE).sum()


@pytest.mark.parametrize("config", [LLAVA, TINY], ids=["llava", "tiny"])
def test_counts_equal_transformers(config):
    processing = pytest.importorskip("transformers.models.llava_next.processing_llava_next")
    side = config.vision.image_size
    oracle = SimpleNamespace(
        image_processor=SimpleNamespace(image_grid_pinpoints=[list(p) for p in config.pinpoints]),
        patch_size=14,
        num_additional_image_tokens=1,
    )
    cls = processing.LlavaNextProcessor
    oracle._get_unpadded_features = lambda *args: cls._get_unpadded_features(oracle, *args)
    for height, width in random_sizes():
        expected = cls._get_number_of_features(oracle, height, width, side, side) - 1
        assert geometry.count_image_tokens(height, width, config) == expected, (height, width)


def test_rows_equal_transformers_packing():
    """The reference's own reshape, unpad and newline on numbered rows give the same rows."""
    torch = pytest.importorskip("torch")
    modeling = pytest.importorskip("transformers.models.llava_next.modeling_llava_next")
    for height, width in random_sizes():
        tiles_h, tiles_w = geometry.tile_grid(height, width, TINY)
        numbers = torch.arange(64 * (1 + tiles_h * tiles_w), dtype=torch.float32)
        view = numbers[64:].reshape(tiles_h, tiles_w, 8, 8, 1).permute(4, 0, 2, 1, 3)
        view = modeling.unpad_image(view.flatten(1, 2).flatten(2, 3), (height, width))
        newline = torch.full((*view.shape[:-1], 1), float(geometry.NEWLINE))
        packed = torch.cat([numbers[:64], torch.cat([view, newline], -1).flatten()])
        rows = geometry.image_token_rows(height, width, TINY)
        assert np.array_equal(rows, packed.int().numpy()), (height, width)
        assert len(rows) == geometry.count_image_tokens(height, width, TINY)


def test_empty_picture_is_refused():
    with pytest.raises(UserError, match="0x5"):
        geometry.count_image_tokens(0, 5, TINY)
