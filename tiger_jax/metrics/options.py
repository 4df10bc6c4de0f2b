"""The option that a text chooses, by each benchmark's own rule; None where the rule finds none.

No rule guesses: where an official script draws at random or takes a refusal for a letter, the
answer here is None, which scores as wrong and is counted.
"""

import random
import re
from collections.abc import Sequence
from string import ascii_uppercase

from tiger_jax.errors import UserError

_SCIENCEQA_SENTENCE = re.compile(r"The answer is ([A-Z]).")
_SCIENCEQA_LETTERS = "ABCDE"


def scienceqa_option(text: str, n_choices: int, style: str = "llava") -> str | None:
    """The letter among `n_choices` in a ScienceQA answer.

    Args:
        style: "llava": the letter alone, a start "X. ", or exactly one "The answer is X" with a
            character after it that is no line break. "lmms": the letter alone in any case, or a
            start "X.".

    Raises:
        UserError: another style.
    """
    _check_style("scienceqa", style, "llava")
    text = text.strip()
    letter = _scienceqa_llava(text) if style == "llava" else _letter_with_dot(text)
    return letter if letter is not None and letter in ascii_uppercase[:n_choices] else None


def _scienceqa_llava(text: str) -> str | None:
    if len(text) == 1 and text in _SCIENCEQA_LETTERS:
        return text
    if text[:1] and text[:1] in _SCIENCEQA_LETTERS and text[1:3] == ". ":
        return text[0]
    found = _SCIENCEQA_SENTENCE.findall(text)
    return found[0] if len(found) == 1 else None


def _letter_with_dot(text: str) -> str | None:
    if len(text) == 1:
        return text.upper()
    return text[0] if len(text) > 1 and text[0].isupper() and text[1] == "." else None


_MMBENCH_SPACED = str.maketrans(dict.fromkeys(".()[],:;!*#{}", " "))
_MMBENCH_SENTENCE = re.compile(r"(?i:\banswer\s+is)\s+\**([A-Z])\b")


def mmbench_option(text: str, choices: Sequence[str]) -> str | None:
    """The letter that VLMEvalKit's exact matching finds, without its judge.

    Exactly one letter stands as a word, within the last words; else "answer is X"; else exactly one
    option's text occurs in an answer shorter than twice all options together.
    """
    letters = ascii_uppercase[: len(choices)]
    words = text.translate(_MMBENCH_SPACED).split()
    present = [letter for letter in letters if letter in words]
    # VLMEvalKit: the first occurrence must lie behind the fifth word from the end.
    if len(present) == 1 and words.index(present[0]) > len(words) - 5:
        return present[0]
    sentence = _MMBENCH_SENTENCE.search(text)
    if sentence and sentence[1] in letters:
        return sentence[1]
    return _only_text(text.lower(), [choice.lower() for choice in choices])


def _only_text(text: str, choices: Sequence[str]) -> str | None:
    if len(text) > 2 * sum(map(len, choices)):
        return None
    found = [letter for letter, choice in zip(ascii_uppercase, choices, strict=False)
             if choice and choice in text]  # fmt: skip
    return found[0] if len(found) == 1 else None


# The official script joins the last four into two by missing commas, so that there "Best option: C"
# reads as B; here they are the eight that were meant.
_VIDEO_MME_PREFIXES = (
    "The best answer is", "The correct answer is", "The answer is", "The answer",
    "The best option is", "The correct option is", "Best answer:", "Best option:",
)  # fmt: skip
_PHRASES = (
    "answer is", "correct option is", "best option is", "choice is", "i choose", "i select",
    "i pick",
)  # fmt: skip
_FORMS = ("\\(({})\\)", "({})\\.", "({}):", "({})\\)", "({}) ", "({})")


def video_mme_option(text: str, style: str = "official") -> str | None:
    """The letter in a Video-MME answer.

    Args:
        style: "official": the first of the characters A .. E once eight known prefixes are gone
            ("Based on ... C" is B). "lmms": the best of several forms (start, end, after "answer
            is", (X), X., X:, X), X and a space, X anywhere); in one form the last one wins.

    Raises:
        UserError: another style.
    """
    _check_style("video_mme", style, "official")
    if style == "lmms":
        return _ranked_option(text, "ABCD")
    for prefix in _VIDEO_MME_PREFIXES:
        text = text.replace(prefix, "")
    found = re.search("[ABCDE]", text)
    return found[0] if found else None


def _ranked_option(text: str, letters: str) -> str | None:
    text = text.strip().strip(",.!?;:'\"")
    one = f"[{letters}]"
    if re.match(rf"{one}(?![a-zA-Z])", text):
        return text[0]
    if re.search(rf"(?<![a-zA-Z]){one}$", text):
        return text[-1]
    if letter := _behind_phrases(text, letters):
        return letter
    for form in _FORMS:
        if found := re.findall(form.format(one), f" {text} "):
            return found[-1]
    return None


def _behind_phrases(text: str, letters: str) -> str | None:
    """Of each letter's first place behind a phrase, the furthest."""
    lower = text.lower()
    ends = [lower.find(phrase) + len(phrase) for phrase in _PHRASES if phrase in lower]
    places = [(text.find(letter, end), letter) for end in ends for letter in letters]
    place, letter = max(places, default=(-1, ""))
    return letter if place >= 0 else None


_MUIRBENCH_START = re.compile(r"\s*([A-Z])\.")


def muirbench_option(
    text: str, choices: Sequence[str], style: str = "official",
    compat: random.Random | None = None,
) -> str | None:  # fmt: skip
    """The letter in a MuirBench answer.

    Args:
        style: "official" (MMMU's rule): "(X)", else a letter between spaces, else an option's text
            in more than five words; of several the last. "lmms": a start "X.", or the letter alone.
        compat: draws a letter where the official rule finds none, as the official script does with
            `random.Random(42)`, one draw a text in the order of the data set. None: no guess.

    Raises:
        UserError: another style, or `compat` with "lmms", which does not guess.
    """
    _check_style("muirbench", style, "official")
    letters = ascii_uppercase[: len(choices)]
    if style == "lmms":
        if compat is not None:
            raise UserError("muirbench compat: expected the style official, got lmms")
        found = _MUIRBENCH_START.match(text)
        letter = found[1] if found else text.strip()
        return letter if len(letter) == 1 and letter in letters else None
    letter = _last_mentioned(text, choices)
    return compat.choice(letters) if letter is None and compat is not None else letter


def _last_mentioned(text: str, choices: Sequence[str]) -> str | None:
    for mark in ",.!?;:'":
        text = text.strip(mark)
    text = f" {text} "
    letters = ascii_uppercase[: len(choices)]
    places = {letter: text.rfind(f"({letter})") for letter in letters}
    if max(places.values(), default=-1) < 0:
        places = {letter: text.rfind(f" {letter} ") for letter in letters}
    if max(places.values(), default=-1) < 0 and len(text.split()) > 5:
        lower = text.lower()
        places = {letter: lower.rfind(choice.lower()) if choice else -1
                  for letter, choice in zip(letters, choices, strict=False)}  # fmt: skip
    letter, place = max(places.items(), key=lambda pair: pair[1], default=("", -1))
    return letter if place >= 0 else None


def _check_style(name: str, style: str, first: str) -> None:
    if style not in {first, "lmms"}:
        raise UserError(f"{name} style: expected {first} or lmms, got {style!r}")
