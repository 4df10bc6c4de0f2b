"""MM-Vet without its judge: a string match under its own name, and the file for the judge.

The official score is GPT-4's. `mmvet_string_match` is not that number and is never called MM-Vet.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from tiger_jax.errors import UserError

_ID = re.compile(r"v1_(\d+)")


def mmvet_string_match(prediction: str, gold: str) -> float:
    """Best over <OR> of the share of <AND> parts that stand in the prediction: 0 .. 1.

    Case and runs of spaces do not matter. A part must stand as whole words, and a number as a whole
    number: 5 is neither in "-5" nor in "5.2".
    """
    text = _plain(prediction)
    return max(_share(text, wanted.split("<AND>")) for wanted in gold.split("<OR>"))


def _share(text: str, parts: list[str]) -> float:
    parts = [plain for part in parts if (plain := _plain(part).rstrip(".?!"))]
    if not parts:
        return 0.0
    return sum(_stands_in(part, text) for part in parts) / len(parts)


def _stands_in(part: str, text: str) -> bool:
    before = r"(?<!\w)"
    if part[0].isdigit():
        before += r"(?<!\d[.,])(?<![\s=(]-)"  # the tail of a decimal; another sign
    after = r"(?!\w)" + (r"(?![.,]\d)" if part[-1].isdigit() else "")
    # The space lets a sign at the very start be seen as one.
    return re.search(f"{before}{re.escape(part)}{after}", f" {text}") is not None


def _plain(text: str) -> str:
    return " ".join(text.lower().split())


def write_predictions(path: str | os.PathLike, predictions: Mapping[str, str]) -> None:
    """Writes {"v1_0": text, ...} in the order of the ids: the input of MM-Vet's evaluator.

    Args:
        predictions: the model's text by the question's own id.

    Raises:
        UserError: an id that is not v1_<number>, or a text that is none.
    """
    for key, text in predictions.items():
        if _ID.fullmatch(key) is None:
            raise UserError(f"MM-Vet id: expected v1_<number>, got {key!r}")
        if not isinstance(text, str):
            raise UserError(f"MM-Vet prediction {key}: expected a text, got {text!r}")
    ordered = dict(sorted(predictions.items(), key=lambda pair: int(_ID.fullmatch(pair[0])[1])))
    lines = json.dumps(ordered, indent=1, ensure_ascii=False) + "\n"
    Path(path).write_text(lines, encoding="utf-8")
