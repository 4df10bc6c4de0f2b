"""The official short prompts of each public data set, as the kits that score them word them.

A style is a kit's wording: "lmms" is lmms-eval, "llava" LLaVA's own evaluation files, "vlmevalkit"
VLMEvalKit, "official" the data set's authors, "own" this project's (no kit has that data set).
Generation lengths are the kit's where it states one below 128, else 16 for letters and numbers and
32 for a phrase: an answer that needs more is wrong in that form anyway.
"""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from tiger_jax.data.public.record import PublicRecord

IMAGE_MARK = "<image>"
SINGLE_WORD = "\nAnswer the question using a single word or phrase."
LETTER = "\nAnswer with the option's letter from the given choices directly."
ONE_CAPTION = "Provide a one-sentence caption for the provided image."
TRUE_OR_FALSE = "Is this statement true or false about the two images?"
STEP_BY_STEP = (
    "First please perform reasoning, and think step by step to provide best answer to the "
    "following question: \n\n"
)
_SELECT = (
    "Select the best answer to the following multiple-choice question based on the video{source}. "
    "Respond with only the letter (A, B, C, or D) of the correct option.\n"
)
_DESCRIBE = (
    "Please describe this image in general. Directly provide the description, do not include "
    'prefix like "This image depicts". '
)


class Style(NamedTuple):
    """One wording of one data set's score prompt.

    build: record -> text; it may hold "<image>" where the place of a picture matters.
    max_new_tokens: how long an answer may get.
    ocr: the text shows the OCR tokens of the record, where it has them.
    """

    build: Callable[[PublicRecord], str]
    max_new_tokens: int
    ocr: bool = False


def lettered(choices: tuple[str, ...], form: str = "{letter}. {text}", between: str = "\n") -> str:
    """The options under their letters from A."""
    return between.join(
        form.format(letter=chr(ord("A") + i), text=choice) for i, choice in enumerate(choices)
    )


def without_marks(text: str) -> str:
    """The text without "<image>" and without the white space that stood around it."""
    return re.sub(rf"\s*(?:{IMAGE_MARK}\s*)+", " ", text).strip()


def question_and_options(record: PublicRecord, marks: bool = True) -> str:
    """The question over its lettered options; without `marks` no "<image>" is left in either."""
    text = without_marks if not marks else str
    choices = tuple(text(choice) for choice in record.choices or ())
    return "\n".join([text(record.question), *([lettered(choices)] if choices else [])])


def keeps_marks(record: PublicRecord) -> bool:
    """Whether the marks of a MuirBench record say where its pictures go."""
    return record.meta.get("marks") != "moved"


def _as_it_is(record: PublicRecord) -> str:
    return record.question


def _suffixed(suffix: str, capitalize: bool = False) -> Callable[[PublicRecord], str]:
    """The question, perhaps as `str.capitalize` (which lowers the rest), then a fixed suffix."""

    def build(record: PublicRecord) -> str:
        question = record.question.capitalize() if capitalize else record.question
        return question + suffix

    return build


def _textvqa_llava(record: PublicRecord) -> str:
    tokens = record.meta.get("ocr_tokens")
    line = "" if tokens is None else f"\nReference OCR token: {', '.join(tokens)}"
    return record.question.capitalize() + line + SINGLE_WORD


def _scienceqa_lmms(record: PublicRecord) -> str:
    hint = record.meta.get("hint")
    context = f"Context: {hint}\n" if hint else ""
    return context + question_and_options(record) + LETTER


def _scienceqa_llava(record: PublicRecord) -> str:
    """LLaVA's CQM-A form; its converter folds double spaces and strips the ends."""
    options = lettered(record.choices or (), "({letter}) {text}", " ")
    hint = (record.meta.get("hint") or "").strip() or "N/A"
    text = f"Context: {hint}\nQuestion: {record.question}\nOptions: {options}"
    return text.replace("  ", " ").strip() + LETTER


def _hinted_vlmevalkit(record: PublicRecord) -> str:
    hint = record.meta.get("hint")
    head = f"Hint: {hint}\n" if hint else ""
    options = lettered(record.choices or ())
    return (
        f"{head}Question: {record.question}\nOptions:\n{options}\n"
        "Please select the correct answer from the options above. \n"
    )


def _mmbench_lmms(record: PublicRecord) -> str:
    hint = record.meta.get("hint")
    head = f"{hint} " if hint else ""
    options = lettered(record.choices or ())
    return f"{head}{record.question} There are several options:\n{options}{LETTER}"


def _mmbench_llava(record: PublicRecord) -> str:
    hint = record.meta.get("hint")
    head = f"{hint}\n" if hint else ""
    return head + question_and_options(record) + LETTER


def _video_mme_official(record: PublicRecord) -> str:
    """The same words with and without subtitles, whose list stands before them."""
    return _SELECT.format(source="") + question_and_options(record) + "\nThe best answer is:"


def _video_mme_lmms(record: PublicRecord) -> str:
    """Names the subtitles even where none are shown: lmms-eval's quirk, kept for parity."""
    return _SELECT.format(source=" and the subtitles") + question_and_options(record) + LETTER


def _nlvr2_own(record: PublicRecord) -> str:
    marks = IMAGE_MARK * len(record.images)
    return f"{marks}\n{record.question}\n{TRUE_OR_FALSE} Answer with True or False."


def _muirbench_official(record: PublicRecord) -> str:
    text = str if keeps_marks(record) else without_marks
    options = lettered(tuple(text(choice) for choice in record.choices or ()), "({letter}) {text}")
    return (
        f"Question: {text(record.question)}\nChoices:\n{options}\n"
        "Hint: Please provide the correct option letter, such as A, B, C, D, directly.\nAnswer:"
    )


def _muirbench_vlmevalkit(record: PublicRecord) -> str:
    return question_and_options(record, keeps_marks(record)) + LETTER


def _muirbench_lmms(record: PublicRecord) -> str:
    """All pictures first, so no mark is left; an option that is a picture alone becomes empty."""
    return question_and_options(record, marks=False) + LETTER


# The first style of a data set is its default.
SCORE_STYLES: Mapping[str, Mapping[str, Style]] = {
    "llava": {"own": Style(_as_it_is, 512)},
    "textvqa": {
        "lmms": Style(_suffixed(SINGLE_WORD, capitalize=True), 32),
        "llava": Style(_textvqa_llava, 32, ocr=True),
        "vlmevalkit": Style(_suffixed(SINGLE_WORD), 32),
    },
    "scienceqa": {
        "lmms": Style(_scienceqa_lmms, 16),
        "llava": Style(_scienceqa_llava, 16),
        "vlmevalkit": Style(_hinted_vlmevalkit, 16),
    },
    "docvqa": {"lmms": Style(_suffixed(SINGLE_WORD), 32)},
    "tallyqa": {"vlmevalkit": Style(_suffixed("\nAnswer the question using a single number."), 16)},
    "chartqa": {
        "lmms": Style(_suffixed("\nAnswer the question with a single word."), 16),
        "llava": Style(_suffixed(SINGLE_WORD), 16),
        "vlmevalkit": Style(_suffixed(SINGLE_WORD), 16),
    },
    "mmbench": {
        "lmms": Style(_mmbench_lmms, 16),
        "llava": Style(_mmbench_llava, 16),
        "vlmevalkit": Style(_hinted_vlmevalkit, 16),
    },
    "mm_vet": {
        "llava": Style(_as_it_is, 1024),
        "lmms": Style(lambda record: STEP_BY_STEP + record.question, 1024),
    },
    "coco_captions": {
        "lmms": Style(lambda record: ONE_CAPTION, 64),
        "vlmevalkit": Style(lambda record: _DESCRIBE, 64),
    },
    "video_mme": {
        "official": Style(_video_mme_official, 16),
        "lmms": Style(_video_mme_lmms, 16),
    },
    "nlvr2": {"own": Style(_nlvr2_own, 16)},
    "muirbench": {
        "official": Style(_muirbench_official, 16),
        "lmms": Style(_muirbench_lmms, 16),
        "vlmevalkit": Style(_muirbench_vlmevalkit, 16),
    },
}
