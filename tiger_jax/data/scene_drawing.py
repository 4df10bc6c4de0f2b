"""Draws the items of a scene: sprites rendered once, then blended into 28-pixel cells.

Letters: h, w sprite height, width; R, C rows, columns of cells. Pixels are uint8 RGB, row first.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw, ImageFont

from tiger_jax.data.scene_language import Item

CELL = 28
JITTER = 3
RGB = {
    "red": (215, 35, 35),
    "green": (30, 150, 60),
    "blue": (40, 80, 215),
    "gold": (225, 160, 0),
    "purple": (150, 40, 180),
    "black": (20, 20, 20),
}
_SHAPE_PIXELS = {"small": 14, "big": 24}
_OVERSAMPLE = 8


@cache
def sprite(kind: str, name: str, size: str) -> Float[np.ndarray, "h w"]:
    """Coverage in 0..1 of one item, at most 25 pixels a side so that jitter stays in the cell."""
    if kind == "shape":
        return _shape(name, _SHAPE_PIXELS[size])
    mask = _text(name)
    return mask.repeat(2, 0).repeat(2, 1) if kind == "digit" else mask


def draw(
    items: Sequence[Item],
    canvas: UInt8[np.ndarray, "H W 3"],
    rng: np.random.Generator,
) -> UInt8[np.ndarray, "H W 3"]:
    """Blend every item into its cell of `canvas`, in place, moved by up to JITTER pixels."""
    jitter = rng.integers(0, JITTER + 1, size=(len(items), 2))
    for item, (dy, dx) in zip(items, jitter.tolist(), strict=True):
        mask = sprite(item.kind, item.name, item.size)
        height, width = mask.shape
        top = item.row * CELL + (CELL - JITTER - height) // 2 + dy
        left = item.col * CELL + (CELL - JITTER - width) // 2 + dx
        cell = canvas[top : top + height, left : left + width]
        color = np.array(RGB[item.color], np.float32)
        cell[:] = cell + mask[:, :, None] * (color - cell) + 0.5
    return canvas


def clutter(rows: int, cols: int, rng: np.random.Generator) -> UInt8[np.ndarray, "H W 3"]:
    """A hard background: faint tint, boxes, lines and noise, light enough to read the items."""
    height, width = rows * CELL, cols * CELL
    page = Image.new("RGB", (width, height), tuple(rng.integers(225, 256, 3).tolist()))
    pen = ImageDraw.Draw(page)
    for _ in range(rng.integers(1, 5)):
        left, top = int(rng.integers(0, width - 16)), int(rng.integers(0, height - 16))
        right, bottom = left + int(rng.integers(8, 48)), top + int(rng.integers(8, 48))
        pen.rectangle((left, top, right, bottom), fill=tuple(rng.integers(200, 245, 3).tolist()))
    for _ in range(rng.integers(1, 5)):
        ends = rng.integers(0, [width, height, width, height]).tolist()
        pen.line(ends, fill=tuple(rng.integers(170, 225, 3).tolist()))
    noise = rng.normal(0, rng.uniform(2, 8), size=(height, width, 1))
    return np.clip(np.asarray(page) + noise, 0, 255).astype(np.uint8)


def _shape(name: str, pixels: int) -> Float[np.ndarray, "h w"]:
    side = pixels * _OVERSAMPLE
    page = Image.new("L", (side, side))
    pen, last = ImageDraw.Draw(page), side - 1
    if name == "circle":
        pen.ellipse((0, 0, last, last), fill=255)
    elif name == "square":
        inset = side // 12
        pen.rectangle((inset, inset, last - inset, last - inset), fill=255)
    elif name == "triangle":
        pen.polygon([(last / 2, 0), (last, last), (0, last)], fill=255)
    else:
        pen.polygon(_star(side), fill=255)
    page = page.resize((pixels, pixels), Image.Resampling.BOX)
    return np.asarray(page, np.float32) / 255


def _star(side: int) -> list[tuple[float, float]]:
    """Five points: corners alternate between the outer circle and one of 0.42 its radius."""
    angles = np.arange(10) * np.pi / 5 - np.pi / 2
    radii = np.where(np.arange(10) % 2 == 0, 0.5, 0.21) * side
    corners = np.stack([radii * np.cos(angles), radii * np.sin(angles)], 1) + side / 2
    return [(float(x), float(y)) for x, y in corners]


def _text(text: str) -> Float[np.ndarray, "h w"]:
    """Pillow's own 6x11 bitmap font: the same pixels in every version, no font file needed."""
    font = ImageFont.load_default_imagefont()
    left, top, right, bottom = font.getbbox(text)
    page = Image.new("1", (right - left, bottom - top))
    ImageDraw.Draw(page).text((-left, -top), text, fill=1, font=font)
    return np.asarray(page, np.float32)
