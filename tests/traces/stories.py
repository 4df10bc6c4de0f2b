"""Stories made by hand for tests of what is drawn from them."""

import numpy as np

from tiger_jax.models.patch_boxes import Box
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
)
from tiger_jax.traces.views import View

SETTINGS = {"drafter": "a <drafter>", "verifier": "v", "selector": "tiger", "k": 2, "g": 3,
            "T": "0", "seed": "0"}  # fmt: skip


def made_view(name="picture 1", height=60, width=90, stills=1):
    rng = np.random.default_rng(len(name))
    pictures = rng.integers(0, 256, (stills, height, width, 3), dtype=np.uint8)
    return View(name, (height, width), tuple(pictures))


def made_round(number, tokens, marks=(), **fields):
    """A round of (text, fate) tokens."""
    tokens = tuple(Token(*token) for token in tokens)
    drafted = [token for token in tokens if not token.is_own]
    known = {
        "committed": "so far", "likeliest": (), "nodes": len(drafted), "milliseconds": 4.2,
        "compiled": False, "agrees": True,
    }  # fmt: skip
    accepted = sum(token.fate == ACCEPTED for token in drafted)
    return RoundStory(number=number, tokens=tokens, accepted=accepted, drafted=len(drafted),
                      marks=marks, **known | fields)  # fmt: skip


BEST = Mark(1, 2.5, 1.0, 0, "crop, row 1, column 2", Box(10.0, 20.0, 25.0, 45.0))
LAST = Mark(2, 0.5, 0.0, 0, "base view, row 3, column 1", Box(30.0, 0.0, 40.0, 12.0))
LINE = Mark(3, 0.25, 0.0, 0, "newline of crop line 2", None)
ROUNDS = (
    made_round(1, [(" a", ACCEPTED), (" cat", ACCEPTED), (" on", REJECTED), (" in", REPLACEMENT),
                   (" a", REJECTED)], (BEST, LAST, LINE), compiled=True),
    made_round(2, [(" the", ACCEPTED), (" red", ACCEPTED), (" box", ACCEPTED), (".", BONUS)],
               (BEST,)),
    made_round(3, [("\n", ACCEPTED), ("</s>", ACCEPTED), (" x", UNJUDGED)], ()),
)  # fmt: skip


def made_story(**fields):
    known = {
        "id": "1", "prompt": "What <b>is</b> & \"this\"?", "answer": "a <script>cat</script>",
        "finish": "stop", "tokens": 10, "views": (made_view(),), "rounds": ROUNDS,
        "settings": {"T": 0.0, "seed": 0},
    }  # fmt: skip
    return Story(**known | fields)
