"""The pairs that come with the package: their folders, their drafters, and something to show.

Small models, really trained; how: assets/README.md. No import here is heavy: the command line
names its choices by this file.
"""

from pathlib import Path
from typing import NamedTuple

from tiger_jax.errors import UserError

ASSETS = Path(__file__).parent / "assets"
PAIRS = ("tiny_llava", "tiny_qwen3_vl")
"""The first one is the default."""
VIDEO_PAIRS = ("tiny_qwen3_vl",)
"""Those that were trained on videos, and show one."""
VLM = "vlm"
HEADS = ("tiger_head", "eagle2", "eagle3", "vispec", "medusa")
KINDS = (*HEADS[:1], VLM, *HEADS[1:])
"""Drafters, the fastest first (docs/results.md): heads on the verifier's states, or a small model
of its own."""
HEAD_SELECTORS = ("tiger", "random")
"""What heads know."""


class Demo(NamedTuple):
    """A question that shows what a pair can do."""

    images: list[str]
    videos: list[str]
    prompt: str


def verifier(pair: str = PAIRS[0]) -> Path:
    """The verifier's folder. Raises UserError for an unknown pair."""
    return _folder(pair) / "verifier"


def drafter(selector: str | None = None, kind: str | None = None, pair: str = PAIRS[0]) -> Path:
    """A drafter's folder: one of the heads, or a small model that was trained to see all visual
    tokens, or a few routed ones.

    Args:
        kind: by default the fastest that the pair has and that knows the selector.

    Raises:
        UserError: an unknown pair, or a kind that it has no drafter of.
    """
    kinds = kinds_of(pair)
    if kind is None:
        routes = selector in (None, *HEAD_SELECTORS)
        kind = kinds[0] if routes else VLM
    if kind not in kinds:
        raise UserError(f"drafter kind: expected one of {', '.join(kinds)} for {pair}, got {kind}")
    if kind != VLM:
        return _folder(pair) / "heads" / kind
    return _folder(pair) / ("drafter" if selector == "full" else "tiger_drafter")


def kinds_of(pair: str) -> tuple[str, ...]:
    """The kinds of drafters that a pair has."""
    heads = _folder(pair) / "heads"
    return tuple(kind for kind in KINDS if kind == VLM or (heads / kind).is_dir())


def demo(pair: str = PAIRS[0]) -> Demo:
    """A video where the pair was trained on them, else a picture."""
    folder = _folder(pair)
    if pair in VIDEO_PAIRS:
        return Demo([], [str(folder / "demo.gif")], "Describe the video.")
    return Demo([str(folder / "demo.png")], [], "Describe the picture.")


def _folder(pair: str) -> Path:
    if pair not in PAIRS:
        raise UserError(f"pair: expected one of {', '.join(PAIRS)}, got {pair!r}")
    return ASSETS / pair
