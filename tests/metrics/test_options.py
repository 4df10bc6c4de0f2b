"""Every benchmark's own rule on its worked answers: none of them guesses."""

import json
import random

import pytest

from tests.samples import SAMPLES, needs_samples
from tiger_jax.errors import UserError
from tiger_jax.metrics.options import (
    mmbench_option,
    muirbench_option,
    scienceqa_option,
    video_mme_option,
)

COUNTS = ("six", "five", "seven", "eight")
FOUR = ("1", "2", "0", "None of the choices provided")


@pytest.mark.parametrize(
    ("text", "llava", "lmms"),
    [
        ("B", "B", "B"),
        ("B. mushroom", "B", "B"),
        ("b", None, "B"),
        ("(B)", None, None),
        ("The answer is B.", "B", None),
        ("The answer is B", None, None),
        ("The answer is B\nIt grows.", None, None),  # "." meets no line break
        ("C", None, None),  # beyond two choices
        ("C. three", None, None),
        ("B.mushroom", None, "B"),
        ("The answer is A. No: The answer is B.", None, None),
        ("", None, None),
    ],
)
def test_scienceqa(text, llava, lmms):
    assert scienceqa_option(text, 2) == llava
    assert scienceqa_option(text, 2, "lmms") == lmms


@needs_samples
def test_scienceqa_on_llavas_stored_outputs():
    stored = json.loads((SAMPLES / "scienceqa/llava_test_sqa_results.first40.json").read_text())
    assert len(stored["outputs"]) == 40
    for pid, text in stored["outputs"].items():
        assert scienceqa_option(text, 5) == "ABCDE"[stored["results"][pid]], pid


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("A.", "A"),
        ("(A)", "A"),
        ("The answer is B.", "B"),
        ("six", "A"),
        ("There are six trucks", "A"),  # by the option's text
        ("It could be A or B", None),
        ("A man is walking in the park today", None),
        ("The answer is C because it has more of them than others", "C"),
        ("The answer is a mystery", None),
        ("five or six", None),
        ("E", None),
        ("", None),
    ],
)
def test_mmbench(text, letter):
    assert mmbench_option(text, COUNTS) == letter


def test_mmbench_reads_no_text_from_a_long_answer():
    # The options together have 17 characters; a text is read in up to 34.
    assert mmbench_option("x" * 30 + " six", COUNTS) == "A"
    assert mmbench_option("x" * 31 + " six", COUNTS) is None


@pytest.mark.parametrize(
    ("text", "official", "lmms"),
    [
        ("C. Berries.", "C", "C"),
        ("(D)", "D", "D"),
        ("The best answer is B", "B", "B"),
        ("A dog and a cat, so C", "A", "A"),
        ("Based on the video it is C", "B", "C"),
        ("I do not know", None, None),
        ("Best option: C", "C", "C"),
        ("", None, None),
        ("First (A) looks right, then (B) does it, in the end.", "A", "B"),
        ("the answer is surely D here, or so", "D", "D"),
        ("Both B. and C. were seen, he said", "B", "C"),
    ],
)
def test_video_mme(text, official, lmms):
    assert video_mme_option(text) == official
    assert video_mme_option(text, "lmms") == lmms


@pytest.mark.parametrize(
    ("text", "official", "lmms"),
    [
        ("(B)", "B", None),
        ("B.", "B", "B"),
        ("I think B or C", "C", None),
        ("The answer is (A) and not (C)", "C", None),
        ("", None, None),
        ("b", None, None),
        ("B", "B", "B"),
        ("E.", None, None),
        ("I would say that none of the choices provided fits", "D", None),
        ("none of the choices provided", None, None),  # five words: too few
    ],
)
def test_muirbench(text, official, lmms):
    assert muirbench_option(text, FOUR) == official
    assert muirbench_option(text, FOUR, "lmms") == lmms


def test_muirbench_guesses_only_on_request():
    assert muirbench_option("", FOUR, compat=random.Random(42)) == "A"
    assert muirbench_option("b", FOUR, compat=random.Random(42)) == "A"
    # A found letter draws nothing: the next guess is the generator's first.
    compat = random.Random(42)
    assert muirbench_option("(D)", FOUR, compat=compat) == "D"
    assert muirbench_option("", FOUR, compat=compat) == "A"
    with pytest.raises(UserError, match="muirbench compat: expected the style official, got lmms"):
        muirbench_option("", FOUR, "lmms", random.Random(42))


def test_unknown_styles_are_named():
    with pytest.raises(UserError, match="scienceqa style: expected llava or lmms, got 'official'"):
        scienceqa_option("A", 2, "official")
    with pytest.raises(UserError, match="video_mme style: expected official or lmms, got 'llava'"):
        video_mme_option("A", "llava")
    with pytest.raises(UserError, match="muirbench style: expected official or lmms, got 'x'"):
        muirbench_option("A", FOUR, "x")
