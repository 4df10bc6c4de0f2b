"""The sentences about clips: what happens, in which order, and what is so at the start and the end.

Templates are written and read back as in scene_language.py, whose machinery this uses. The answers
are whole sentences: no clip is answered in one word.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tiger_jax.data.scene_language import (
    ANSWERS,
    Item,
    choose,
    item_facts,
    join,
    parse_item,
    readings,
    say_item,
    template_texts,
)


@dataclass(frozen=True)
class Event:
    """One change between two neighbouring stills.

    `kind` is "color", "move" or "appear"; `before` is None for what appears.
    """

    kind: str
    before: Item | None
    after: Item


EVENTS: dict[str, tuple[str, ...]] = {  # wordings of one event; {item} has every attribute
    "color": (
        "the {ref} changes from {before} to {after}",
        "the {ref} turns from {before} to {after}",
    ),
    "move": ("the {ref} moves", "the {ref} changes place"),
    "appear": ("{item} appears", "{item} comes in"),
}
CLIP_QUESTIONS: dict[str, tuple[str, ...]] = {
    "what_color": ("What changes color?", "Which thing changes color?"),
    "what_move": ("What moves?", "Which thing moves?"),
    "what_appear": ("What appears?", "What is new?", "Which thing appears?"),
    "first": ("What happens first?", "What comes first?", "What changes first?"),
    "last": ("What happens last?", "What comes last?", "What changes last?"),
    "which_first": (
        "Which comes first, the {ref} or the {other}?",
        "What comes first, the {ref} or the {other}?",
    ),
    "color_start": (
        "What color is the {ref} at the start?",
        "Which color does the {ref} have at the start?",
    ),
    "color_end": (
        "What color is the {ref} at the end?",
        "Which color does the {ref} have at the end?",
    ),
    "count_start": (
        "How many things are there at the start?",
        "Count the things at the start.",
    ),
    "count_end": ("How many things are there at the end?", "Count the things at the end."),
    "story": ("Describe the video.", "What happens in the video?", "What does the video show?"),
}
_EVENT, _COLOR, _COUNT = ("{event}.",), ANSWERS["color"][:2], ANSWERS["count"][:2]
CLIP_ANSWERS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("what_color", "what_move", "what_appear"), _EVENT),
    **dict.fromkeys(("first", "last", "which_first"), _EVENT),
    **dict.fromkeys(("color_start", "color_end"), _COLOR),
    **dict.fromkeys(("count_start", "count_end"), _COUNT),
    "story": ("{events}.", "First {events}."),
}
CLIP_KINDS = {
    "event": ("what_color", "what_move", "what_appear"),
    "order": ("first", "last", "which_first"),
    "state": ("color_start", "color_end", "count_start", "count_end"),
    "story": ("story",),
}
ASKED_CLIP = tuple(CLIP_KINDS)
"""The kinds that every clip is asked."""

_JOINS = (", then ", " and then ")  # between two events of a story


def reference(item: Item) -> str:
    """How a clip's item is pointed at: none of its things share it, and no event changes it."""
    return item.name if item.kind == "shape" else f"{item.kind} {item.name}"


def say_event(event: Event, rng: np.random.Generator) -> str:
    """A clause, lower case."""
    slots = {"ref": reference(event.after), "item": say_item(event.after, rng)}
    if event.before is not None:
        slots |= {"before": event.before.color, "after": event.after.color}
    return choose(rng, EVENTS[event.kind]).format(**slots)


def say_answer(form: str, facts: dict, rng: np.random.Generator) -> str:
    """A right answer to a question of this form, in one of its wordings."""
    said = {slot: _say(slot, value, rng) for slot, value in facts.items()}
    answer = choose(rng, CLIP_ANSWERS[form]).format(**said)
    return answer[0].upper() + answer[1:]


def answer_is_correct(form: str, facts: dict, answer: str) -> bool:
    """True if `answer` is one of the form's wordings and states exactly `facts`, slot -> value.

    Values: text; for `event` an Event, for `events` all of them in order.
    """
    return any(
        all(slot == "be" or _agrees(slot, text, facts[slot]) for slot, text in said.items())
        for said in readings(CLIP_ANSWERS[form], answer)
    )


def grammar_texts() -> Iterator[str]:
    """Every text of these sentences that scene_language has not, for the tokenizer.

    An answer stands in the vocabulary twice: at the start of a line, and after a space.
    """
    yield from template_texts(CLIP_QUESTIONS.values())
    for text in template_texts((*CLIP_ANSWERS.values(), *EVENTS.values())):
        yield from (text, text[0].upper() + text[1:], f" {text}")
    yield from ("A", "The", *_JOINS)


def _say(slot: str, value, rng: np.random.Generator) -> str:
    if slot == "events":
        return join([say_event(event, rng) for event in value], rng, _JOINS)
    return say_event(value, rng) if slot == "event" else value


def _agrees(slot: str, text: str, fact) -> bool:
    if slot == "events":
        return _split_events(text) == [_event_facts(event) for event in fact]
    return _parse_event(text) == _event_facts(fact) if slot == "event" else text == fact


def _split_events(text: str) -> list[tuple | None]:
    for separator in _JOINS:
        text = text.replace(separator, "\n")
    return [_parse_event(clause) for clause in text.split("\n")]


def _parse_event(clause: str) -> tuple | None:
    """What `_event_facts` gives for the event that the clause tells, or None."""
    for kind, templates in EVENTS.items():
        for said in readings(templates, clause):
            if kind != "appear":
                return kind, *said.values()
            if (item := parse_item(said["item"])) is not None:
                return kind, item
    return None


def _event_facts(event: Event) -> tuple:
    if event.kind == "appear":
        return event.kind, item_facts(event.after)
    if event.kind == "move":
        return event.kind, reference(event.after)
    return event.kind, reference(event.after), event.before.color, event.after.color
