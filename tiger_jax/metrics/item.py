"""One scored question as plain values, and the counts that every report shows."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Item(NamedTuple):
    """A question with what the model answered and what is right."""

    uid: str
    prediction: str | None
    """The model's text; None: there is none, which is wrong and counted."""
    answers: tuple[str, ...] = ()
    """All golds; () where they are hidden."""
    ground_truth: str | None = None
    """The one gold: the letter of a choice, a label, a count as text."""
    choices: tuple[str, ...] | None = None
    """Texts without letters."""
    meta: Mapping[str, Any] = {}
    """The data set's own fields, by the keys of its reader."""
    n_images: int | None = None
    """Pictures of the question; None: not told."""
