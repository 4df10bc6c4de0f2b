"""Traces as one HTML page that needs nothing else: readable on a phone, without colour, by ear.

The template is assets/trace.html.jinja; everything that it shows is put into words here. Pictures
stand in the page once each, as data: URIs, and are drawn anew in every round.
"""

import base64
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from PIL import Image

from tiger_jax.embedded import ASSETS
from tiger_jax.models.patch_boxes import BASE, CROP, Box, even_patches
from tiger_jax.traces.story import (
    ACCEPTED,
    BONUS,
    REJECTED,
    REPLACEMENT,
    UNJUDGED,
    Mark,
    RoundStory,
    Story,
    Token,
    number_text,
)
from tiger_jax.traces.views import View

TEMPLATE = "trace.html.jinja"
LOSSLESS = 256 * 256
"""Pixels up to which a picture is a PNG; larger ones are JPEG."""
OVERVIEW = 16
"""Views shown before the rounds; others are shown where they are routed from."""
GAP = 0.02
"""Between the pictures of one frame, as a share of their width."""
THIN, THICK = 1.5, 4.0
FAINT = 0.45
_LEGEND = ((ACCEPTED, "accepted"), (REJECTED, "rejected"), (REPLACEMENT, "replacement"),
           (BONUS, "bonus"), (UNJUDGED, "not judged"))  # fmt: skip


def write_page(path: Path, stories: Sequence[Story], settings: Mapping[str, Any]) -> None:
    """The page of some requests. Raises OSError.

    What UTF-8 cannot hold, as names of folders may, is written as `\\udXXX`.
    """
    path.write_text(render(stories, settings), encoding="utf-8", errors="backslashreplace")


def render(stories: Sequence[Story], settings: Mapping[str, Any]) -> str:
    """The page as text.

    Args:
        settings: the row of names and values above it.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ASSETS), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["visible"] = visible
    lengths = [round_.accepted for story in stories for round_ in story.rounds]
    return environment.get_template(TEMPLATE).render(
        title="Speculative decoding, round by round", settings=settings,
        legend=[Token(text, fate) for fate, text in _LEGEND], explained=explain(stories, settings),
        summary=summarise(stories), histogram=histogram(lengths),
        stories=[_story(number, story) for number, story in enumerate(stories)],
    )  # fmt: skip


def visible(text: str) -> str:
    """Text whose white space can be seen where it is all there is, and line ends anywhere."""
    text = text.replace("\n", "\u23ce").replace("\t", "\u21e5")
    return text.replace(" ", "\u2423") if not text.strip() else text


def explain(stories: Sequence[Story], settings: Mapping[str, Any]) -> str:
    """What the outlines of this page mean."""
    if not any(story.views for story in stories):
        return "No picture was shown."
    if settings.get("k") == "all":
        return "This drafter sees all visual tokens: none is routed, and no patch is outlined."
    if all(round_.marks is None for story in stories for round_ in story.rounds):
        return "This drafter does not route: no patch is outlined."
    words = ["Outlined: the visual tokens routed to the drafter in a round; the thicker and fuller "
             "the line, the higher the score; numbers are ranks."]  # fmt: skip
    parts = {mark.place for story in stories for round_ in story.rounds
             for mark in round_.marks or ()}  # fmt: skip
    if any(part.startswith(CROP) for part in parts):
        words.append("Solid orange: patches of the crops.")
    if any(part.startswith(BASE) for part in parts):
        words.append("Dashed blue: patches of the base view, the whole picture in one tile.")
    pooled = max(story.pooled for story in stories)
    if pooled == 1:
        words.append("Dotted: the pooled token, the mean of all patches, always seen.")
    elif pooled:
        words.append(f"Dotted: the {pooled} pooled tokens, means of their cells, always seen.")
    return " ".join(words)


def summarise(stories: Sequence[Story]) -> str:
    """Counts and the mean accepted length."""
    rounds = [round_ for story in stories for round_ in story.rounds]
    if not rounds:
        return ""
    mean = sum(round_.accepted for round_ in rounds) / len(rounds)
    tokens = sum(story.tokens for story in stories)
    text = f"{tokens} tokens in {len(rounds)} rounds: mean A {mean:.2f}, tau {mean + 1:.2f}"
    timed = sorted(round_.milliseconds for round_ in rounds if not round_.compiled)
    if timed:
        text += f", median round {timed[len(timed) // 2]:.1f} ms"
    return text + "."


def histogram(lengths: Sequence[int]) -> list[dict[str, Any]]:
    """Rounds of each accepted length from 0 to the largest; bars as a share of the longest."""
    if not lengths:
        return []
    counts = Counter(lengths)
    most = max(counts.values())
    return [
        {"accepted": n, "rounds": counts[n], "percent": round(100 * counts[n] / most, 1)}
        for n in range(max(lengths) + 1)
    ]


def _story(number: int, story: Story) -> dict[str, Any]:
    """One request as the template reads it."""
    shown = range(min(len(story.views), OVERVIEW))
    used = sorted({view for round_ in story.rounds for view in round_.views} | {*shown})
    left = len(story.views) - len(shown)
    return {
        "id": story.id, "prompt": story.prompt, "answer": story.answer, "error": story.error,
        "facts": _facts(story),
        "pictures": [p for view in used for p in _pictures(f"p{number}-{view}", story.views[view])],
        "overview": [_view(f"p{number}-{view}", story.views[view]) for view in shown],
        "more_views": f"{left} more frames or pictures, shown where they are routed from."
        if left else "",
        "rounds": [_round(number, round_, story) for round_ in story.rounds],
    }  # fmt: skip


def _facts(story: Story) -> str:
    drawn = ", ".join(f"{name} {number_text(value)}" for name, value in story.settings.items())
    ends = {"stop": "ended by its end token", "stop_string": "ended by a stop text",
            "length": "ended by the length limit"}.get(story.finish or "", "")  # fmt: skip
    rounds = len(story.rounds)
    return f"{story.tokens} tokens, the first from prefill, in {rounds} rounds; {ends}; {drawn}."


def _round(number: int, round_: RoundStory, story: Story) -> dict[str, Any]:
    marks = round_.marks or ()
    several = len(story.views) > 1
    return {
        "number": round_.number, "accepted": round_.accepted, "drafted": round_.drafted,
        "committed": round_.committed, "tokens": round_.tokens, "agrees": round_.agrees,
        "time": time_of(round_), "branches": branches_of(round_),
        "draft_label": draft_label(round_), "route_label": route_label(round_, story),
        "likeliest": " ".join(map(visible, round_.likeliest)),
        "views": [
            _routed_view(f"p{number}-{view}", story.views[view], story.pooled, round_.number,
                         [mark for mark in marks if mark.view == view])
            for view in round_.views
        ],
        "scores": [
            {"rank": mark.rank, "text": score_text(mark, story.views[mark.view], several)}
            for mark in marks
        ],
    }  # fmt: skip


def time_of(round_: RoundStory) -> str:
    """How long a round took."""
    if round_.compiled:
        return f"{round_.milliseconds / 1000:.1f} s, compilation included"
    return f"{round_.milliseconds:.1f} ms"


def branches_of(round_: RoundStory) -> str:
    """How much larger than the judged path a tree was."""
    if round_.nodes <= round_.drafted:
        return ""
    return f" on this path, {round_.nodes} in the tree"


def draft_label(round_: RoundStory) -> str:
    """What the tokens of a round are."""
    if round_.nodes > round_.drafted:
        return "the tree's accepted path, how it went on, and the verifier's own token"
    return "draft, and the verifier's own token"


def route_label(round_: RoundStory, story: Story) -> str:
    """What was routed, in words, also where nothing was."""
    if not story.views:
        return "no picture, nothing to route"
    if round_.marks is None:
        return "this drafter does not route"
    return f"{len(round_.marks)} routed tokens by score"


def score_text(mark: Mark, view: View, several: bool) -> str:
    """One routed token in words: its score, and where it stands."""
    where = f"{view.name}, {mark.place}" if several else mark.place
    note = "" if mark.box or "newline" in mark.place else " (padding, no box)"
    return f"score {mark.score:.3g} \u00b7 {where}{note}"


def _view(key: str, view: View) -> dict[str, Any]:
    """A view's canvas: its stills side by side, in the picture's own pixels."""
    height, width = view.size
    step = width * (1 + GAP)
    count = len(view.stills)
    return {
        "key": key, "name": view.name, "height": height,
        "width": _number(step * (count - 1) + width),
        "stills": [_number(step * number) for number in range(count)],
        "font": _number((0.045 if count == 1 else 0.06) * max(height, width)),
    }  # fmt: skip


def _routed_view(
    key: str, view: View, pooled: int, round_: int, marks: Sequence[Mark]
) -> dict[str, Any]:
    canvas = _view(key, view)
    ranks = ", ".join(str(mark.rank) for mark in marks)
    label = f"{view.name} in round {round_}: routed patches of rank {ranks}"
    boxed = drawing_order(marks)
    side = round(pooled**0.5)
    cells = even_patches("", *view.size, side, side) if pooled else []
    lefts = canvas["stills"]
    return canvas | {
        "label": label,
        "marks": [_outline(mark, left) for left in lefts for mark in boxed],
        "labels": [
            label for left in lefts for label in _labels(boxed, view.size, left, canvas["font"])
        ],
        "pooled": [_rectangle(cell.box, left) for left in lefts for cell in cells],
    }


def drawing_order(marks: Sequence[Mark]) -> list[Mark]:
    """Marks that have boxes: the best is drawn last, and dashed ones over solid ones, which show
    between the dashes."""
    boxed = [mark for mark in reversed(marks) if mark.box]
    return sorted(boxed, key=is_coarse)


def is_coarse(mark: Mark) -> bool:
    """Whether a patch is of the base view, whose patches are drawn dashed."""
    return mark.place.startswith(BASE)


def _outline(mark: Mark, left: float) -> dict[str, Any]:
    return _rectangle(mark.box, left) | {
        "coarse": is_coarse(mark),
        "stroke": round(THIN + (THICK - THIN) * mark.strength, 2),
        "opacity": round(FAINT + (1 - FAINT) * mark.strength, 2),
    }


def _labels(
    marks: Sequence[Mark], size: tuple[int, int], left: float, font: float
) -> list[dict[str, Any]]:
    """Ranks in the middle of their boxes, or on a corner of small ones, which a number would hide;
    boxes in one place share a label."""
    ranks: dict[tuple[float, float], list[int]] = {}
    for mark in marks:
        box = mark.box
        y, x = label_corner(mark)
        if min(box.bottom - box.top, box.right - box.left) >= 3 * font:
            y, x = (box.top + box.bottom) / 2, (box.left + box.right) / 2
        near = 0.6 * font  # from the picture's edge, so that no number is cut
        y, x = max(min(y, size[0] - near), near), max(min(x, size[1] - near), near)
        ranks.setdefault((_number(x + left), _number(y)), []).append(mark.rank)
    return [
        {"x": x, "y": y, "text": ",".join(map(str, sorted(own)))} for (x, y), own in ranks.items()
    ]


def label_corner(mark: Mark) -> tuple[float, float]:
    """(y, x) of the corner where a rank stands: crops have another one than what they are crops
    of, for both are often routed in one place."""
    if mark.place.startswith(CROP):
        return mark.box.bottom, mark.box.right
    return mark.box.top, mark.box.left


def _rectangle(box: Box, left: float) -> dict[str, float]:
    return {
        "x": _number(box.left + left), "y": _number(box.top),
        "width": _number(box.right - box.left), "height": _number(box.bottom - box.top),
    }  # fmt: skip


def _number(value: float | int) -> float:
    """Short in the page, and a hundredth of a pixel at worst."""
    return round(float(value), 2)


def _pictures(key: str, view: View) -> list[dict[str, Any]]:
    """What the page holds of a view; drawn at the size in which it was given."""
    height, width = view.size
    return [
        {"key": f"{key}-{number}", "width": width, "height": height, "uri": data_uri(still)}
        for number, still in enumerate(view.stills)
    ]


def data_uri(still: np.ndarray) -> str:
    """A still as a data: URI; the same bytes for the same pixels."""
    picture, file = Image.fromarray(still), io.BytesIO()
    if picture.width * picture.height <= LOSSLESS:
        kind = "png"
        picture.save(file, "PNG", optimize=True)
    else:
        kind = "jpeg"
        picture.save(file, "JPEG", quality=85)
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode('ascii')}"
