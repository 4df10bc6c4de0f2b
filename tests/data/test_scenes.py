"""Scenes are reproducible, drawn where their items say, and judged by facts instead of wording."""

import re

import numpy as np
import pytest

from tiger_jax.data import scene_language as language
from tiger_jax.data.scene_drawing import CELL, JITTER, RGB, sprite
from tiger_jax.data.scenes import (
    COLOR_CLASSES,
    CONTENT_CLASSES,
    NUM_COLOR_CLASSES,
    NUM_CONTENT_CLASSES,
    Scene,
    ask_more,
    facts,
    make_pair_question,
    make_scene,
    pair_is_correct,
)

GRIDS = [(4, 4), (4, 8), (8, 4)]
FAMILIES = (language.COLORS, language.SIZES, language.SHAPES, language.WORDS, language.NUMBERS)


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    return [make_scene(seed=1, index=i, hard=i % 4 == 0) for i in range(200)]


def test_same_seed_and_index_same_scene():
    first, again = make_scene(3, 17, hard=True), make_scene(3, 17, hard=True)
    assert np.array_equal(first.image, again.image)
    assert (first.items, first.qa) == (again.items, again.qa)
    for other in (make_scene(3, 18), make_scene(4, 17)):
        assert other.items != first.items


def test_the_picture_of_a_scene_is_its_image():
    scene = make_scene(0, 1)
    assert scene.shown is scene.image


@pytest.mark.parametrize("grid", GRIDS)
def test_shape_and_reading_order(grid):
    scene = make_scene(0, 5, grid=grid)
    assert scene.image.shape == (grid[0] * CELL, grid[1] * CELL, 3)
    places = [(item.row, item.col) for item in scene.items]
    assert places == sorted(set(places))
    assert [qa.kind for qa in scene.qa] == ["read", "count", "attribute", "describe"]


def test_contents(scenes):
    for scene in scenes:
        kinds = [item.kind for item in scene.items]
        assert 4 <= len(kinds) <= 6
        assert "word" in kinds
        assert "shape" in kinds
        named = [item.name for item in scene.items if item.kind != "shape"]
        assert len(named) == len(set(named))


def test_ink_stays_in_its_cell():
    for index in range(50):
        scene = make_scene(2, index)
        ink = (scene.image < 250).any(-1).reshape(4, CELL, 4, CELL).any((1, 3))
        assert np.array_equal(ink.ravel(), scene.cell_content > 0)


def test_every_sprite_leaves_room_for_jitter():
    for item in (("shape", s, z) for s in language.SHAPES for z in language.SIZES):
        assert max(sprite(*item).shape) <= CELL - JITTER
    for kind, names in (("word", language.WORDS), ("digit", language.DIGITS)):
        masks = {name: sprite(kind, name, "") for name in names}
        assert all(max(mask.shape) <= CELL - JITTER for mask in masks.values())
        assert len({mask.tobytes() + bytes(mask.shape) for mask in masks.values()}) == len(names)


def test_labels_name_what_is_drawn():
    assert (NUM_CONTENT_CLASSES, NUM_COLOR_CLASSES) == (67, 7)
    for index in range(50):
        scene = make_scene(5, index)
        content, color = scene.cell_content, scene.cell_color
        assert np.array_equal(content > 0, color > 0)
        for item in scene.items:
            cell = item.row * 4 + item.col
            assert item.name in CONTENT_CLASSES[content[cell]]
            assert COLOR_CLASSES[color[cell]] == item.color
            patch = scene.image[item.row * CELL :, item.col * CELL :][:CELL, :CELL].reshape(-1, 3)
            darkest = patch[patch.sum(-1).argmin()].astype(int)
            assert np.abs(darkest - RGB[item.color]).max() <= 2


def test_clutter_changes_the_page_but_keeps_items_darker():
    easy, hard = make_scene(0, 3), make_scene(0, 3, hard=True)
    assert (easy.image == 255).mean() > 0.5
    background = hard.image.reshape(4, CELL, 4, CELL, 3).transpose(0, 2, 1, 3, 4).reshape(16, -1)
    empty = background[hard.cell_content == 0]
    assert 0 < empty.std() < 40
    assert np.median(empty) > 180


def test_own_answers_are_correct(scenes):
    for scene in scenes:
        for qa in scene.qa:
            assert scene.is_correct(qa.kind, qa.question, qa.answer), qa
            assert scene.is_correct(qa.kind, qa.question, f" {qa.answer.upper().rstrip('.')} ")


def test_every_wording_of_the_right_answer_is_accepted(scenes):
    for scene in scenes[:40]:
        for qa in scene.qa:
            form, slots = language.parse_question(qa.question)
            truth = facts(scene.items, form, slots)
            for template in language.ANSWERS[form]:
                for separator in (", ", " and ", ", then "):
                    said = dict(truth)
                    if "words" in truth:
                        said["words"] = separator.join(truth["words"])
                    if "items" in truth:
                        phrases = [language._ITEM[item.kind][-1] for item in truth["items"]]
                        said["items"] = separator.join(
                            phrase.format(name=item.name, color=item.color, size=item.size)
                            for phrase, item in zip(phrases, truth["items"], strict=True)
                        )
                    answer = template.format(**said)
                    assert scene.is_correct(qa.kind, qa.question, answer), answer


def test_every_changed_fact_is_rejected(scenes):
    """Each colour, size, shape, word and number of an answer, replaced by another of its family."""
    changed = 0
    for scene in scenes:
        for qa in scene.qa:
            for match in re.finditer(r"\w+", qa.answer):
                for family in FAMILIES:
                    if match[0] not in family:
                        continue
                    other = family[(family.index(match[0]) + 1) % len(family)]
                    wrong = qa.answer[: match.start()] + other + qa.answer[match.end() :]
                    assert not scene.is_correct(qa.kind, qa.question, wrong), (qa, wrong)
                    changed += 1
    assert changed > 3000


def test_incomplete_disordered_and_padded_descriptions_are_rejected(scenes):
    for scene in scenes[:50]:
        question = scene.qa[3].question
        rng = np.random.default_rng(0)
        said = [language.say_item(item, rng) for item in scene.items]
        good = f"I see {', '.join(said)}."
        assert scene.is_correct("describe", question, good)
        for wrong in (said[1:], said[:-1], [*said[::-1]], [*said, said[0]], [*said, "a cow"]):
            assert not scene.is_correct("describe", question, f"I see {', '.join(wrong)}.")
        for wrong in ("", "I see", good + " and", "well, " + good, good + " " + good):
            assert not scene.is_correct("describe", question, wrong)


def test_reading_misses_no_word_and_invents_none():
    scene = next(s for s in (make_scene(0, i) for i in range(99)) if len(_words(s)) == 2)
    first, second = _words(scene)
    ask = "Read the words in the picture."
    assert scene.is_correct("read", ask, f"The text is {first} and {second}.")
    for wrong in (first, second, f"{second} and {first}", f"{first}, {second}, {first}", "it says"):
        assert not scene.is_correct("read", ask, wrong)


def test_counts_against_a_hand_made_scene():
    item = language.Item
    items = (
        item("shape", "star", "red", "big", 0, 0),
        item("shape", "star", "blue", "small", 1, 1),
        item("word", "cat", "red", "", 2, 3),
        item("digit", "7", "green", "", 3, 0),
    )
    scene = Scene(np.zeros((112, 112, 3), np.uint8), items, (4, 4), ())
    expected = {
        "stars": 2,
        "circles": 0,
        "shapes": 2,
        "words": 1,
        "digits": 1,
        "red things": 2,
        "big shapes": 1,
    }
    for noun, number in expected.items():
        verb = "is" if number == 1 else "are"
        for n in range(4):
            answer = f"There {verb} {n}."
            assert scene.is_correct("count", f"How many {noun} are there?", answer) == (n == number)
    for kind, question, answer in (
        ("place", "Where is the blue star?", "row 2, column 2"),
        ("attribute", "What color is the big star?", "red"),
        ("attribute", "What size is the blue star?", "It is small."),
        ("place", "What is in row 4, column 1?", "the digit 7 in green"),
        ("attribute", "What color is the digit 7?", "The digit 7 is green."),
    ):
        assert scene.is_correct(kind, question, answer)
    with pytest.raises(ValueError, match="expected one in the scene, found 2"):
        scene.is_correct("place", "Where is the star?", "row 1, column 1")


def test_unknown_questions_and_kinds_are_refused(scenes):
    with pytest.raises(ValueError, match="scene grammar"):
        scenes[0].is_correct("read", "Who are you?", "me")
    with pytest.raises(ValueError, match="expected kind 'read'"):
        scenes[0].is_correct("read", "Describe the picture.", "me")


def test_attribute_questions_do_not_give_the_answer_away(scenes):
    for scene in scenes:
        qa = scene.qa[2]
        form, slots = language.parse_question(qa.question)
        if form in ("color", "size"):
            assert facts(scene.items, form, slots)[form] not in slots["ref"].split()


def test_wordings_and_forms_all_occur(scenes):
    asked = [
        qa
        for index, scene in enumerate(scenes)
        for qa in (*scene.qa, *ask_more(scene, ["place"], [index]))
    ]
    forms = {language.parse_question(qa.question)[0] for qa in asked}
    assert forms == set(language.QUESTIONS) - {"count_both"}
    openings = [qa.answer.split()[0] for scene in scenes for qa in scene.qa[3:]]
    shares = [openings.count(word) / len(openings) for word in ("There", "The", "I")]
    np.testing.assert_allclose(shares, language.PREFERENCE, atol=0.12)


def test_pair_question(scenes):
    for first, second in zip(scenes[::2], scenes[1::2], strict=True):
        qa = make_pair_question(first, second)
        assert "both pictures" in qa.question
        assert pair_is_correct(first, second, qa.question, qa.answer)
        number = int(re.search(r"\d+", qa.answer)[0])
        wrong = qa.answer.replace(str(number), str(number + 1))
        assert not pair_is_correct(first, second, qa.question, wrong)


def _words(scene: Scene) -> list[str]:
    return [item.name for item in scene.items if item.kind == "word"]
