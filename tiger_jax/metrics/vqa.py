"""VQA accuracy as TextVQA's server counts it: soft votes of ten people over normalised strings.

The normalisation is EvalAI's (mmf; the same in LLaVA and lmms-eval), odd places included: published
numbers were made with them.
"""

import re
from collections.abc import Sequence

from tiger_jax.errors import UserError

NUMBER_WORDS = {
    "none": "0", "zero": "0", "one": "1", "two": "2", "three": "3", "four": "4", "five": "5",
    "six": "6", "seven": "7", "eight": "8", "nine": "9", "ten": "10",
}  # fmt: skip
ARTICLES = frozenset({"a", "an", "the"})
PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'

# A lookbehind was meant, (?<!\d); as published it only asks that no digit follows, so "2." loses
# its full stop as well. Kept: the corrected form gives other numbers.
_FULL_STOP = re.compile(r"(?!<=\d)(\.)(?!\d)")

_FORMS = """
    ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've hasn't
    haven't he'd he'd've he's how'd how'll how's isn't it'd it'd've it'll ma'am mightn't mightn't've
    might've mustn't must've needn't not've o'clock oughtn't 'ow's'at shan't she'd've should've
    shouldn't shouldn't've somebody'd've somebody'll somebody's someone'd someone'd've someone'll
    someone's something'd something'd've something'll that's there'd there'd've there're there's
    they'd they'd've they'll they're they've 'twas wasn't we'd've we've weren't what'll what're
    what's what've when's where'd where's where've who'd who'd've who'll who's who've why'll why're
    why's won't would've wouldn't wouldn't've y'all y'all'll y'all'd've you'd you'd've you'll you're
    you've
"""


def _contractions(forms: Sequence[str]) -> dict[str, str]:
    """Each form under its spellings with one apostrophe left out."""
    table = {
        form[:place] + form[place + 1 :]: form
        for form in forms
        for place, letter in enumerate(form)
        if letter == "'"
    }
    # The published table has this one the wrong way round.
    return table | {"somebody'd": "somebodyd"}


CONTRACTIONS = _contractions(_FORMS.split())


def normalize_answer(text: str) -> str:
    """The string under which two answers count as the same.

    In order: lower case; commas and question marks out; "'s" apart; punctuation; full stops; number
    words none .. ten as digits; articles out; apostrophes into contractions.
    """
    text = text.lower().replace(",", "").replace("?", "").replace("'s", " 's").strip()
    text = text.replace("\n", " ").replace("\t", " ").strip()
    words = (NUMBER_WORDS.get(word, word) for word in _without_punctuation(text).split())
    kept = (word for word in words if word not in ARTICLES)
    return " ".join(CONTRACTIONS.get(word, word) for word in kept)


def _without_punctuation(text: str) -> str:
    """A mark that touches a space anywhere goes everywhere; any other becomes a space.

    The published rule also deletes all marks of a string with digit,digit: no comma is left here.
    """
    stripped = text
    for mark in PUNCTUATION:
        touches = f"{mark} " in text or f" {mark}" in text
        stripped = stripped.replace(mark, "" if touches else " ")
    return _FULL_STOP.sub("", stripped)


def vqa_accuracy(prediction: str, golds: Sequence[str]) -> float:
    """Mean over golds i of min(1, matches among the other golds / 3): 0 .. 1.

    With m of ten golds equal to the prediction it is 0, .3, .6, .9, 1 for m = 0, 1, 2, 3, 4 and
    more; the shorter min(m / 3, 1) is another metric. Fewer than four golds cannot reach 1.

    Raises:
        UserError: no golds.
    """
    if not golds:
        raise UserError("VQA accuracy: expected golds, got none")
    wanted = normalize_answer(prediction)
    matches = [normalize_answer(gold) == wanted for gold in golds]
    total = sum(matches)
    return sum(min(1.0, (total - match) / 3) for match in matches) / len(matches)
