"""tab:adapter-pruning: SparseVLM's and VisPruner's choice of tokens in TIGER's place.

    python -m tiger_jax.evaluate --config configs/eval/adapter_pruning.py \\
        --config.root=../shared/data
    python -m tiger_jax.evaluate --config configs/eval/adapter_pruning.py:llava_next \\
        --config.root=DATA --config.verifier=DIR --config.drafter=DIR --config.tiger=DIR

Routing-only is the run `kd` (RUNS/kd/export), distilled and not aligned; it is left out by name
where there is none.
"""

import ml_collections

from configs import presets


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
    """All fields of the benchmark; `arg` is the name of a pair."""
    variants = (
        {"name": "SparseVLM-style selector", "drafter": "model:tiger", "selector": "sparsevlm"},
        {"name": "VisPruner-style selector", "drafter": "model:tiger", "selector": "vispruner"},
        {"name": "TIGER routing-only", "drafter": "run:kd"},
        presets.TIGER | {"name": "TIGER full"},
    )
    return presets.benchmark(
        arg, "adapter_pruning",
        variants=[presets.PLAIN, *variants, *map(presets.alone, variants)],
        datasets=presets.CAPTIONS, modes=("speed", "score"), scenes=presets.SCENE_CAPTIONS,
    )  # fmt: skip
