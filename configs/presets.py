"""The pairs by name: where their weights are, and the paper's sizes for them.

A config takes the name behind its file: --config configs/kd.py:llava_next
"""

from pathlib import Path

ASSETS = Path(__file__).parents[1] / "tiger_jax" / "assets"

EMBEDDED = "tiny_llava"
PAIRS = {
    EMBEDDED: {
        "verifier": str(ASSETS / "tiny_llava" / "verifier"),
        "drafter": str(ASSETS / "tiny_llava" / "drafter"),
    },
    # Weights are not ours to give: name their folders with --config.verifier and --config.model.
    "llava_next": {"verifier": "llava-v1.6-vicuna-13b-hf", "drafter": "llava-v1.6-vicuna-7b-hf"},
}


def pair(name: str | None) -> dict[str, str]:
    """Folders of a pair; the embedded one by default. Raises ValueError for an unknown name."""
    name = name or EMBEDDED
    if name not in PAIRS:
        raise ValueError(f"pair: expected one of {', '.join(PAIRS)}, got {name!r}")
    return PAIRS[name]
