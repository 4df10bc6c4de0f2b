"""tab:ablation_coco: TIGER without routing, without alignment, without distillation.

    python -m tiger_jax.evaluate --config configs/eval/ablation.py \\
        --config.root=../shared/data
    python -m tiger_jax.evaluate --config configs/eval/ablation.py:llava_next \\
        --config.root=DATA --config.verifier=DIR --config.drafter=DIR --config.tiger=DIR

The others are training runs, RUNS/NAME/export, left out by name where there is none; their
commands stand in configs/exact/ablation.py. The caption of the paper's table says COCO, its TIGER
rows are those of MMBench: both are measured.
"""

import ml_collections

from configs import presets


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
    """All fields of the benchmark; `arg` is the name of a pair."""
    return presets.benchmark(
        arg, "ablation",
        variants=(
            presets.TIGER,
            {"name": "w/o Visual Gated Routing", "drafter": "run:no_routing"},
            {"name": "w/o Acceptance Alignment", "drafter": "run:kd"},
            {"name": "w/o KD", "drafter": "run:no_kd"},
        ),
        datasets=presets.CAPTIONS + presets.MAIN[:1],
    )  # fmt: skip
