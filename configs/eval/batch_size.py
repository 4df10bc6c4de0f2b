"""tab:batch-size-scalability: latency, speedup and memory at batch 1, 8 and 16.

    python -m tiger_jax.evaluate --config configs/eval/batch_size.py \\
        --config.root=../shared/data
    python -m tiger_jax.evaluate --config configs/eval/batch_size.py:llava_next \\
        --config.root=DATA --config.verifier=DIR --config.drafter=DIR --config.tiger=DIR
"""

import ml_collections

from configs import presets


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
    """All fields of the benchmark; `arg` is the name of a pair."""
    config = presets.benchmark(
        arg, "batch_size", variants=(presets.PLAIN, presets.TIGER),
        datasets=presets.CAPABILITIES[:3], modes=("speed", "score"), batch_sizes=(1, 8, 16),
        scenes={name: presets.SCENE_CAPABILITIES[name] for name in presets.SCENE_CAPTIONS},
    )  # fmt: skip
    if config.samples:  # an embedded pair's few questions would not fill a batch
        config.limit = 16
    return config
