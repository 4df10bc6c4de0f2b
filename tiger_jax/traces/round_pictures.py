"""Traces as PNG files, one a round, drawn with Pillow's own font: the same bytes on every machine
with the same Pillow.

    title                                    A = 3 of 5 drafted, 4.1 ms
    the pictures that were routed from,  |   committed so far
    with the patches outlined            |   the draft, token by token
                                         |   scores
    settings

A token's fate is told by its box and by a sign, as on the page: a solid box and a tick, a dashed
box and a struck text, a thick left side and an arrow, a double box and a plus, a dotted box.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from tiger_jax.models.patch_boxes import Box
from tiger_jax.traces.page import (
    FAINT,
    branches_of,
    draft_label,
    drawing_order,
    is_coarse,
    label_corner,
    route_label,
    score_text,
    time_of,
    visible,
)
from tiger_jax.traces.story import RoundStory, Story
from tiger_jax.traces.token_boxes import INK, SOFT, draw_tokens
from tiger_jax.traces.views import View

WIDTH, MARGIN, LEFT = 1000, 24, 400
"""Of a picture; around it; of the column of pictures."""
TALLEST = 360
"""Of one drawn view."""
ROUTE, COARSE, HALO = (255, 140, 26), (56, 182, 255), (0, 0, 0)
SIZE, SMALL = 17, 14
"""Of text."""


def write_pictures(folder: Path, stories: Sequence[Story], settings: Mapping[str, Any]) -> None:
    """`round-001.png`, ... of one request; `ID-round-001.png`, ... of several, numbered where ids
    are equal as file names. Raises OSError."""
    names = _file_names(stories)
    row = "   ".join(f"{name} {value}" for name, value in settings.items())
    for story, name in zip(stories, names, strict=True):
        for round_ in story.rounds:
            picture = draw_round(story, round_, row)
            picture.save(folder / f"{name}round-{round_.number:03}.png", optimize=True)


def write_sheet(path: Path, story: Story) -> None:
    """All rounds of a request below each other, as one PNG. Raises OSError."""
    pictures = [draw_round(story, round_) for round_ in story.rounds]
    sheet = Image.new("RGB", (WIDTH, max(sum(p.height for p in pictures), 1)), "white")
    top = 0
    for picture in pictures:
        sheet.paste(picture, (0, top))
        top += picture.height
    sheet.save(path, "PNG", optimize=True)


def draw_round(story: Story, round_: RoundStory, settings: str = "") -> Image.Image:
    """One round of a request as a picture of WIDTH pixels, as high as it needs."""
    high = 1000
    while True:  # how high it is follows from wrapping: drawn again if the canvas was too low
        canvas = Image.new("RGB", (WIDTH, high), "white")
        bottom = _draw(canvas, story, round_, settings) + MARGIN
        if bottom <= high:
            return canvas.crop((0, 0, WIDTH, bottom))
        high = bottom


def _draw(canvas: Image.Image, story: Story, round_: RoundStory, settings: str) -> int:
    """Everything; the height below it."""
    draw = ImageDraw.Draw(canvas)
    top = _head(draw, story, round_)
    bottom = top
    for view in round_.views:
        bottom = _draw_view(canvas, story.views[view], view, round_, bottom) + 10
    left = MARGIN + LEFT + MARGIN if round_.views else MARGIN
    bottom = max(bottom, _words(draw, story, round_, left, top))
    return wrap(draw, settings, MARGIN, bottom + 6, WIDTH - 2 * MARGIN, SMALL, SOFT)


def wrap(
    draw: ImageDraw.ImageDraw, text: str, left: int, top: int, width: int, size: int = SIZE,
    colour: tuple[int, int, int] = INK,
) -> int:  # fmt: skip
    """Write text in lines of at most `width` pixels; the height at which the next thing fits."""
    face = font(size)
    for paragraph in text.splitlines() or [""]:
        line = ""
        for word in re.findall(r"\s*\S+", paragraph):
            for piece in _fitting(word, width, face):
                if line and face.getlength(line + piece) > width:
                    draw.text((left, top), line.strip(), fill=colour, font=face)
                    top, line = top + round(1.4 * size), ""
                line += piece
        draw.text((left, top), line.strip(), fill=colour, font=face)
        top += round(1.4 * size)
    return top


def font(size: int) -> ImageFont.FreeTypeFont:
    """Pillow's own."""
    return ImageFont.load_default(size)


def _fitting(word: str, width: int, face: ImageFont.FreeTypeFont) -> list[str]:
    """A word in pieces that fit a line: one, unless it is longer than that."""
    pieces, here = [], ""
    for letter in word:
        if here and face.getlength(here + letter) > width:
            pieces.append(here)
            here = ""
        here += letter
    return [*pieces, here]


def _head(draw: ImageDraw.ImageDraw, story: Story, round_: RoundStory) -> int:
    facts = f"A = {round_.accepted} of {round_.drafted} drafted{branches_of(round_)}"
    facts += f"    {time_of(round_)}"
    top = wrap(draw, f"Round {round_.number}    {facts}", MARGIN, MARGIN, WIDTH - 2 * MARGIN, 20)
    return wrap(draw, story.prompt, MARGIN, top, WIDTH - 2 * MARGIN, SMALL, SOFT) + 10


def _words(draw: ImageDraw.ImageDraw, story: Story, round_: RoundStory, left: int, top: int) -> int:
    """The column of text."""
    width = WIDTH - MARGIN - left
    top = wrap(draw, "committed so far", left, top, width, SMALL, SOFT)
    top = wrap(draw, round_.committed or "nothing", left, top, width) + 8
    top = wrap(draw, draft_label(round_), left, top, width, SMALL, SOFT) + 2
    top = draw_tokens(draw, round_.tokens, left, top, width, font(SIZE)) + 8
    if round_.likeliest:
        label = "likeliest path of the tree, which was not the accepted one"
        top = wrap(draw, label, left, top, width, SMALL, SOFT)
        top = wrap(draw, " ".join(map(visible, round_.likeliest)), left, top, width) + 8
    top = wrap(draw, route_label(round_, story), left, top, width, SMALL, SOFT)
    several = len(story.views) > 1
    for mark in round_.marks or ():
        text = f"{mark.rank}   {score_text(mark, story.views[mark.view], several)}"
        top = wrap(draw, text, left, top, width, SMALL)
    return top


def _draw_view(canvas: Image.Image, view: View, number: int, round_: RoundStory, top: int) -> int:
    """A view's stills side by side with their outlines; the height below its name."""
    height, width = view.size
    count, gap = len(view.stills), 8
    scale = min((LEFT - gap * (count - 1)) / (count * width), TALLEST / height)
    size = max(round(width * scale), 1), max(round(height * scale), 1)
    draw = ImageDraw.Draw(canvas)
    for place, still in enumerate(view.stills):
        left = MARGIN + place * (size[0] + gap)
        picture = Image.fromarray(still).resize(size, Image.Resampling.BICUBIC)
        canvas.paste(picture, (left, top))
        draw.rectangle((left - 1, top - 1, left + size[0], top + size[1]), outline=(216, 222, 230))
        _draw_marks(canvas, round_, number, scale, (left, top))
    return wrap(draw, view.name, MARGIN, top + size[1] + 3, LEFT, SMALL, SOFT)


def _draw_marks(
    canvas: Image.Image, round_: RoundStory, view: int, scale: float, corner: tuple[int, int]
) -> None:
    """Outlines over what they cover: the best score last, thickest and fullest."""
    draw = ImageDraw.Draw(canvas, "RGBA")
    marks = drawing_order([mark for mark in round_.marks or () if mark.view == view])
    placed = [(mark, _edges(mark.box, scale, corner), 2 + round(2 * mark.strength))
              for mark in marks]  # fmt: skip
    for _, edges, thick in placed:
        draw.rectangle(edges, outline=(*HALO, 140), width=thick + 1)
    labels: dict[tuple[int, int], list[int]] = {}
    for mark, edges, thick in placed:
        alpha = round(255 * (FAINT + (1 - FAINT) * mark.strength))
        colour = COARSE if is_coarse(mark) else ROUTE
        _outline(draw, edges, (*colour, alpha), thick, dashed=is_coarse(mark))
        y, x = label_corner(mark)
        place = round(x * scale) + corner[0], round(y * scale) + corner[1]
        labels.setdefault(place, []).append(mark.rank)
    for place, ranks in labels.items():
        text = ",".join(map(str, sorted(ranks)))
        draw.text(place, text, fill="white", font=font(15), anchor="mm", stroke_width=2,
                  stroke_fill="black")  # fmt: skip


def _edges(box: Box, scale: float, corner: tuple[int, int]) -> tuple[int, int, int, int]:
    """A box on the canvas: the first and the last pixel on each axis."""
    left, right = (round(edge * scale) + corner[0] for edge in (box.left, box.right))
    top, bottom = (round(edge * scale) + corner[1] for edge in (box.top, box.bottom))
    return left, top, max(right - 1, left), max(bottom - 1, top)


def _outline(
    draw: ImageDraw.ImageDraw, edges: tuple[int, int, int, int], colour: tuple, thick: int,
    dashed: bool,
) -> None:  # fmt: skip
    if not dashed:
        draw.rectangle(edges, outline=colour, width=thick)
        return
    left, top, right, bottom = edges
    inside = thick - 1
    for first in range(left, right + 1, 10):
        last = min(first + 5, right)
        draw.rectangle((first, top, last, min(top + inside, bottom)), fill=colour)
        draw.rectangle((first, max(bottom - inside, top), last, bottom), fill=colour)
    for first in range(top, bottom + 1, 10):
        last = min(first + 5, bottom)
        draw.rectangle((left, first, min(left + inside, right), last), fill=colour)
        draw.rectangle((max(right - inside, left), first, right, last), fill=colour)


def _file_names(stories: Sequence[Story]) -> list[str]:
    """What the files of each request begin with; nothing where there is one request."""
    if len(stories) == 1:
        return [""]
    names, seen = [], set()
    for number, story in enumerate(stories, 1):
        name = re.sub(r"[^A-Za-z0-9._-]+", "_", story.id).strip("._")[:80] or "request"
        name = f"{name}-{number}" if name.lower() in seen else name
        seen.add(name.lower())
        names.append(f"{name}-")
    return names
