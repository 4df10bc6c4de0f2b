"""Opens a picture file as upright 8-bit RGB, or says in one line why that file cannot be used."""

import io
import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from tiger_jax.errors import UserError

_DAMAGED = (OSError, SyntaxError, ValueError, EOFError, struct.error)
"""What Pillow raises for most damaged files, with texts that need no more words."""


def load_image(path: str | os.PathLike, compat: str | None = None) -> Image.Image:
    """The picture at `path` as upright RGB: first frame, EXIF turned, alpha laid over white.

    Rotation happens here and only here, so `.size` of the result is the size that geometry may use.

    Args:
        compat: as in `decode_image`.

    Raises:
        UserError: nothing there, a folder, not a picture, damaged, or over Pillow's pixel limit.
    """
    path = Path(path)
    check_file(path, "an image file")
    return _decode(path, str(path), compat, lambda: first_bytes(path))


def decode_image(data: bytes, name: str, compat: str | None = None) -> Image.Image:
    """An encoded picture as upright RGB, as `load_image` gives it.

    The format is found by the first bytes. No side is too short here: what a model cannot take, its
    processor refuses.

    Args:
        name: what error lines call it.
        compat: "lmms" for runs that must agree with others': only `.convert("RGB")`, which leaves
            EXIF alone and shows the colours that transparency hides.

    Raises:
        UserError: not a picture, damaged, over Pillow's pixel limit, or an unknown `compat`.
    """
    return _decode(io.BytesIO(data), name, compat, lambda: _start(data))


def _decode(
    source: Path | io.BytesIO, name: str, compat: str | None, start: Callable[[], str]
) -> Image.Image:
    check_compat(compat)
    try:
        with Image.open(source) as image:
            _check_pixels(image)
            return image.convert("RGB") if compat else to_rgb(_upright(image))
    except UserError as error:
        raise UserError(f"{name}: {error}") from None
    except UnidentifiedImageError:
        raise UserError(f"{name}: expected an image, got {start()}") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise UserError(f"{name}: image too large ({error})") from None
    except _DAMAGED as error:
        raise UserError(f"{name}: damaged image ({error})") from None
    except Exception as error:  # its decoders of AVIF, DDS and TIFF raise any kind
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"{name}: damaged image ({reason})") from None


def check_compat(compat: str | None) -> None:
    """UserError unless it is a way to decode pictures that `decode_image` has."""
    if compat not in (None, "lmms"):
        raise UserError(f"compat: expected None or 'lmms', got {compat!r}")


def _upright(image: Image.Image) -> Image.Image:
    """The picture as EXIF turns it; with EXIF that cannot be read, as it lies."""
    image.load()  # a damaged picture must not pass for damaged EXIF
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # parsers of tags raise many kinds, and no tag is worth a picture
        return image


def check_file(path: Path, expected: str) -> None:
    """UserError naming the path unless a file is there."""
    try:
        found = None if path.is_file() else "a folder" if path.is_dir() else "nothing there"
    except (OSError, ValueError) as error:  # a name too long or with a zero byte, a closed folder
        raise UserError(f"{str(path)[:80]}: not a readable path ({error})") from None
    if found:
        raise UserError(f"{path}: expected {expected}, found {found}")


def first_bytes(path: Path) -> str:
    """How a file that is not what it should be starts, for an error line."""
    with path.open("rb") as file:
        return _start(file.read(16))


def _start(data: bytes) -> str:
    return f"a file that starts with {data[:16]!r}" if data else "an empty file"


def to_rgb(image: Image.Image) -> Image.Image:
    """Any Pillow mode as RGB.

    Transparent pixels show white; 16-bit and float greys are rescaled, never clipped.
    """
    image.load()
    if image.mode.startswith("I") or image.mode == "F":
        image = _rescale_grey(image)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image.convert("RGB")


def _rescale_grey(image: Image.Image) -> Image.Image:
    """Wide greys to 8 bits.

    I;16 is 0..65535; I and F are taken at the smallest usual range that holds them.
    """
    values = np.asarray(image).astype(np.float64)
    low, high = values.min(), values.max()
    ranges = {"I": (255, 65535), "F": (1, 255)}.get(image.mode, (65535,))
    top = next((top for top in ranges if high <= top), None)
    if top is None or not low >= 0:  # `not >=` also refuses NaN
        raise UserError(
            f"grey values of mode {image.mode}: expected 0..{ranges[-1]}, got {low:g}..{high:g}"
        )
    return Image.fromarray(np.round(values * (255 / top)).astype(np.uint8))


def _check_pixels(image: Image.Image) -> None:
    limit = Image.MAX_IMAGE_PIXELS
    if limit and image.width * image.height > limit:
        raise UserError(f"expected at most {limit} pixels, got {image.width}x{image.height}")
