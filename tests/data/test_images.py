"""Every colour mode, orientation and kind of broken file, against pixels known in advance."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from tiger_jax.data.images import load_image, to_rgb
from tiger_jax.errors import UserError

EDGE_CASES = Path(__file__).parents[3] / "shared/data/images/edge_cases"
BROKEN = {"html_error_page.jpg", "truncated.jpg", "zero_bytes.jpg"}
UNDO = {  # EXIF orientation -> how to store an upright picture so that the tag turns it back
    2: [Image.Transpose.FLIP_LEFT_RIGHT],
    3: [Image.Transpose.ROTATE_180],
    4: [Image.Transpose.FLIP_TOP_BOTTOM],
    5: [Image.Transpose.TRANSPOSE],
    6: [Image.Transpose.ROTATE_90],
    7: [Image.Transpose.TRANSVERSE],
    8: [Image.Transpose.ROTATE_270],
}


def picture(height: int = 9, width: int = 13) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied_once(tmp_path, orientation):
    upright = stored = picture()
    for step in UNDO.get(orientation, []):
        stored = stored.transpose(step)
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored.save(tmp_path / "photo.png", exif=exif)

    loaded = load_image(tmp_path / "photo.png")
    assert loaded.size == upright.size
    assert np.array_equal(loaded, upright)
    assert ImageOps.exif_transpose(loaded).size == upright.size  # a second turn finds nothing to do


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "PA", "CMYK", "YCbCr", "HSV"])
def test_colour_modes_equal_pillow_on_opaque_pictures(mode):
    image = picture().convert("RGB").convert({"PA": "P"}.get(mode, mode)).convert(mode)
    assert to_rgb(image).mode == "RGB"
    assert np.array_equal(to_rgb(image), image.convert("RGB"))


def test_transparency_shows_white_and_never_the_hidden_colour():
    hidden_red = Image.new("RGBA", (2, 1), (255, 0, 0, 0))
    assert np.asarray(to_rgb(hidden_red)).min() == 255
    half_black = Image.new("LA", (1, 1), (0, 128))
    assert np.asarray(to_rgb(half_black)).ravel().tolist() == [127] * 3
    palette = Image.new("P", (2, 1))
    palette.putpalette([255, 0, 0, 0, 0, 255])
    palette.putpixel((1, 0), 1)
    palette.info["transparency"] = 0
    assert np.asarray(to_rgb(palette)).tolist() == [[[255, 255, 255], [0, 0, 255]]]


def test_sixteen_bit_grey_is_rescaled_not_clipped(tmp_path):
    ramp = np.array([[0, 257, 32896, 65535]], np.uint16)
    Image.fromarray(ramp).save(tmp_path / "ramp.png")
    loaded = np.asarray(load_image(tmp_path / "ramp.png"))
    assert loaded[0, :, 0].tolist() == [0, 1, 128, 255]  # clipping would give 0, 255, 255, 255


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([[0, 200]], np.int32), [0, 200]),
        (np.array([[0, 65535]], np.int32), [0, 255]),
        (np.array([[0.0, 0.5, 1.0]], np.float32), [0, 128, 255]),
        (np.array([[0.0, 200.0]], np.float32), [0, 200]),
    ],
)
def test_wide_greys(values, expected):
    assert np.asarray(to_rgb(Image.fromarray(values)))[0, :, 0].tolist() == expected


@pytest.mark.parametrize("value", [-1.0, 256.0, np.nan, np.inf])
def test_grey_outside_every_usual_range_is_refused(tmp_path, value):
    Image.fromarray(np.array([[0.0, value]], np.float32)).save(tmp_path / "odd.tiff")
    with pytest.raises(UserError, match=r"odd\.tiff: grey values"):
        load_image(tmp_path / "odd.tiff")


def test_animation_gives_its_first_frame(tmp_path):
    red, blue = (Image.new("RGB", (4, 4), color) for color in ("red", "blue"))
    red.save(tmp_path / "two.gif", save_all=True, append_images=[blue])
    assert np.asarray(load_image(tmp_path / "two.gif"))[0, 0].tolist() == [255, 0, 0]


def test_broken_files_name_themselves(tmp_path):
    whole = tmp_path / "whole.png"
    picture(64, 64).save(whole)
    cases = {
        "cut.png": (whole.read_bytes()[:2000], "damaged image"),
        "empty.jpg": (b"", "an empty file"),
        "page.jpg": (b"<!DOCTYPE html><html>404</html>", "starts with b'<!DOCTYPE html>"),
    }
    for name, (content, reason) in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError) as caught:
            load_image(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)
        assert reason in str(caught.value)
        assert "\n" not in str(caught.value)


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(UserError, match="nothing there"):
        load_image(tmp_path / "none.png")
    with pytest.raises(UserError, match="a folder"):
        load_image(tmp_path)


@pytest.mark.parametrize("limit", [1000, 3000])  # over twice, and over once, Pillow's limit
def test_huge_picture_is_refused_before_it_is_decoded(tmp_path, monkeypatch, limit):
    picture(64, 64).save(tmp_path / "huge.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    with pytest.raises(UserError, match=r"huge\.png"):
        load_image(tmp_path / "huge.png")


@pytest.mark.skipif(not EDGE_CASES.is_dir(), reason="shared/data is not beside the repository")
def test_shared_edge_cases():
    convert = pytest.importorskip("transformers.image_transforms").convert_to_rgb
    for path in sorted(EDGE_CASES.iterdir()):
        if path.name in BROKEN:
            with pytest.raises(UserError, match=path.name):
                load_image(path)
            continue
        loaded = load_image(path)
        assert loaded.mode == "RGB"
        if "I16" in path.name:
            continue
        with Image.open(path) as image:
            expected = convert(ImageOps.exif_transpose(image))
        assert np.array_equal(loaded, expected), path.name


@pytest.mark.skipif(not EDGE_CASES.is_dir(), reason="shared/data is not beside the repository")
def test_shared_photo_looks_the_same_in_every_orientation():
    paths = sorted(EDGE_CASES.glob("exif_orientation_*.jpg"))
    photos = [np.asarray(load_image(path), np.float32) for path in paths]
    assert len(photos) == 4
    for photo in photos[1:]:
        assert photo.shape == photos[0].shape
        assert np.abs(photo - photos[0]).mean() < 8  # JPEG noise; a wrong turn gives over 40
