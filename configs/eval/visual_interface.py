"""tab:visual_pruning: what the drafter alone says and how fast, by what it sees of a picture.

    python -m tiger_jax.evaluate --config configs/eval/visual_interface.py \\
        --config.root=../shared/data
    python -m tiger_jax.evaluate --config configs/eval/visual_interface.py:llava_next \\
        --config.root=DATA --config.verifier=DIR --config.drafter=DIR --config.tiger=DIR

Not a speculative result: nothing is verified. The selectors that learn nothing run on TIGER's
weights, as the paper's do.
"""

import ml_collections

from configs import presets


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
    """All fields of the benchmark; `arg` is the name of a pair."""
    tiger = {"drafter": "model:tiger"}
    variants = (
        presets.VANILLA | {"name": "Full visual tokens"},
        tiger | {"name": "SparseVLM", "selector": "sparsevlm"},
        tiger | {"name": "VisPruner", "selector": "vispruner"},
        tiger | {"name": "TIGER routing"},
    )
    return presets.benchmark(
        arg, "visual_interface", [variant | {"alone": True} for variant in variants],
        presets.CAPTIONS, modes=("score", "speed"), scenes=presets.SCENE_CAPTIONS,
    )  # fmt: skip
