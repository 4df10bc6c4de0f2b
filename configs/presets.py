"""The pairs by name: where their weights are, and the paper's sizes for them.

A config takes the name behind its file: --config configs/kd.py:llava_next
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_collections

from tiger_jax.embedded import PAIRS as EMBEDDED
from tiger_jax.evaluation.benchmark_config import benchmark_config
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


PLAIN = {"name": "plain"}
TIGER = {"name": "TIGER", "drafter": "model:tiger"}
VANILLA = {"name": "Vanilla pair", "drafter": "model:full"}
"""The small model that sees all visual tokens, as it is published."""
MAIN = tuple(
    {"dataset": name, "label": label, "limit": 1000} for name, label in (
        ("mmbench", "MMBench"), ("scienceqa", "ScienceQA"), ("textvqa", "TextVQA"),
        ("mm_vet", "MM-Vet"), ("coco_captions", "COCO Caption"),
    )
)  # fmt: skip
"""Data sets of the paper's main table."""
CAPTIONS = MAIN[-1:]
CAPABILITIES = tuple(
    {"dataset": name, "label": label, "limit": 1000} for name, label in (
        ("textvqa", "OCR"), ("mmbench", "VQA"), ("coco_captions", "Caption"),
        ("tallyqa", "Counting"),
    )
)  # fmt: skip
"""tab:capability_datasets."""
SCENE_CAPABILITIES = {
    "OCR (scenes)": ("read",), "VQA (scenes)": ("attribute",), "Caption (scenes)": ("describe",),
    "Counting (scenes)": ("count",),
}  # fmt: skip
"""The same of the held-out scenes."""
SCENE_CAPTIONS = {"Caption (scenes)": ("describe",)}
_HEADS = {
    "Medusa": "medusa", "EAGLE-2": "eagle2", "EAGLE-3": "eagle3", "ViSpec": "vispec",
    "TIGER head (ours)": "tiger_head",
}  # fmt: skip
_EMBEDDED_LIMIT = 4
"""Questions of a data set for the embedded pairs, which never learned to answer them."""
_EMBEDDED_SCENES = 24


def heads(name: str | None) -> tuple[dict[str, str], ...]:
    """The paper's baselines that are heads: the embedded pair's own, or runs of configs/head.py."""
    place = "embedded:" if (name or EMBEDDED[0]) in EMBEDDED else "run:heads/"
    return tuple({"name": title, "drafter": place + method} for title, method in _HEADS.items())


def alone(variant: Mapping[str, Any]) -> dict[str, Any]:
    """The drafter of a variant, answering by itself."""
    return {**variant, "name": f"{variant['name']}, alone", "alone": True}


def benchmark(
    name: str | None, table: str, variants: Sequence[Mapping[str, Any]],
    datasets: Sequence[Mapping[str, Any]], modes: Sequence[str] = ("speed",),
    scenes: Mapping[str, Sequence[str]] | None = None, **changes: Any,
) -> ml_collections.ConfigDict:  # fmt: skip
    """A table of the paper for a pair by its name.

    The real pairs answer as many questions as the paper says. The embedded ones answer a few, and
    questions about held-out scenes, which they know: numbers that mean something.

    Args:
        datasets: entries of benchmark_config, with the paper's `limit`; each in all of `modes`.
        scenes: label -> kinds of questions, for the embedded pairs; None asks for descriptions,
            and in score mode all kinds.
        changes: other values for fields of benchmark_config.
    """
    name = name or EMBEDDED[0]
    folders = pair(name)
    small = name in EMBEDDED
    entries = [dict(entry, mode=mode) for mode in modes for entry in datasets]
    changes = {"pair": name, "runs": runs(name), "out": f"{runs(name)}/benchmark/{table}"} | changes
    if small:
        entries = _of_scenes(name, modes, scenes) + [
            {**entry, "limit": _EMBEDDED_LIMIT} for entry in entries
        ]
        changes = {"max_new_tokens": 64, "batch_sizes": (4,), "costs": "first", "samples": True,
                   "kinds": QUESTION_KINDS[name]} | changes  # fmt: skip
    else:
        changes |= {"verifier": folders["verifier"], "drafter": folders["drafter"],
                    "tiger": f"{runs(name)}/grpo/export"}  # fmt: skip
    return benchmark_config(table, variants, entries, **changes)


def _of_scenes(
    name: str, modes: Sequence[str], scenes: Mapping[str, Sequence[str]] | None
) -> list[dict[str, Any]]:
    """Entries about held-out scenes. Only descriptions are long answers."""
    entries = []
    for mode in modes:
        usual = ("describe",) if mode == "speed" else QUESTION_KINDS[name]
        for label, kinds in (scenes or {"scenes": usual}).items():
            entries.append({"dataset": "scenes", "label": label, "kinds": tuple(kinds),
                            "mode": mode, "limit": _EMBEDDED_SCENES})  # fmt: skip
    return entries
