"""tab:prefix_distribution: how many drafts a round accepts, P(A >= 2, 4, 8), as a histogram.

    python -m tiger_jax.evaluate --config configs/eval/prefix_distribution.py \\
        --config.root=../shared/data
    python -m tiger_jax.evaluate --config configs/eval/prefix_distribution.py:llava_next \\
        --config.root=DATA --config.verifier=DIR --config.drafter=DIR --config.tiger=DIR
"""

import ml_collections

from configs import presets


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
    """All fields of the benchmark; `arg` is the name of a pair."""
    return presets.benchmark(
        arg, "prefix_distribution",
        variants=(*presets.heads(arg), presets.VANILLA, presets.TIGER),
        datasets=presets.CAPTIONS, draft_lengths=(8,), scenes=presets.SCENE_CAPTIONS,
    )  # fmt: skip
