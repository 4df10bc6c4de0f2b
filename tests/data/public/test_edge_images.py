"""Pictures as public data sets have them: wrong names, EXIF, alpha, CMYK, broken files."""

import io

import numpy as np
import pytest
from PIL import Image

from tests.samples import SAMPLES, needs_samples
from tiger_jax.data.images import decode_image, load_image
from tiger_jax.data.public.dataset import decode_picture, picture_fault
from tiger_jax.data.public.record import Picture, PublicRecord
from tiger_jax.errors import UserError

EDGE_CASES = SAMPLES / "images/edge_cases"
BROKEN = {
    "zero_bytes.jpg": "an empty file",
    "html_error_page.jpg": "expected an image, got a file that starts with b'<!DOCTYPE html>",
    "truncated.jpg": "image file is truncated (13 bytes not processed)",
}
SIZES = {"thin_300x1.png": (300, 1), "tiny_1x1.png": (1, 1), "wide_2000x9.png": (2000, 9)}
SIZE = (160, 107)
TOLERANCE = 8
"""Mean levels a channel; data.md section 2."""
ORIENTATION = 0x0112


def edge_cases() -> list:
    return sorted(EDGE_CASES.iterdir()) if EDGE_CASES.is_dir() else []


def encoded(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def distance(image: Image.Image, other: Image.Image) -> float:
    return float(np.abs(np.asarray(image, float) - np.asarray(other, float)).mean())


def photo(width: int = 16, height: int = 8) -> Image.Image:
    """Smooth, so that JPEG changes it little; each corner is another."""
    x, y = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    return Image.fromarray(np.stack([x, y, 255 - x], -1).astype(np.uint8))


@needs_samples
def test_there_are_22_and_three_of_them_fail():
    assert len(edge_cases()) == 22
    failed = {}
    for path in edge_cases():
        record = PublicRecord("made", "val", path.name, "?", (Picture(str(path)),))
        if fault := picture_fault(record):
            assert fault.kind == "damaged image"
            failed[path.name] = fault.message
    assert set(failed) == set(BROKEN)
    for name, reason in BROKEN.items():
        assert reason in failed[name]


@needs_samples
@pytest.mark.parametrize("path", edge_cases(), ids=lambda path: path.name)
def test_bytes_and_file_give_the_same(path):
    if path.name in BROKEN:
        with pytest.raises(UserError, match=path.name):
            decode_image(path.read_bytes(), path.name)
        return
    image = decode_picture(Picture(None, path.read_bytes()))
    assert (image.mode, image.size) == ("RGB", SIZES.get(path.name, SIZE))
    assert np.array_equal(image, load_image(path))


@needs_samples
@pytest.mark.parametrize(
    "name",
    ["exif_orientation_3.jpg", "exif_orientation_6.jpg", "exif_orientation_8.jpg", "cmyk.jpg",
     "progressive.jpg", "jpeg_named.png", "webp_named.jpg"],
)  # fmt: skip
def test_the_same_photo_looks_the_same(name):
    upright = load_image(EDGE_CASES / "exif_orientation_1.jpg")
    assert distance(load_image(EDGE_CASES / name), upright) < TOLERANCE


@needs_samples
def test_lmms_leaves_exif_and_alpha_alone():
    for path in edge_cases():
        if path.name not in BROKEN:
            with Image.open(path) as image:
                expected = image.convert("RGB")
            assert np.array_equal(decode_image(path.read_bytes(), "x", "lmms"), expected)
    turned = load_image(EDGE_CASES / "exif_orientation_6.jpg", "lmms")
    assert turned.size == SIZE[::-1]
    rgba = EDGE_CASES / "rgba.png"
    assert distance(load_image(rgba, "lmms"), load_image(rgba)) > TOLERANCE


def test_lmms_on_made_up_pictures():
    hidden_red = encoded(Image.new("RGBA", (2, 1), (255, 0, 0, 0)))
    assert np.asarray(decode_image(hidden_red, "x"))[0, 0].tolist() == [255, 255, 255]
    assert np.asarray(decode_image(hidden_red, "x", "lmms"))[0, 0].tolist() == [255, 0, 0]
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    turned = encoded(photo(), exif=exif)
    assert decode_image(turned, "x").size == (8, 16)
    assert decode_image(turned, "x", "lmms").size == (16, 8)
    record = PublicRecord("made", "val", "a", "?", (Picture(data=turned),))
    with pytest.raises(UserError, match="compat: expected None or 'lmms', got 'vlmevalkit'"):
        decode_picture(record.images[0], "vlmevalkit")
    with pytest.raises(UserError, match="compat: expected"):  # the run's fault, not the record's
        picture_fault(record, "vlmevalkit")


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow says that the EXIF is corrupt
@pytest.mark.parametrize(
    "exif",
    [
        b"", b"II", b"XX*\0\x08\0\0\0", b"II*\0\xff\xff\xff\xff", b"II*\0\x08\0\0\0\xff\xff",
        b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\xff\xff\xff\xff\x06\0\0\0",
        b"II*\0\x08\0\0\0\x01\0\x12\x01\x02\0\x04\0\0\0abc\0",
        b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x0c\0\0\0\x01",
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_corrupt_exif_costs_no_picture(exif, kind):
    """huggingface/datasets 8656: the pixels are used as they are."""
    options = {"quality": 95} if kind != "PNG" else {}
    data = encoded(photo(), kind, exif=b"Exif\0\0" + exif, **options)
    image = decode_image(data, "x")
    assert image.size == (16, 8)
    assert distance(image, photo()) < TOLERANCE


def test_exif_that_cannot_be_turned_leaves_the_pixels(monkeypatch):
    """Whatever a parser of tags raises."""
    from PIL import ImageOps

    def broken(image):
        raise KeyError(274)

    monkeypatch.setattr(ImageOps, "exif_transpose", broken)
    assert np.array_equal(decode_image(encoded(photo()), "x"), photo())


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP", "DDS", "AVIF"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_damage_of_any_kind_is_one_line(kind):
    """Pillow's decoders raise RuntimeError, NotImplementedError, TypeError, OverflowError, ..."""
    try:
        whole = encoded(photo(), kind)
    except (KeyError, OSError):
        pytest.skip(f"Pillow was built without {kind}")
    draw = np.random.default_rng(0)
    messages = []
    for _ in range(60):
        data = bytearray(whole)
        for place in draw.integers(0, min(len(data), 200), 8):
            data[place] = draw.integers(256)
        try:
            assert decode_image(bytes(data), "x").mode == "RGB"
        except UserError as error:
            messages.append(str(error))
    assert messages
    assert all(text.startswith("x: ") and "\n" not in text for text in messages)


def test_a_cut_picture_does_not_pass_for_corrupt_exif():
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    data = encoded(Image.fromarray(noise), "JPEG", exif=exif)
    with pytest.raises(UserError, match=r"a\.jpg: damaged image \(image file is truncated"):
        decode_image(data[:-300], "a.jpg")


def test_big_jpeg_keeps_its_size():
    """No draft(): it would halve the picture before anybody asked."""
    big = Image.new("RGB", (5000, 2000), (10, 200, 30))
    image = decode_image(encoded(big, "JPEG"), "x")
    assert image.size == (5000, 2000)
    assert np.abs(np.asarray(image)[::500, ::500].astype(int) - (10, 200, 30)).max() < 4


@pytest.mark.parametrize("limit", [100, 50])  # over once, and over twice, Pillow's limit
def test_a_huge_picture_is_a_fault_of_its_record_alone(monkeypatch, limit):
    """HF dataset-viewer 1192: one picture of 806 megapixels stopped everything."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    huge = PublicRecord("made", "val", "a", "?", (Picture(data=encoded(photo())),))
    small = PublicRecord("made", "val", "b", "?", (Picture(data=encoded(photo(5, 5))),))
    assert picture_fault(huge).kind == "damaged image"
    assert picture_fault(small) is None


@pytest.mark.parametrize("size", [(1, 1), (2, 300), (300, 1)])
def test_small_and_thin_pictures_are_left_to_the_processors(size):
    assert decode_image(encoded(Image.new("RGB", size)), "x").size == size


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "BMP", "PNG", "TIFF"])
def test_the_first_bytes_say_what_it_is(tmp_path, kind):
    """LLaVA 601: over 900 GIFs are called .jpg."""
    path = tmp_path / "photo.jpg"
    path.write_bytes(encoded(photo().convert("L").convert("RGB"), kind))
    assert distance(decode_picture(Picture(str(path))), photo().convert("L").convert("RGB")) < 16
