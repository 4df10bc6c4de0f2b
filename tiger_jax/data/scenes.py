"""Procedural pictures with exact answers: what the embedded pair is trained and judged on.

A scene is a white page of 28-pixel cells, 4 to 6 of them filled with a coloured shape, word or
digit, and four questions (read, count, attribute, describe). Everything follows from (seed, index):
no state, no files. `hard` adds clutter behind the items. Scenes with index >= HELD_OUT are never
trained on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32, UInt8

from tiger_jax.data.scene_drawing import CELL, clutter, draw
from tiger_jax.data.scene_language import (
    ANSWERS,
    ASKED,
    COLORS,
    DIGITS,
    KINDS,
    QUESTIONS,
    SHAPES,
    SIZES,
    WORDS,
    Item,
    answer_is_correct,
    choose,
    join,
    parse_question,
    say_item,
)

HELD_OUT = 1_000_000
CONTENT_CLASSES = (
    "empty",
    *(f"{size} {shape}" for size in SIZES for shape in SHAPES),
    *(f"word {word}" for word in WORDS),
    *(f"digit {digit}" for digit in DIGITS),
)
COLOR_CLASSES = ("none", *COLORS)
NUM_CONTENT_CLASSES = len(CONTENT_CLASSES)
NUM_COLOR_CLASSES = len(COLOR_CLASSES)
_CONTENT_INDEX = {name: i for i, name in enumerate(CONTENT_CLASSES)}


@dataclass(frozen=True)
class QA:
    """One question with one right answer; `kind` is read, count, attribute or describe."""

    kind: str
    question: str
    answer: str


@dataclass(frozen=True)
class Scene:
    """`items` in reading order (row by row); `grid` is (rows, columns) of cells."""

    image: UInt8[np.ndarray, "H W 3"]
    items: tuple[Item, ...]
    grid: tuple[int, int]
    qa: tuple[QA, ...]

    @property
    def shown(self) -> UInt8[np.ndarray, "H W 3"]:
        """What a prompt shows of it: the image. That of a clip is a video."""
        return self.image

    @property
    def cell_content(self) -> Int32[np.ndarray, " cells"]:
        """Index into CONTENT_CLASSES of each cell, row by row."""
        labels = np.zeros(self.grid, np.int32)
        for item in self.items:
            kind = item.size if item.kind == "shape" else item.kind
            labels[item.row, item.col] = _CONTENT_INDEX[f"{kind} {item.name}"]
        return labels.ravel()

    @property
    def cell_color(self) -> Int32[np.ndarray, " cells"]:
        """Index into COLOR_CLASSES of each cell, row by row."""
        labels = np.zeros(self.grid, np.int32)
        for item in self.items:
            labels[item.row, item.col] = COLOR_CLASSES.index(item.color)
        return labels.ravel()

    def is_correct(self, kind: str, question: str, answer: str) -> bool:
        """True if `answer`, in any wording, states exactly the right facts for `question`."""
        form, slots = parse_question(question)
        if form not in KINDS[kind]:
            raise ValueError(f"question {question!r}: expected kind {kind!r}, got form {form!r}")
        return answer_is_correct(form, facts(self.items, form, slots), answer)


def make_scene(seed: int, index: int, hard: bool = False, grid: tuple[int, int] = (4, 4)) -> Scene:
    """The scene number `index` of the stream `seed`.

    A `grid` of (4, 8) cells is a wide picture, (8, 4) a tall one.
    """
    rng = np.random.default_rng([seed, index, hard, *grid])
    rows, cols = grid
    items = _draw_items(rng, rows, cols)
    page = (
        clutter(rows, cols, rng) if hard else np.full((rows * CELL, cols * CELL, 3), 255, np.uint8)
    )
    image = draw(items, page, rng)
    qa = tuple(_ask(items, kind, rng) for kind in ASKED)
    return Scene(image, items, grid, qa)


def ask_more(scene: Scene, kinds: Sequence[str], seed: Sequence[int]) -> tuple[QA, ...]:
    """Further questions of these kinds about a scene; the same `seed` draws the same ones."""
    rng = np.random.default_rng(seed)
    return tuple(_ask(scene.items, kind, rng) for kind in kinds)


def make_pair_question(first: Scene, second: Scene, seed: int = 0) -> QA:
    """A question over two pictures: how many of something there are in both together."""
    rng = np.random.default_rng([seed, len(first.items), len(second.items)])
    items = (*first.items, *second.items)
    return _fill(items, "count", "count_both", {"noun": _noun(items, rng)}, rng)


def pair_is_correct(first: Scene, second: Scene, question: str, answer: str) -> bool:
    """`Scene.is_correct` for `make_pair_question`."""
    form, slots = parse_question(question)
    return answer_is_correct(form, facts((*first.items, *second.items), form, slots), answer)


def facts(items: tuple[Item, ...], form: str, slots: dict[str, str]) -> dict:
    """What a right answer to the question (form, slots) has to say: slot -> value."""
    if form.startswith("count"):
        number = sum(_is_a(item, slots["noun"]) for item in items)
        return {"number": str(number), "be": "is" if number == 1 else "are"}
    if form == "read_all":
        return {"words": tuple(item.name for item in items if item.kind == "word")}
    if form == "read_color":
        found = [item for item in items if (item.kind, item.color) == ("word", slots["color"])]
        return {"words": tuple(item.name for item in found)}
    if form == "describe":
        return {"items": items}
    if form == "what":
        place = int(slots["row"]) - 1, int(slots["column"]) - 1
        return {"items": tuple(item for item in items if (item.row, item.col) == place)}
    found = [item for item in items if slots["ref"] in _references(item)]
    if len(found) != 1:
        raise ValueError(f"the {slots['ref']}: expected one in the scene, found {len(found)}")
    (item,) = found
    place = {"row": str(item.row + 1), "column": str(item.col + 1)}
    return {"ref": slots["ref"], "color": item.color, "size": item.size, **place}


def _draw_items(rng: np.random.Generator, rows: int, cols: int) -> tuple[Item, ...]:
    """4 to 6 items per 16 cells, at least one shape and one word.

    No word or digit comes twice, so each can be pointed at by name.
    """
    count = int(rng.integers(4, 7)) * rows * cols // 16
    cells = np.sort(rng.permutation(rows * cols)[:count]).tolist()
    kinds = ["shape", "word", *rng.choice(("shape", "word", "digit"), count - 2, p=(0.5, 0.3, 0.2))]
    words, digits = rng.permutation(WORDS).tolist(), rng.permutation(DIGITS).tolist()
    items = []
    for cell, order in zip(cells, rng.permutation(count), strict=True):
        kind, color = str(kinds[order]), COLORS[rng.integers(len(COLORS))]
        if kind == "shape":
            name, size = SHAPES[rng.integers(len(SHAPES))], SIZES[rng.integers(len(SIZES))]
        else:
            name, size = (words if kind == "word" else digits).pop(), ""
        items.append(Item(kind, name, color, size, *divmod(cell, cols)))
    return tuple(items)


def _ask(items: tuple[Item, ...], kind: str, rng: np.random.Generator) -> QA:
    """A question of this kind that has exactly one answer."""
    options = list(_possible_questions(items, kind, rng))
    form = str(
        rng.choice(sorted({form for form, _ in options}))
    )  # rare forms as often as common ones
    of_form = [slots for name, slots in options if name == form]
    return _fill(items, kind, form, of_form[rng.integers(len(of_form))], rng)


def _possible_questions(
    items: tuple[Item, ...], kind: str, rng: np.random.Generator
) -> Iterator[tuple[str, dict[str, str]]]:
    if kind == "describe":
        yield "describe", {}
    elif kind == "count":
        yield "count", {"noun": _noun(items, rng)}
    elif kind == "read":
        yield "read_all", {}
        colors = [item.color for item in items if item.kind == "word"]
        yield from (("read_color", {"color": c}) for c in colors if colors.count(c) == 1)
    elif kind == "place":
        for item in items:
            yield "what", {"row": str(item.row + 1), "column": str(item.col + 1)}
            yield from (("where", {"ref": ref}) for ref in _clear_references(items, item)[:1])
    else:
        for item in items:
            for form in ("color", "size") if item.kind == "shape" else ("color",):
                # A reference must not give the answer away.
                asked = getattr(item, form)
                clear = [r for r in _clear_references(items, item) if asked not in r.split()]
                yield from ((form, {"ref": ref}) for ref in clear[:1])


def _clear_references(items: tuple[Item, ...], item: Item) -> list[str]:
    """The ways to point at an item that fit no other one."""
    return [ref for ref in _references(item) if _count_refs(items, ref) == 1]


def _fill(items, kind: str, form: str, slots: dict[str, str], rng: np.random.Generator) -> QA:
    question = choose(rng, QUESTIONS[form]).format(**slots)
    said = {slot: _say(slot, value, rng) for slot, value in facts(items, form, slots).items()}
    return QA(kind, question, choose(rng, ANSWERS[form]).format(**said))


def _say(slot: str, value, rng: np.random.Generator) -> str:
    if slot == "items":
        return join([say_item(item, rng) for item in value], rng)
    return join(value, rng, (", ", " and ")) if slot == "words" else value


def _references(item: Item) -> tuple[str, ...]:
    """Ways to point at an item, shortest first."""
    if item.kind != "shape":
        return (f"{item.kind} {item.name}",)
    words = (item.size, item.color, item.name)
    return (words[2], " ".join(words[1:]), f"{words[0]} {words[2]}", " ".join(words))


def _count_refs(items: tuple[Item, ...], ref: str) -> int:
    return sum(ref in _references(item) for item in items)


def _noun(items: tuple[Item, ...], rng: np.random.Generator) -> str:
    """Something to count; four times in five it is there at least once."""
    nouns = [f"{shape}s" for shape in SHAPES] + [f"{color} things" for color in COLORS]
    nouns += ["shapes", "words", "digits", "small shapes", "big shapes"]
    if rng.random() < 0.8:
        nouns = [noun for noun in nouns if any(_is_a(item, noun) for item in items)]
    return nouns[rng.integers(len(nouns))]


def _is_a(item: Item, noun: str) -> bool:
    """Does the item count as one of `noun` ("circles", "red things", "big shapes", "words")?"""
    *adjectives, head = noun.split()
    heads = (
        {f"{item.name}s", f"{item.kind}s", "things"}
        if item.kind == "shape"
        else {f"{item.kind}s", "things"}
    )
    return head in heads and set(adjectives) <= {item.color, item.size}
