"""The normalisation and the soft votes of VQA, on the worked values and on real golds."""

import pytest

from tiger_jax.errors import UserError
from tiger_jax.metrics.vqa import normalize_answer, vqa_accuracy

# Question 34602 of TextVQA and its three followers, as data.md quotes them.
CAMERA = (
    "nous les gosses", "dakota", "clos culombu", "dakota digital", "dakota", "dakota",
    "dakota digital", "dakota digital", "dakota", "dakota",
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The Dakota.", "dakota"),
        ("ten years", "10 years"),
        ("3,82", "382"),
        ("king's cross", "king 's cross"),
        ("U.S.", "us"),
        ("hewlett-packard", "hewlett packard"),
        ("a", ""),
        ("none", "0"),
        ("$3.82", "$3.82"),
        ("2.5%", "2.5%"),
        ("dont", "don't"),
        (" two\nlines\tof ", "2 lines of"),
        ("what? an apple", "what apple"),
        # A mark that touches a space anywhere is deleted everywhere.
        ("a-b - c", "ab c"),
        ("7.", "7"),
        ("couldnt've couldn'tve", "couldn't've couldn't've"),
        ("yall'd've", "y'all'd've"),
        ("somebody'd", "somebodyd"),
    ],
)
def test_normalisation(text, normal):
    assert normalize_answer(text) == normal


@pytest.mark.parametrize(
    ("matches", "credit"), [(0, 0), (1, 0.3), (2, 0.6), (3, 0.9), (4, 1), (9, 1)]
)
def test_votes_of_ten(matches, credit):
    golds = ["yes"] * matches + [f"no {number}" for number in range(10 - matches)]
    assert vqa_accuracy("yes", golds) == pytest.approx(credit)


def test_real_golds():
    assert vqa_accuracy("Dakota", CAMERA) == 1
    assert vqa_accuracy("dakota digital", CAMERA) == pytest.approx(0.9)
    assert vqa_accuracy("nous les gosses", CAMERA) == pytest.approx(0.3)
    beer = ["ale"] * 7 + ["sublimely self-righteous ale", "stone", "self righteous"]
    assert vqa_accuracy("Stone", beer) == pytest.approx(0.3)
    # One gold ends in a space; it is a vote like the others.
    islay = ["bowmore "] + ["bowmore"] * 6 + ["bowmore islay"] * 2 + ["dowmore islay"]
    assert vqa_accuracy("bowmore islay", islay) == pytest.approx(0.6)
    years = ["10 years"] * 6 + ["10 years ", "10 year", "martial arts", "10"]
    assert vqa_accuracy("10 year", years) == pytest.approx(0.3)
    assert vqa_accuracy("ten years", years) == 1


def test_hidden_golds_are_refused():
    with pytest.raises(UserError, match="VQA accuracy: expected golds, got none"):
        vqa_accuracy("yes", [])
