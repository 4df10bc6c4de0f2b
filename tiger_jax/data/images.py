"""Opens a picture file as upright 8-bit RGB, or says in one line why that file cannot be used."""

import os
import struct
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from tiger_jax.errors import UserError


def load_image(path: str | os.PathLike) -> Image.Image:
    """The picture at `path` as upright RGB: first frame, EXIF turned, alpha laid over white.

    Rotation happens here and only here, so `.size` of the result is the size that geometry may use.

    Raises:
        UserError: nothing there, a folder, not a picture, damaged, or over Pillow's pixel limit.
    """
    path = Path(path)
    check_file(path, "an image file")
    try:
        with Image.open(path) as image:
            _check_pixels(image)
            return to_rgb(ImageOps.exif_transpose(image))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except UnidentifiedImageError:
        raise UserError(f"{path}: expected an image, got {first_bytes(path)}") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise UserError(f"{path}: image too large ({error})") from None
    except (OSError, SyntaxError, ValueError, EOFError, struct.error) as error:
        raise UserError(f"{path}: damaged image ({error})") from None


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
        start = file.read(16)
    return f"a file that starts with {start!r}" if start else "an empty file"


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
