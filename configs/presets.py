"""The pairs by name: where their weights are, and the paper's sizes for them.

A config takes the name behind its file: --config configs/kd.py:llava_next
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_collections

from tiger_jax.embedded import PAIRS as EMBEDDED
from tiger_jax.evaluation.exact_config import drafters_config
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


def runs(name: str) -> str:
    """The folder of a pair's runs; the default pair's lie in `runs` itself."""
    return "runs" if name == EMBEDDED[0] else f"runs/{name}"


def drafters(
    name: str | None, variants: Sequence[Mapping[str, Any]], **changes: Any
) -> ml_collections.ConfigDict:
    """A comparison of drafters of an embedded pair: its runs, its questions and, if it reads
    videos, as many clips as pictures. Arguments as `exact_config.drafters_config` has them."""
    name = embedded(name)
    config = drafters_config(
        variants, pair=name, kinds=QUESTION_KINDS[name], runs=runs(name),
        cache_dir=f"{runs(name)}/teacher", **changes,
    )  # fmt: skip
    config.clips = config.scenes if CLIP_SHARE[name] else 0
    return config


def pair(name: str | None) -> dict[str, str]:
    """Folders of a pair; the embedded one by default. Raises ValueError for an unknown name."""
    name = name or EMBEDDED[0]
    if name not in PAIRS:
        raise ValueError(f"pair: expected one of {', '.join(PAIRS)}, got {name!r}")
    return PAIRS[name]
