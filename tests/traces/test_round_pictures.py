"""Rounds as PNG files: the same bytes again, each fate its own form, every text inside."""

import numpy as np
import pytest
from PIL import Image, ImageDraw

from tests.traces.stories import BEST, LAST, ROUNDS, made_round, made_story
from tiger_jax.traces import round_pictures, token_boxes
from tiger_jax.traces.round_pictures import (
    COARSE,
    LEFT,
    MARGIN,
    ROUTE,
    WIDTH,
    draw_round,
    wrap,
    write_pictures,
    write_sheet,
)
from tiger_jax.traces.story import ACCEPTED, Token
from tiger_jax.traces.views import View


def pixels_of(picture):
    return np.asarray(picture.convert("RGB")).astype(int)


def places_of(picture, colour, tolerance=0):
    """(top, left, bottom, right) of all pixels of a colour; None without any."""
    rows, columns = np.nonzero(np.abs(pixels_of(picture) - colour).max(axis=2) <= tolerance)
    if not len(rows):
        return None
    return rows.min(), columns.min(), rows.max() + 1, columns.max() + 1


def test_files_of_one_request_and_of_several(tmp_path):
    write_pictures(tmp_path, [made_story()], {"k": 8})
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "round-001.png", "round-002.png", "round-003.png"
    ]  # fmt: skip
    several = tmp_path / "several"
    several.mkdir()
    stories = [made_story(id=name, rounds=ROUNDS[:1]) for name in ("a/b", "a_b", "..", "B", "b")]
    write_pictures(several, stories, {})
    assert sorted(path.name for path in several.iterdir()) == [
        "B-round-001.png", "a_b-2-round-001.png", "a_b-round-001.png", "b-5-round-001.png",
        "request-round-001.png",
    ]  # fmt: skip


def test_the_same_bytes_again(tmp_path):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        write_pictures(tmp_path / name, [made_story(pooled=4)], {"k": 8})
    for number in (1, 2, 3):
        name = f"round-{number:03}.png"
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()


def test_outlines_lie_where_the_boxes_are():
    """A black picture of 90 x 60 is drawn 4.44 times as large: the boxes' edges in its pixels."""
    black = np.zeros((60, 90, 3), np.uint8)
    story = made_story(views=(View("picture 1", (60, 90), (black,)),))
    for mark, colour in ((BEST, ROUTE), (LAST, COARSE)):
        best = mark.__class__(1, 1.0, 1.0, 0, mark.place, mark.box)
        picture = draw_round(story, made_round(1, [(" a", ACCEPTED)], (best,)))
        frame = places_of(picture.crop((0, 80, MARGIN + LEFT, picture.height)), (216, 222, 230))
        top, left = frame[0] + 81, frame[1] + 1
        found = np.array(places_of(picture, colour)) - (top, left, top, left)
        scale = LEFT / 90
        box = np.array(mark.box) * scale
        assert np.abs(found - box).max() <= 6, (found, box)  # a dash may end before the corner
        if colour == ROUTE:
            assert np.abs(found - box).max() <= 1


def test_a_fate_is_told_without_its_colour():
    """In grey the five boxes of one word differ, and all of them from the word's own look."""
    looks = []
    for fate in token_boxes.LINES:
        canvas = Image.new("RGB", (200, 60), "white")
        grey = dict.fromkeys(token_boxes.LINES, (90, 90, 90))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(token_boxes, "LINES", grey)
            patch.setattr(token_boxes, "FILLS", dict.fromkeys(grey, (255, 255, 255)))
            token_boxes.draw_tokens(
                ImageDraw.Draw(canvas), [Token("word", fate)], 10, 10, 180,
                round_pictures.font(17),
            )  # fmt: skip
        looks.append(pixels_of(canvas))
    for i, one in enumerate(looks):
        for other in looks[:i]:
            assert (one != other).any(axis=2).sum() > 40


def test_long_words_stay_inside():
    long = "Donaudampfschifffahrtsgesellschaft" * 6
    made = made_round(1, [(long, ACCEPTED), ("\n", ACCEPTED)], (BEST,), committed=long,
                      likeliest=(long,), nodes=70)  # fmt: skip
    picture = draw_round(made_story(prompt=long, rounds=(made,)), made, long)
    assert picture.width == WIDTH
    margin = pixels_of(picture)[:, WIDTH - MARGIN + 3 :]
    assert (margin == 255).all()
    assert (pixels_of(picture)[-MARGIN + 6 :] == 255).all(), "nothing is cut off at the bottom"


def test_wrapped_text_stays_in_its_column():
    canvas = Image.new("RGB", (300, 400), "white")
    bottom = wrap(ImageDraw.Draw(canvas), "one two  three\nfour " + "x" * 90, 0, 0, 100)
    ink = places_of(canvas, (28, 36, 48), 60)
    assert ink[2] <= bottom
    assert ink[3] <= 101
    assert bottom > 8 * 17, "ninety letters of nine pixels are eight lines and more"


def test_a_sheet_holds_all_rounds(tmp_path):
    story = made_story()
    write_sheet(tmp_path / "sheet.png", story)
    with Image.open(tmp_path / "sheet.png") as sheet:
        heights = [draw_round(story, made).height for made in story.rounds]
        assert sheet.size == (WIDTH, sum(heights))


def test_rounds_without_pictures_use_the_whole_width():
    made = made_round(1, [(" a", ACCEPTED)], None)
    picture = draw_round(made_story(views=(), rounds=(made,)), made)
    box = places_of(picture, token_boxes.LINES[ACCEPTED])
    assert box[1] == MARGIN
