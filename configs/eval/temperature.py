"""tab:temp_sensitivity: TIGER at T = 0, 0.5, 0.7 and 1.

    python -m tiger_jax.evaluate --config configs/eval/temperature.py \\
        --config.root=../shared/data
    python -m tiger_jax.evaluate --config configs/eval/temperature.py:llava_next \\
        --config.root=DATA --config.verifier=DIR --config.drafter=DIR --config.tiger=DIR
"""

import ml_collections

from configs import presets


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
    """All fields of the benchmark; `arg` is the name of a pair."""
    return presets.benchmark(
        arg, "temperature", variants=(presets.TIGER,), datasets=presets.CAPTIONS,
        temperatures=(0.0, 0.5, 0.7, 1.0), scenes=presets.SCENE_CAPTIONS,
    )  # fmt: skip
