"""What a model is asked about a public record: in `score` mode or in `speed` mode.

Score prompts are short and official, and their answers are scored. Speed prompts want long
answers: with an answer of one to three tokens accepted lengths and speedups mean nothing, so
nothing that a task metric measures may be read off them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tiger_jax.data.public.prompt_styles import (
    IMAGE_MARK,
    LETTER,
    ONE_CAPTION,
    SCORE_STYLES,
    SINGLE_WORD,
    TRUE_OR_FALSE,
    Style,
    keeps_marks,
    question_and_options,
)
from tiger_jax.data.public.record import Picture, PublicRecord
from tiger_jax.data.public.subtitles import read_subtitles, subtitle_text
from tiger_jax.errors import UserError

# ViSpec's published prompts for long answers, and its limit of new tokens.
VISPEC_CAPTION = "Please provide a detailed description of the given image."
VISPEC_OCR = (
    "Perform an OCR task on the provided image. Please extract the text accurately and provide a "
    "detailed explanation of the process. Ensure the response is comprehensive and well-structured."
)
SPEED_TOKENS = 1024
# Ours, in the form of ViSpec's OCR prompt, for the data sets without a prompt of ViSpec's here.
LONG_ANSWER = (
    "Please answer the question{about} and provide a detailed explanation of the reasoning. "
    "Ensure the response is comprehensive and well-structured."
)


@dataclass(frozen=True)
class Asked:
    """One question as a model gets it.

    text: without "<image>" the pictures go first; with it, each mark is the place of one.
    max_new_tokens: the longest answer.
    images, video: what is shown, of the record.
    subtitles_used, ocr_used: whether the text holds them; both move scores a lot, so a
        result must state them.
    style: whose wording it is: a style of `prompt_styles`, or "vispec" or "own" in speed mode.
    """

    text: str
    max_new_tokens: int
    images: tuple[Picture, ...] = ()
    video: str | None = None
    subtitles_used: bool = False
    ocr_used: bool = False
    style: str = "own"


def score_prompt(
    record: PublicRecord, style: str | None = None, frame_times: Sequence[float] | None = None
) -> Asked:
    """The short prompt whose answer the data set's metric scores.

    Args:
        style: None for the data set's default. A kit without a prompt for this data set gives
            the default too; `Asked.style` names the one used.
        frame_times: seconds of the frames that are shown; only subtitles on screen at one of
            them are listed. None lists all.

    Raises:
        UserError: an unknown data set or style, or subtitles that cannot be read.
    """
    name, chosen = _choose(record.source, style)
    subtitles = record.meta.get("subtitles")
    return Asked(
        _subtitle_block(subtitles, frame_times) + chosen.build(record),
        chosen.max_new_tokens,
        record.images,
        record.video,
        subtitles_used=subtitles is not None,
        ocr_used=chosen.ocr and record.meta.get("ocr_tokens") is not None,
        style=name,
    )


def speed_prompt(record: PublicRecord) -> Asked:
    """The prompt for a long answer: ViSpec's for COCO captions and TextVQA, else ours.

    Raises:
        UserError: an unknown data set.
    """
    if record.source not in SCORE_STYLES:
        raise _unknown_source(record.source)
    style = "own"
    if record.source == "coco_captions":
        text, style = VISPEC_CAPTION, "vispec"
    elif record.source == "textvqa":
        text, style = f"{record.question} {VISPEC_OCR}", "vispec"
    elif record.source == "nlvr2":
        marks = IMAGE_MARK * len(record.images)
        text = f"{marks}\n{record.question}\n{TRUE_OR_FALSE} {_long_answer(record)}"
    else:
        text = f"{_bare_question(record)}\n{_long_answer(record)}"
    return Asked(text, SPEED_TOKENS, record.images, record.video, style=style)


def _choose(source: str, style: str | None) -> tuple[str, Style]:
    styles = SCORE_STYLES.get(source)
    if styles is None:
        raise _unknown_source(source)
    known = sorted({name for every in SCORE_STYLES.values() for name in every})
    if style is not None and style not in known:
        raise UserError(f"prompt style: expected one of {', '.join(known)}, got {style!r}")
    name = style if style in styles else next(iter(styles))
    return name, styles[name]


def _unknown_source(source: str) -> UserError:
    return UserError(f"prompt: expected a record of {', '.join(SCORE_STYLES)}, got {source!r}")


def _subtitle_block(path: str | None, frame_times: Sequence[float] | None) -> str:
    if path is None:
        return ""
    return f"This video's subtitles are listed below:\n{_listed(path, frame_times)}\n"


def _listed(path: str, frame_times: Sequence[float] | None) -> str:
    return subtitle_text(read_subtitles(path), frame_times)


def _long_answer(record: PublicRecord) -> str:
    if record.video is not None:
        about = " about the provided video"
    elif record.images:
        about = f" about the provided image{'s' if len(record.images) > 1 else ''}"
    else:
        about = ""
    return LONG_ANSWER.format(about=about)


def _bare_question(record: PublicRecord) -> str:
    """The question with its hint and options, without any request for a short answer."""
    question = question_and_options(record, keeps_marks(record))
    for suffix in (SINGLE_WORD, LETTER, "\n" + ONE_CAPTION):
        question = question.removesuffix(suffix)
    hint = record.meta.get("hint")
    return f"{hint}\n{question}" if hint else question
