"""Every prompt string as the kits word it (data.md 3 and 4), written out in full."""

import pytest

from tiger_jax.data.public.prompts import LONG_ANSWER, score_prompt, speed_prompt
from tiger_jax.data.public.record import Picture, PublicRecord
from tiger_jax.data.public.registry import READERS
from tiger_jax.errors import UserError

PICTURE = Picture(path="x.jpg")
WORD = "\nAnswer the question using a single word or phrase."
LETTER = "\nAnswer with the option's letter from the given choices directly."
ASKED = "and provide a detailed explanation of the reasoning. "
ASKED += "Ensure the response is comprehensive and well-structured."
ABOUT_IMAGE = f"Please answer the question about the provided image {ASKED}"
SELECT = "Select the best answer to the following multiple-choice question based on the video"
ONLY = ". Respond with only the letter (A, B, C, or D) of the correct option.\n"


def record(source, question="What is it?", images=(PICTURE,), **fields):
    return PublicRecord(source, "test", f"{source}/test/1/0", question, images, **fields)


def video(subtitles=None):
    meta = {"subtitles": subtitles}
    choices = ("A cat.", "A rabbit.")
    return record("video_mme", "Who?", (), video="v.mp4", choices=choices, meta=meta)


NASA = record("textvqa", "what does NASA mean", meta={"ocr_tokens": ("NASA", "usa")})
PLAIN = record("textvqa", "what is it?", meta={"ocr_tokens": None})
SCIENCE = record("scienceqa", choices=("bilberry", "mushroom"), meta={"hint": "A web."})
UNHINTED = record("scienceqa", images=(), choices=("x", "y", "z"), meta={"hint": ""})
BENCH = record("mmbench", choices=("six", "five"), meta={"hint": "Count them."})
BARE = record("mmbench", choices=("six", "five"), meta={"hint": None})
MUIR = record(
    "muirbench",
    "Which of <image><image> is like <image>?",
    (PICTURE,) * 4,
    choices=("<image>", "None of the choices provided"),
    meta={"marks": "placed"},
)
MOVED = PublicRecord(**{**vars(MUIR), "meta": {"marks": "moved"}})


@pytest.mark.parametrize(
    ("asked", "style", "text", "length"),
    [
        (record("llava"), None, "What is it?", 512),
        (NASA, None, f"What does nasa mean{WORD}", 32),
        (NASA, "lmms", f"What does nasa mean{WORD}", 32),
        (NASA, "vlmevalkit", f"what does NASA mean{WORD}", 32),
        (NASA, "llava", f"What does nasa mean\nReference OCR token: NASA, usa{WORD}", 32),
        (PLAIN, "llava", f"What is it?{WORD}", 32),
        (SCIENCE, None, f"Context: A web.\nWhat is it?\nA. bilberry\nB. mushroom{LETTER}", 16),
        (UNHINTED, "lmms", f"What is it?\nA. x\nB. y\nC. z{LETTER}", 16),
        (
            SCIENCE,
            "llava",
            "Context: A web.\nQuestion: What is it?\nOptions: (A) bilberry (B) mushroom" + LETTER,
            16,
        ),
        (
            UNHINTED,
            "llava",
            f"Context: N/A\nQuestion: What is it?\nOptions: (A) x (B) y (C) z{LETTER}",
            16,
        ),
        (
            SCIENCE,
            "vlmevalkit",
            "Hint: A web.\nQuestion: What is it?\nOptions:\nA. bilberry\nB. mushroom\n"
            "Please select the correct answer from the options above. \n",
            16,
        ),
        (record("docvqa"), None, f"What is it?{WORD}", 32),
        (
            record("tallyqa", "How many?"),
            None,
            "How many?\nAnswer the question using a single number.",
            16,
        ),
        (record("chartqa"), None, "What is it?\nAnswer the question with a single word.", 16),
        (record("chartqa"), "vlmevalkit", f"What is it?{WORD}", 16),
        (
            BENCH,
            None,
            f"Count them. What is it? There are several options:\nA. six\nB. five{LETTER}",
            16,
        ),
        (BARE, "lmms", f"What is it? There are several options:\nA. six\nB. five{LETTER}", 16),
        (BENCH, "llava", f"Count them.\nWhat is it?\nA. six\nB. five{LETTER}", 16),
        (BARE, "llava", f"What is it?\nA. six\nB. five{LETTER}", 16),
        (
            BARE,
            "vlmevalkit",
            "Question: What is it?\nOptions:\nA. six\nB. five\n"
            "Please select the correct answer from the options above. \n",
            16,
        ),
        (record("mm_vet"), None, "What is it?", 1024),
        (
            record("mm_vet"),
            "lmms",
            "First please perform reasoning, and think step by step to provide best answer to "
            "the following question: \n\nWhat is it?",
            1024,
        ),
        (
            record("coco_captions", ""),
            None,
            "Provide a one-sentence caption for the provided image.",
            64,
        ),
        (
            record("coco_captions", ""),
            "vlmevalkit",
            "Please describe this image in general. Directly provide the description, do not "
            'include prefix like "This image depicts". ',
            64,
        ),
        (
            video(),
            None,
            f"{SELECT}{ONLY}Who?\nA. A cat.\nB. A rabbit.\nThe best answer is:",
            16,
        ),
        (
            video(),
            "lmms",
            f"{SELECT} and the subtitles{ONLY}Who?\nA. A cat.\nB. A rabbit.{LETTER}",
            16,
        ),
        (
            record("nlvr2", "One is red.", (PICTURE, PICTURE)),
            None,
            "<image><image>\nOne is red.\nIs this statement true or false about the two images? "
            "Answer with True or False.",
            16,
        ),
        (
            MUIR,
            None,
            "Question: Which of <image><image> is like <image>?\nChoices:\n(A) <image>\n"
            "(B) None of the choices provided\nHint: Please provide the correct option letter, "
            "such as A, B, C, D, directly.\nAnswer:",
            16,
        ),
        (
            MOVED,
            None,
            "Question: Which of is like ?\nChoices:\n(A) \n"
            "(B) None of the choices provided\nHint: Please provide the correct option letter, "
            "such as A, B, C, D, directly.\nAnswer:",
            16,
        ),
        (
            MUIR,
            "vlmevalkit",
            "Which of <image><image> is like <image>?\nA. <image>\n"
            f"B. None of the choices provided{LETTER}",
            16,
        ),
        (
            MUIR,
            "lmms",
            f"Which of is like ?\nA. \nB. None of the choices provided{LETTER}",
            16,
        ),
    ],
)
def test_score_prompts(asked, style, text, length):
    prompt = score_prompt(asked, style)
    assert prompt.text == text
    assert prompt.max_new_tokens == length
    assert (prompt.images, prompt.video) == (asked.images, asked.video)


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (record("coco_captions", ""), "Please provide a detailed description of the given image."),
        (
            NASA,
            "what does NASA mean Perform an OCR task on the provided image. Please extract the "
            "text accurately and provide a detailed explanation of the process. Ensure the "
            "response is comprehensive and well-structured.",
        ),
        (record("llava", f"What is it?{WORD}"), f"What is it?\n{ABOUT_IMAGE}"),
        (record("docvqa"), f"What is it?\n{ABOUT_IMAGE}"),
        (record("tallyqa"), f"What is it?\n{ABOUT_IMAGE}"),
        (record("chartqa"), f"What is it?\n{ABOUT_IMAGE}"),
        (record("mm_vet"), f"What is it?\n{ABOUT_IMAGE}"),
        (SCIENCE, f"A web.\nWhat is it?\nA. bilberry\nB. mushroom\n{ABOUT_IMAGE}"),
        (UNHINTED, f"What is it?\nA. x\nB. y\nC. z\nPlease answer the question {ASKED}"),
        (BENCH, f"Count them.\nWhat is it?\nA. six\nB. five\n{ABOUT_IMAGE}"),
        (
            video(),
            "Who?\nA. A cat.\nB. A rabbit.\n"
            f"Please answer the question about the provided video {ASKED}",
        ),
        (
            record("nlvr2", "One is red.", (PICTURE, PICTURE)),
            "<image><image>\nOne is red.\nIs this statement true or false about the two images? "
            f"Please answer the question about the provided images {ASKED}",
        ),
        (
            MUIR,
            "Which of <image><image> is like <image>?\nA. <image>\n"
            "B. None of the choices provided\n"
            f"Please answer the question about the provided images {ASKED}",
        ),
    ],
)
def test_speed_prompts_ask_for_long_answers(asked, text):
    prompt = speed_prompt(asked)
    assert prompt.text == text
    assert prompt.max_new_tokens == 1024
    vispec = asked.source in {"coco_captions", "textvqa"}
    assert prompt.style == ("vispec" if vispec else "own")
    assert not prompt.subtitles_used
    assert not prompt.ocr_used


def test_the_prompt_says_whether_ocr_tokens_and_subtitles_stand_in_it(tmp_path):
    assert score_prompt(NASA, "llava").ocr_used
    assert not score_prompt(NASA, "lmms").ocr_used
    assert not score_prompt(PLAIN, "llava").ocr_used
    empty = record("textvqa", "what is it?", meta={"ocr_tokens": ()})
    assert score_prompt(empty, "llava").text == f"What is it?\nReference OCR token: {WORD}"

    path = tmp_path / "v.srt"
    path.write_text(
        "1\n00:00:00,000 --> 00:00:02,500\n<b>A rabbit.</b>\n\n"
        "2\n00:00:02,500 --> 00:00:05,000\nA meadow.\n"
    )
    asked = score_prompt(video(str(path)))
    head = "This video's subtitles are listed below:\n"
    choices = "Who?\nA. A cat.\nB. A rabbit.\nThe best answer is:"
    # The authors' README: no word of the subtitles but their list.
    end = f"\n{SELECT}{ONLY}{choices}"
    assert asked.text == f"{head}A rabbit.\nA meadow.{end}"
    assert asked.subtitles_used
    assert not score_prompt(video()).subtitles_used
    assert score_prompt(video(str(path)), frame_times=[3.0]).text == f"{head}A meadow.{end}"


def test_a_kit_without_a_prompt_for_the_data_set_gives_the_default():
    assert score_prompt(record("tallyqa"), "lmms").style == "vlmevalkit"
    assert score_prompt(record("chartqa"), "llava").style == "llava"
    with pytest.raises(UserError, match=r"prompt style: expected one of llava, lmms, .*'lmsm'"):
        score_prompt(record("tallyqa"), "lmsm")
    for ask in (score_prompt, speed_prompt):
        with pytest.raises(UserError, match=r"expected a record of llava, .*got 'vqa'"):
            ask(record("vqa"))


def test_every_public_data_set_has_both_prompts():
    for name in READERS:
        asked = record(name, choices=("x", "y"))
        assert score_prompt(asked).max_new_tokens >= 16
        assert speed_prompt(asked).max_new_tokens == 1024
    assert "{about}" in LONG_ANSWER
