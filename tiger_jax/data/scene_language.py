"""The small grammar in which questions about a scene are asked, answered and judged.

A template holds slots ("It is in row {row}, column {column}."). The same template writes a sentence
and, as a regular expression, reads it back, so `answer_is_correct` compares facts and accepts every
wording that the grammar knows. Wordings are drawn with probabilities .55, .25 and .20.
clip_language.py adds the sentences about clips.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

SHAPES = ("circle", "square", "triangle", "star")
COLORS = ("red", "green", "blue", "gold", "purple", "black")
SIZES = ("small", "big")
DIGITS = tuple("0123456789")
NUMBERS = tuple(str(n) for n in range(13))
_WORDS = """
ant bear bee bird boat book box bus cake car cat coin corn cow cup desk dog door drum egg fig fish
fox frog ham hat jam key lake lamp leaf lion map milk moon nut owl pen pie pig rice ring rock ship
sun tea tree wolf
"""
WORDS = tuple(_WORDS.split())
PREFERENCE = (0.55, 0.25, 0.20)


@dataclass(frozen=True)
class Item:
    """One thing in a scene; `row` and `col` count from 0.

    `kind` is "shape", "word" or "digit"; `size` is "" unless it is a shape.
    """

    kind: str
    name: str
    color: str
    size: str
    row: int
    col: int


QUESTIONS: dict[str, tuple[str, ...]] = {  # the form of a question -> its wordings
    "read_all": (
        "Read the words in the picture.",
        "What does the picture say?",
        "What words are written in the picture?",
    ),
    "read_color": (
        "What word is written in {color}?",
        "Read the {color} word.",
        "What does the {color} word say?",
    ),
    "count": (
        "How many {noun} are there?",
        "Count the {noun}.",
        "How many {noun} are in the picture?",
    ),
    "color": (
        "What color is the {ref}?",
        "Which color does the {ref} have?",
        "What is the color of the {ref}?",
    ),
    "size": ("Is the {ref} big or small?", "What size is the {ref}?", "How big is the {ref}?"),
    "where": (
        "Where is the {ref}?",
        "Which row and column has the {ref}?",
        "Which place has the {ref}?",
    ),
    "what": (
        "What is in row {row}, column {column}?",
        "What does row {row}, column {column} have?",
        "Which thing is in row {row}, column {column}?",
    ),
    "describe": (
        "Describe the picture.",
        "What is in the picture?",
        "List the things in the picture.",
    ),
    "count_both": (
        "How many {noun} are in both pictures?",
        "Count the {noun} in both pictures.",
    ),
}
ANSWERS: dict[str, tuple[str, ...]] = {
    "read_all": ("It says {words}.", "The text is {words}.", "{words}."),
    "read_color": ("It says {words}.", "The word is {words}.", "{words}."),
    "count": ("There {be} {number}.", "I count {number}.", "{number}."),
    "color": ("It is {color}.", "The {ref} is {color}.", "{color}."),
    "size": ("It is {size}.", "The {ref} is {size}.", "{size}."),
    "where": (
        "It is in row {row}, column {column}.",
        "The {ref} is in row {row}, column {column}.",
        "row {row}, column {column}.",
    ),
    "what": ("It is {items}.", "There is {items}.", "{items}."),
    "describe": ("There is {items}.", "The picture shows {items}.", "I see {items}."),
}
ANSWERS["count_both"] = ANSWERS["count"]
KINDS = {
    "read": ("read_all", "read_color"),
    "count": ("count", "count_both"),
    "attribute": ("color", "size"),
    "describe": ("describe",),
    "place": ("where", "what"),
}
ASKED = ("read", "count", "attribute", "describe")
"""The kinds that every scene is asked. Places are for those who ask for them: to name the row and
column of a patch, a model as small as the embedded verifier needs far more training."""

_JOINS = (", ", " and ", ", then ")  # between two items of a list
_ITEM = {  # wordings of one item
    "shape": ("a {size} {color} {name}",),
    "word": ("the word {name} in {color}", "a {color} word {name}"),
    "digit": ("the digit {name} in {color}", "a {color} digit {name}"),
}
_SLOT = {  # what a slot holds, as an expression; words and items take any text and are parsed later
    **dict.fromkeys(("color", "before", "after"), "|".join(COLORS)),
    "size": "|".join(SIZES),
    "number": "|".join(NUMBERS),
    "row": "|".join(NUMBERS),
    "column": "|".join(NUMBERS),
    "be": "is|are",
    "noun": r"\w+(?: \w+)?",
    **dict.fromkeys(("ref", "other"), r"\w+(?: \w+){0,2}"),
}


def choose(rng: np.random.Generator, options: Sequence[str]) -> str:
    """One of up to three options with the falling probabilities of PREFERENCE."""
    draw = rng.random() * sum(PREFERENCE[: len(options)])
    for option, weight in zip(options, PREFERENCE, strict=False):
        draw -= weight
        if draw < 0:
            return option
    return options[-1]


def say_item(item: Item, rng: np.random.Generator) -> str:
    """A noun phrase with every attribute of the item but its place."""
    return choose(rng, _ITEM[item.kind]).format(size=item.size, color=item.color, name=item.name)


def join(phrases: Sequence[str], rng: np.random.Generator, joins: Sequence[str] = _JOINS) -> str:
    """The phrases in order, each separator drawn from `joins`."""
    text = phrases[0]
    for phrase in phrases[1:]:
        text += choose(rng, joins) + phrase
    return text


def parse_question(
    question: str, questions: dict[str, tuple[str, ...]] = QUESTIONS
) -> tuple[str, dict[str, str]]:
    """(form, slots) of a question in one of the wordings; ValueError for any other text."""
    for form, templates in questions.items():
        for slots in readings(templates, question):
            return form, slots
    raise ValueError(f"question: expected one of the scene grammar, got {question!r}")


def readings(templates: Sequence[str], text: str) -> Iterator[dict[str, str]]:
    """The slots of `text`, lower case, by each template that it fits."""
    for template in templates:
        if match := _pattern(template).fullmatch(_normal(text)):
            yield match.groupdict()


def answer_is_correct(form: str, facts: dict, answer: str) -> bool:
    """True if `answer` is one of the form's wordings and states exactly `facts`, slot -> value.

    Values: text; for `words` a tuple of words, for `items` a tuple of Item, both in reading order
    and complete.
    """
    return any(_agrees(said, facts) for said in readings(ANSWERS[form], answer))


def _agrees(said: dict[str, str], facts: dict) -> bool:
    return all(
        slot == "be" or _parse_slot(slot, text) == _normal_fact(facts[slot])
        for slot, text in said.items()
    )


def _normal(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".?")


@cache
def _pattern(template: str) -> re.Pattern:
    """The template as an expression with one named group a slot."""
    parts = re.split(r"\{(\w+)\}", _normal(template))
    for i in range(1, len(parts), 2):
        parts[i] = f"(?P<{parts[i]}>{_SLOT.get(parts[i], '.+')})"
    for i in range(0, len(parts), 2):
        parts[i] = re.escape(parts[i])
    return re.compile("".join(parts))


def _parse_slot(slot: str, text: str):
    if slot == "words":
        return tuple(re.split(r", then |, | and ", text))
    if slot == "items":
        return tuple(parse_item(phrase) for phrase in re.split(r", then |, | and ", text))
    return text


def parse_item(phrase: str) -> tuple[str, ...] | None:
    """(kind, name, color, size), or None for anything that is not one well-formed item."""
    names = {"shape": SHAPES, "word": WORDS, "digit": DIGITS}
    for kind, templates in _ITEM.items():
        for template in templates:
            pattern = _pattern(template.replace("{name}", "{" + kind + "}"))
            match = pattern.fullmatch(phrase)
            if match and match[kind] in names[kind]:
                found = match.groupdict()
                return kind, found[kind], found["color"], found.get("size", "")
    return None


def _normal_fact(value):
    if isinstance(value, tuple) and value and isinstance(value[0], Item):
        return tuple(item_facts(item) for item in value)
    return value


def item_facts(item: Item) -> tuple[str, ...]:
    """What `parse_item` reads in a right phrase for the item."""
    return item.kind, item.name, item.color, item.size


def grammar_texts() -> Iterator[str]:
    """Every text that sentences are built from; the tokenizer takes its vocabulary from here.

    A question starts a line; everything else follows a space.
    """
    yield from template_texts(QUESTIONS.values())
    for text in template_texts((*ANSWERS.values(), *_ITEM.values())):
        yield " " + text
    yield from (" " + word for word in (*COLORS, *SIZES, *SHAPES, *NUMBERS, *WORDS, "is", "are"))
    yield from (f" {shape}s" for shape in SHAPES)
    yield from (*_JOINS, " words", " digits", " shapes", " things")


def opening_texts() -> Iterator[str]:
    """The texts that begin an answer, for a chat template in which it starts a line."""
    yield from template_texts((*ANSWERS.values(), *_ITEM.values()))
    yield from (*COLORS, *SIZES, *NUMBERS, *WORDS)


def template_texts(groups: Iterable[Sequence[str]]) -> Iterator[str]:
    """The templates with their slots made blank."""
    return (re.sub(r"\{\w+\}", "#", template) for templates in groups for template in templates)
