"""Tokens of a round drawn with Pillow: each fate has its own box, its own sign and its own colour,
so that any one of the three is enough."""

from collections.abc import Sequence

from PIL import ImageDraw, ImageFont

from tiger_jax.traces.page import visible
from tiger_jax.traces.story import ACCEPTED, BONUS, REJECTED, REPLACEMENT, UNJUDGED, Token

Colour = tuple[int, int, int]
INK, SOFT = (28, 36, 48), (91, 102, 117)
LINES: dict[str, Colour] = {
    ACCEPTED: (11, 110, 79), REJECTED: (163, 38, 42), REPLACEMENT: (29, 79, 156),
    BONUS: (107, 45, 144), UNJUDGED: SOFT,
}  # fmt: skip
FILLS: dict[str, Colour] = {
    ACCEPTED: (231, 245, 239), REJECTED: (253, 239, 238), REPLACEMENT: (233, 240, 251),
    BONUS: (245, 236, 250), UNJUDGED: (255, 255, 255),
}  # fmt: skip
_PAD, _SIGN, _GAP = 7, 16, 7
_DASHES = {REJECTED: (7, 4), UNJUDGED: (2, 4)}
"""(drawn, left out) pixels of a box's line."""


def draw_tokens(
    draw: ImageDraw.ImageDraw, tokens: Sequence[Token], left: int, top: int, width: int,
    face: ImageFont.FreeTypeFont,
) -> int:  # fmt: skip
    """Tokens in lines of at most `width` pixels; the height below them."""
    high = round(face.size * 1.7)
    x = left
    for token in tokens:
        text = _cut(visible(token.text).strip() or visible(token.text), width, face)
        wide = min(round(face.getlength(text)) + _SIGN + 2 * _PAD, width)
        if x > left and x + wide > left + width:
            x, top = left, top + high + _GAP
        _draw_token(draw, text, token.fate, (x, top, x + wide, top + high), face)
        x += wide + _GAP
    return top + high if tokens else top


def _cut(text: str, width: int, face: ImageFont.FreeTypeFont) -> str:
    """A text that fits one line."""
    room = width - _SIGN - 2 * _PAD
    if face.getlength(text) <= room:
        return text
    text = text[:room]  # no letter is narrower than a pixel
    while text and face.getlength(f"{text}...") > room:
        text = text[:-1]
    return f"{text}..."


def _draw_token(
    draw: ImageDraw.ImageDraw, text: str, fate: str, box: tuple[int, int, int, int],
    face: ImageFont.FreeTypeFont,
) -> None:  # fmt: skip
    left, top, right, bottom = box
    colour, middle = LINES[fate], (top + bottom) // 2
    draw.rectangle(box, fill=FILLS[fate])
    if fate in _DASHES:
        _dash(draw, box, colour, *_DASHES[fate])
    else:
        draw.rectangle(box, outline=colour, width=2)
    if fate == REPLACEMENT:
        draw.rectangle((left, top, left + 4, bottom), fill=colour)
    if fate == BONUS:
        draw.rectangle((left + 3, top + 3, right - 3, bottom - 3), outline=colour, width=1)
    _sign(draw, fate, left + _PAD, middle, colour)
    start = left + _PAD + _SIGN
    draw.text((start, middle), text, fill=colour, font=face, anchor="lm")
    if fate in _DASHES:
        draw.line((start, middle, right - _PAD, middle), fill=colour, width=2)


def _sign(draw: ImageDraw.ImageDraw, fate: str, x: int, y: int, colour: Colour) -> None:
    """A tick, a cross, an arrow, a plus or a point: the font has not all of them."""
    strokes = {
        ACCEPTED: [(x, y, x + 3, y + 4), (x + 3, y + 4, x + 10, y - 5)],
        REJECTED: [(x, y - 5, x + 9, y + 4), (x, y + 4, x + 9, y - 5)],
        REPLACEMENT: [(x + 1, y, x + 11, y), (x + 7, y - 4, x + 11, y), (x + 7, y + 4, x + 11, y)],
        BONUS: [(x, y, x + 10, y), (x + 5, y - 5, x + 5, y + 5)],
        UNJUDGED: [(x + 4, y - 1, x + 4, y + 1)],
    }[fate]
    for stroke in strokes:
        draw.line(stroke, fill=colour, width=2)


def _dash(
    draw: ImageDraw.ImageDraw, box: tuple[int, int, int, int], colour: Colour, drawn: int, out: int
) -> None:
    left, top, right, bottom = box
    for x in range(left, right, drawn + out):
        for y in (top, bottom):
            draw.line((x, y, min(x + drawn, right), y), fill=colour, width=2)
    for y in range(top, bottom, drawn + out):
        for x in (left, right):
            draw.line((x, y, x, min(y + drawn, bottom)), fill=colour, width=2)
