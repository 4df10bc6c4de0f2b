"""tab:main_results: AccLen and speedup of every method on the five main data sets.

    python -m tiger_jax.evaluate --config configs/eval/main_results.py --config.root=../shared/data
    python -m tiger_jax.evaluate --config configs/eval/main_results.py:llava_next \\
        --config.root=DATA --config.verifier=DIR --config.drafter=DIR --config.tiger=DIR
"""

import ml_collections

from configs import presets


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
    """All fields of the benchmark; `arg` is the name of a pair."""
    return presets.benchmark(
        arg, "main_results",
        variants=(*presets.heads(arg), presets.VANILLA, presets.TIGER),
        datasets=presets.MAIN,
    )  # fmt: skip
