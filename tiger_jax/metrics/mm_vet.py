"""MM-Vet without its judge: a string match under its own name.

The official score is GPT-4's; an evaluation writes the answers that this judge takes.
`mmvet_string_match` is not that number and is never called MM-Vet.
"""

import re


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
