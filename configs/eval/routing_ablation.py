"""tab:routing-ablation: the parts of routing, one after the other.

    python -m tiger_jax.evaluate --config configs/eval/routing_ablation.py \\
        --config.root=../shared/data
    python -m tiger_jax.evaluate --config configs/eval/routing_ablation.py:llava_next \\
        --config.root=DATA --config.verifier=DIR --config.drafter=DIR --config.tiger=DIR

Runs, RUNS/NAME/export, are left out by name where there are none; their commands stand in
configs/exact/selectors.py.
"""

import ml_collections

from configs import presets


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
    """All fields of the benchmark; `arg` is the name of a pair."""
    variants = (
        presets.VANILLA | {"name": "Full visual context"},
        {"name": "Random Top-k", "drafter": "model:tiger", "selector": "random"},
        {"name": "Static image-only Top-k", "drafter": "run:short/image_only"},
        {"name": "Text-only query", "drafter": "run:short/text_only"},
        {"name": "TIGER routing-only", "drafter": "run:kd"},
        presets.TIGER | {"name": "TIGER full"},
    )
    return presets.benchmark(
        arg, "routing_ablation",
        variants=[presets.PLAIN, *variants, *map(presets.alone, variants)],
        datasets=presets.CAPTIONS, modes=("speed", "score"), scenes=presets.SCENE_CAPTIONS,
    )  # fmt: skip
