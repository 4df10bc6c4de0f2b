"""The pairs by name: where their weights are, and the paper's sizes for them.

A config takes the name behind its file: --config configs/kd.py:llava_next
"""

from pathlib import Path

from tiger_jax.embedded import PAIRS as EMBEDDED
from tiger_jax.models import published

ASSETS = Path(__file__).parents[1] / "tiger_jax" / "assets"

_PICTURES = ("read", "count", "attribute", "describe")
QUESTION_KINDS = {
    "tiny_llava": _PICTURES, "tiny_qwen3_vl": (*_PICTURES, "event", "order", "state", "story"),
}  # fmt: skip
"""What is asked about held-out scenes, and clips where a pair reads videos."""
CLIP_SHARE = {"tiny_llava": 0.0, "tiny_qwen3_vl": 0.5}
"""How much of what a pair learns from are clips."""
PAIRS = {
    **{
        name: {role: str(ASSETS / name / role) for role in ("verifier", "drafter")}
        for name in EMBEDDED
    },
    # Weights are not ours to give: name their folders with --config.verifier and --config.model.
    **{name: dict(zip(("verifier", "drafter"), names, strict=True))
       for name, names in published.PAIRS.items()},
}  # fmt: skip


def embedded(name: str | None) -> str:
    """A pair that comes with the package, the default one without a name; ValueError."""
    name = name or EMBEDDED[0]
    if name not in EMBEDDED:
        raise ValueError(f"pair: expected one of {', '.join(EMBEDDED)}, got {name!r}")
    return name


def run_name(stage: str, name: str) -> str:
    """A run's folder; the default pair's has no name behind it."""
    return f"runs/{stage}" if name == EMBEDDED[0] else f"runs/{stage}_{name}"


def pair(name: str | None) -> dict[str, str]:
    """Folders of a pair; the embedded one by default. Raises ValueError for an unknown name."""
    name = name or EMBEDDED[0]
    if name not in PAIRS:
        raise ValueError(f"pair: expected one of {', '.join(PAIRS)}, got {name!r}")
    return PAIRS[name]
