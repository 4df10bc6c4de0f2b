"""Clips are reproducible, show exactly the events they tell, and are judged by facts."""

import re
from itertools import pairwise

import numpy as np
import pytest

from tiger_jax.data import clip_language as language
from tiger_jax.data.clips import Clip, ask_more, facts, make_clip
from tiger_jax.data.scene_drawing import CELL
from tiger_jax.data.scene_language import (
    COLORS,
    NUMBERS,
    SHAPES,
    SIZES,
    WORDS,
    Item,
    parse_question,
)
from tiger_jax.data.videos import Video

FAMILIES = (COLORS, SIZES, SHAPES, WORDS, NUMBERS)


@pytest.fixture(scope="module")
def clips() -> list[Clip]:
    return [make_clip(seed=1, index=i, hard=i % 4 == 0) for i in range(200)]


@pytest.fixture(scope="module")
def by_hand() -> Clip:
    """The circle turns blue, then the word cat moves; a big star stays as it is."""
    circle, blue = (Item("shape", "circle", color, "small", 0, 0) for color in ("red", "blue"))
    cat, moved = (Item("word", "cat", "green", "", 2, col) for col in (0, 3))
    star = Item("shape", "star", "gold", "big", 1, 1)
    stills = np.zeros((3, 112, 112, 3), np.uint8)
    items = (circle, cat, star), (blue, cat, star), (blue, moved, star)
    events = language.Event("color", circle, blue), language.Event("move", cat, moved)
    return Clip(stills, items, events, ())


def test_same_seed_and_index_same_clip():
    first, again = make_clip(3, 17, hard=True), make_clip(3, 17, hard=True)
    assert np.array_equal(first.stills, again.stills)
    assert (first.items, first.events, first.qa) == (again.items, again.events, again.qa)
    for other in (make_clip(3, 18), make_clip(4, 17)):
        assert other.items != first.items


def test_each_still_is_two_sampled_pictures(clips):
    clip = clips[0]
    assert clip.stills.shape == (3, 112, 112, 3)
    assert clip.pictures.shape == (6, 112, 112, 3)
    assert clip.seconds == (0.0, 0.5, 1.0, 1.5, 2.0, 2.5)
    for i, frame in enumerate(clip.pictures):
        assert np.array_equal(frame, clip.stills[i // 2])


def test_the_picture_of_a_clip_is_its_video(clips):
    video = clips[0].shown
    assert isinstance(video, Video)
    assert np.array_equal(video.pictures, clips[0].pictures)
    assert video.seconds == clips[0].seconds


def test_contents(clips):
    for clip in clips:
        assert all(2 <= len(still) <= 4 for still in clip.items)
        for still in clip.items:
            assert len({(item.row, item.col) for item in still}) == len(still)
            assert len({language.reference(item) for item in still}) == len(still)
        kinds = [event.kind for event in clip.events]
        assert len(set(kinds)) == 2
        assert len({language.reference(event.after) for event in clip.events}) == 2


def test_only_the_event_changes_pixels(clips):
    """Also the place of a drawing inside its cell stays the same, and so does the clutter."""
    for clip in clips:
        for (before, after), event in zip(pairwise(clip.stills), clip.events, strict=True):
            changed = (before != after).any(-1).reshape(4, CELL, 4, CELL).any((1, 3))
            touched = {(item.row, item.col) for item in (event.before, event.after) if item}
            assert set(zip(*np.nonzero(changed), strict=True)) == touched


def test_items_follow_the_events(clips):
    for clip in clips:
        for (before, after), event in zip(pairwise(clip.items), clip.events, strict=True):
            assert set(after) - set(before) == {event.after}
            assert set(before) - set(after) == ({event.before} if event.before else set())
            if event.kind == "color":
                assert event.before.kind == "shape"
                assert event.before.color != event.after.color
                assert (event.before.row, event.before.col) == (event.after.row, event.after.col)
            elif event.kind == "move":
                assert event.before.color == event.after.color
            else:
                assert event.before is None


def test_every_pair_of_kinds_and_every_question_occurs(clips):
    orders = {tuple(event.kind for event in clip.events) for clip in clips}
    assert len(orders) == 6
    asked = [qa for i, clip in enumerate(clips) for qa in _questions(clip, i)]
    forms = {parse_question(qa.question, language.CLIP_QUESTIONS)[0] for qa in asked}
    assert forms == set(language.CLIP_QUESTIONS)
    assert {qa.kind for qa in asked} == set(language.ASKED_CLIP)
    assert all([qa.kind for qa in clip.qa] == list(language.ASKED_CLIP) for clip in clips)
    assert all(3 <= len(qa.answer.split()) <= 20 for qa in asked)
    assert ask_more(clips[0], ["story"], [1]) == ask_more(clips[0], ["story"], [1])


def test_own_answers_are_correct(clips):
    for i, clip in enumerate(clips):
        for qa in _questions(clip, i):
            assert clip.is_correct(qa.kind, qa.question, qa.answer), qa
            assert clip.is_correct(qa.kind, qa.question, f" {qa.answer.upper().rstrip('.')} ")
            assert qa.answer[0].isupper()


def test_every_changed_fact_is_rejected(clips):
    """Each colour, size, shape, word and number of an answer, replaced by another of its family."""
    changed = 0
    for i, clip in enumerate(clips):
        for qa in _questions(clip, i):
            for match in re.finditer(r"\w+", qa.answer):
                for family in FAMILIES:
                    if match[0] not in family:
                        continue
                    other = family[(family.index(match[0]) + 1) % len(family)]
                    wrong = qa.answer[: match.start()] + other + qa.answer[match.end() :]
                    assert not clip.is_correct(qa.kind, qa.question, wrong), (qa, wrong)
                    changed += 1
    assert changed > 2000


def test_the_wrong_event_and_the_wrong_order_are_rejected(clips):
    rng = np.random.default_rng(0)
    for clip in clips:
        first, last = (language.say_event(event, rng) for event in clip.events)
        ask = "What happens {}?".format
        assert clip.is_correct("order", ask("first"), f"{first}.")
        assert clip.is_correct("order", ask("last"), f"{last}.")
        assert not clip.is_correct("order", ask("first"), f"{last}.")
        assert not clip.is_correct("order", ask("last"), f"{first}.")
        assert clip.is_correct("story", "Describe the video.", f"{first}, then {last}.")
        for wrong in (
            f"{last}, then {first}",
            first,
            f"{first}, then {first}",
            f"{first}, then {last}, then {first}",
            f"{first}, then",
            f"{first}, {last}",
            "",
        ):
            assert not clip.is_correct("story", "Describe the video.", wrong), wrong


@pytest.mark.parametrize(
    ("kind", "question", "answers"),
    [
        (
            "event",
            "What changes color?",
            ["The circle changes from red to blue.", "the circle turns from red to blue"],
        ),
        ("event", "What moves?", ["The word cat moves.", "The word cat changes place."]),
        (
            "order",
            "Which comes first, the word cat or the circle?",
            ["The circle turns from red to blue."],
        ),
        ("state", "What color is the circle at the start?", ["It is red.", "The circle is red."]),
        ("state", "What color is the circle at the end?", ["It is blue.", "The circle is blue."]),
        ("state", "What color is the star at the end?", ["It is gold."]),
        ("state", "How many things are there at the end?", ["There are 3.", "I count 3."]),
        (
            "story",
            "What happens in the video?",
            [
                "The circle changes from red to blue, then the word cat moves.",
                "First the circle turns from red to blue and then the word cat changes place.",
            ],
        ),
    ],
)
def test_a_clip_made_by_hand(by_hand, kind, question, answers):
    for answer in answers:
        assert by_hand.is_correct(kind, question, answer), answer
    for wrong in (
        "The circle changes from blue to red.",
        "The circle moves.",
        "The word star moves.",
        "It is green.",
        "There are 4.",
        "The word cat moves, then the circle changes from red to blue.",
        "The circle changes from red to blue, then the word cat appears.",
    ):
        assert not by_hand.is_correct(kind, question, wrong), wrong


def test_what_appears_is_told_with_all_it_is():
    star = Item("shape", "star", "red", "small", 0, 0)
    event = language.Event("appear", None, star)
    for answer in ("A small red star appears.", "a small red star comes in"):
        assert language.answer_is_correct("what_appear", {"event": event}, answer)
    for wrong in ("A red star appears.", "A big red star appears.", "The star appears.", "a star"):
        assert not language.answer_is_correct("what_appear", {"event": event}, wrong)
    word = language.Event("appear", None, Item("word", "cat", "gold", "", 0, 0))
    for answer in ("The word cat in gold appears.", "A gold word cat comes in."):
        assert language.answer_is_correct("what_appear", {"event": word}, answer)


def test_questions_without_one_answer_are_refused(by_hand):
    with pytest.raises(ValueError, match="what_appear: expected one in the clip, found 0"):
        by_hand.is_correct("event", "What appears?", "me")
    with pytest.raises(ValueError, match="expected both, found 1"):
        by_hand.is_correct("order", "Which comes first, the circle or the star?", "me")
    with pytest.raises(ValueError, match="square: expected one in the clip, found 0"):
        by_hand.is_correct("state", "What color is the square at the end?", "me")
    with pytest.raises(ValueError, match="grammar"):
        by_hand.is_correct("event", "Who are you?", "me")
    with pytest.raises(ValueError, match="expected kind 'event'"):
        by_hand.is_correct("event", "Describe the video.", "me")


def test_half_of_the_color_questions_are_about_what_changes(by_hand):
    asked = [ask_more(by_hand, ["state"], [i])[0].question for i in range(400)]
    colors = [question for question in asked if "color" in question]
    # 3 of 6 drawn for the change itself, 1 of 6 as any of the three things.
    share = np.mean(["circle" in question for question in colors])
    np.testing.assert_allclose(share, 4 / 6, atol=0.1)


def test_every_wording_occurs_and_the_first_is_preferred(clips):
    stories = [clip.qa[3].answer for clip in clips]
    first = np.mean([answer.startswith("First ") for answer in stories])
    np.testing.assert_allclose(first, 0.25 / 0.80, atol=0.1)
    joined = np.mean([", then " in answer for answer in stories])
    np.testing.assert_allclose(joined, 0.55 / 0.80, atol=0.1)


def test_facts_of_a_count(by_hand):
    events, items = by_hand.events, by_hand.items
    assert facts(items, events, "count_start", {}) == {"number": "3", "be": "are"}
    assert facts((items[0][:1],), events, "count_start", {}) == {"number": "1", "be": "is"}


def _questions(clip: Clip, number: int):
    """Its own four questions and two more of each kind."""
    return (*clip.qa, *ask_more(clip, language.ASKED_CLIP * 2, [number]))
