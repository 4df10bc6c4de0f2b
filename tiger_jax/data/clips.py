"""Short procedural clips with exact answers: the videos of the embedded Qwen3-VL pair.

A clip is three stills of a 4x4 page with 2 to 4 items. Between neighbouring stills exactly one
thing happens: an item moves, a new one appears, a shape changes its colour. Everything follows from
(seed, index), as for scenes, and clips with index >= scenes.HELD_OUT are never trained on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import UInt8

from tiger_jax.data.clip_language import (
    ASKED_CLIP,
    CLIP_KINDS,
    CLIP_QUESTIONS,
    EVENTS,
    Event,
    answer_is_correct,
    reference,
    say_answer,
)
from tiger_jax.data.scene_drawing import CELL, clutter, draw
from tiger_jax.data.scene_language import (
    COLORS,
    DIGITS,
    SHAPES,
    SIZES,
    WORDS,
    Item,
    choose,
    parse_question,
)
from tiger_jax.data.scenes import QA
from tiger_jax.data.videos import Video

STILLS = 3
PICTURES_A_STILL = 2
"""Sampled pictures a still lasts: the pair that the tower joins into one frame is one still."""
FPS = 2.0
GRID = 4
MAX_ITEMS = 4


@dataclass(frozen=True)
class Clip:
    """Three stills and the two events between them.

    `items` are those of each still; a thing has the same index in all three tuples.
    """

    stills: UInt8[np.ndarray, "3 H W 3"]
    items: tuple[tuple[Item, ...], ...]
    events: tuple[Event, ...]
    qa: tuple[QA, ...]

    @property
    def pictures(self) -> UInt8[np.ndarray, "6 H W 3"]:
        """The sampled pictures, FPS a second."""
        return self.stills.repeat(PICTURES_A_STILL, axis=0)

    @property
    def seconds(self) -> tuple[float, ...]:
        """The time of each of `pictures`."""
        return tuple(i / FPS for i in range(STILLS * PICTURES_A_STILL))

    @property
    def shown(self) -> Video:
        """What a prompt shows of it."""
        return Video(self.pictures, self.seconds)

    def is_correct(self, kind: str, question: str, answer: str) -> bool:
        """True if `answer`, in any wording, states exactly the right facts for `question`."""
        form, slots = parse_question(question, CLIP_QUESTIONS)
        if form not in CLIP_KINDS[kind]:
            raise ValueError(f"question {question!r}: expected kind {kind!r}, got form {form!r}")
        return answer_is_correct(form, facts(self.items, self.events, form, slots), answer)


def make_clip(seed: int, index: int, hard: bool = False) -> Clip:
    """The clip number `index` of the stream `seed`; `hard` adds clutter behind the items."""
    key = [seed, index, hard, STILLS]
    rng = np.random.default_rng(key)
    items, events = _draw_story(rng)
    side = GRID * CELL
    page = clutter(GRID, GRID, rng) if hard else np.full((side, side, 3), 255, np.uint8)
    stills = np.stack([_draw_still(still, page, key) for still in items])
    return Clip(stills, items, events, tuple(_ask(items, events, kind, rng) for kind in ASKED_CLIP))


def ask_more(clip: Clip, kinds: Sequence[str], seed: Sequence[int]) -> tuple[QA, ...]:
    """Further questions of these kinds about a clip; the same `seed` draws the same ones."""
    rng = np.random.default_rng(seed)
    return tuple(_ask(clip.items, clip.events, kind, rng) for kind in kinds)


def facts(
    items: Sequence[tuple[Item, ...]],
    events: Sequence[Event],
    form: str,
    slots: dict[str, str],
) -> dict:
    """What a right answer to the question (form, slots) has to say: slot -> value."""
    if form == "story":
        return {"events": tuple(events)}
    if form.startswith("what_"):
        return {"event": _only([e for e in events if f"what_{e.kind}" == form], form)}
    if form in ("first", "last"):
        return {"event": events[0 if form == "first" else -1]}
    if form == "which_first":
        asked = {slots["ref"], slots["other"]}
        found = [event for event in events if reference(event.after) in asked]
        if len(found) != len(events):
            raise ValueError(f"events of {sorted(asked)}: expected both, found {len(found)}")
        return {"event": found[0]}
    still = items[0] if form.endswith("_start") else items[-1]
    if form.startswith("count"):
        return {"number": str(len(still)), "be": "is" if len(still) == 1 else "are"}
    item = _only([item for item in still if reference(item) == slots["ref"]], slots["ref"])
    return {"ref": slots["ref"], "color": item.color}


def _draw_story(
    rng: np.random.Generator,
) -> tuple[tuple[tuple[Item, ...], ...], tuple[Event, ...]]:
    """The items of each still, and the events: of two kinds, so that each can be asked for, and of
    two things."""
    kinds = rng.permutation(tuple(EVENTS))[: STILLS - 1].tolist()
    total = int(rng.integers(2 + ("appear" in kinds), MAX_ITEMS + 1))
    *cells, free = rng.permutation(GRID * GRID)[: total + 1].tolist()
    things = _draw_items(rng, cells)
    start = things[: total - ("appear" in kinds)]
    recolored = int(rng.choice([i for i, item in enumerate(start) if item.kind == "shape"]))
    moved = int(rng.choice([i for i in range(len(start)) if i != recolored]))
    stills, events = [tuple(start)], []
    for kind in kinds:
        still = stills[-1]
        if kind == "appear":
            events.append(Event(kind, None, things[-1]))
            stills.append((*still, things[-1]))
            continue
        number = recolored if kind == "color" else moved
        before = still[number]
        if kind == "color":
            others = [color for color in COLORS if color != before.color]
            after = replace(before, color=others[rng.integers(len(others))])
        else:
            row, col = divmod(free, GRID)
            after = replace(before, row=row, col=col)
        events.append(Event(kind, before, after))
        stills.append((*still[:number], after, *still[number + 1 :]))
    return tuple(stills), tuple(events)


def _draw_items(rng: np.random.Generator, cells: Sequence[int]) -> list[Item]:
    """An item a cell, the first one a shape; no name comes twice, so each can be pointed at."""
    kinds = ["shape", *rng.choice(("shape", "word", "digit"), len(cells) - 1, p=(0.5, 0.3, 0.2))]
    names = {"shape": SHAPES, "word": WORDS, "digit": DIGITS}
    names = {kind: rng.permutation(options).tolist() for kind, options in names.items()}
    items = []
    for cell, kind in zip(cells, map(str, kinds), strict=True):
        color, size = COLORS[rng.integers(len(COLORS))], SIZES[rng.integers(len(SIZES))]
        size = size if kind == "shape" else ""
        items.append(Item(kind, names[kind].pop(), color, size, *divmod(cell, GRID)))
    return items


def _draw_still(
    items: Sequence[Item], page: UInt8[np.ndarray, "H W 3"], key: Sequence[int]
) -> UInt8[np.ndarray, "H W 3"]:
    """Each thing has a generator of its own: where its drawing lies in its cell stays the same."""
    still = page.copy()
    for number, item in enumerate(items, start=1):
        draw([item], still, np.random.default_rng([*key, number]))
    return still


def _ask(
    items: Sequence[tuple[Item, ...]], events: Sequence[Event], kind: str, rng: np.random.Generator
) -> QA:
    """A question of this kind that has exactly one answer."""
    options = list(_possible_questions(items, events, kind, rng))
    form = str(rng.choice(sorted({form for form, _ in options})))
    of_form = [slots for name, slots in options if name == form]
    slots = of_form[rng.integers(len(of_form))]
    question = choose(rng, CLIP_QUESTIONS[form]).format(**slots)
    return QA(kind, question, say_answer(form, facts(items, events, form, slots), rng))


def _possible_questions(
    items: Sequence[tuple[Item, ...]], events: Sequence[Event], kind: str, rng: np.random.Generator
) -> Iterator[tuple[str, dict[str, str]]]:
    if kind == "event":
        yield from ((f"what_{event.kind}", {}) for event in events)
    elif kind == "order":
        named = rng.permutation([reference(event.after) for event in events]).tolist()
        yield "first", {}
        yield "last", {}
        yield "which_first", dict(zip(("ref", "other"), named, strict=True))
    elif kind == "state":
        changed = [event.before for event in events if event.kind == "color"]
        for when, still in (("start", items[0]), ("end", items[-1])):
            yield f"count_{when}", {}
            # Half of the questions are about what changes: for the rest, any still will do.
            for item in (*still, *changed * len(still)):
                yield f"color_{when}", {"ref": reference(item)}
    else:
        yield "story", {}


def _only(found: list, what: str):
    if len(found) != 1:
        raise ValueError(f"{what}: expected one in the clip, found {len(found)}")
    return found[0]
