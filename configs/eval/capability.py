"""fig:capability, tab:capability_datasets: OCR, VQA, captions and counting, 1,000 each.

    python -m tiger_jax.evaluate --config configs/eval/capability.py \\
        --config.root=../shared/data
    python -m tiger_jax.evaluate --config configs/eval/capability.py:llava_next \\
        --config.root=DATA --config.verifier=DIR --config.drafter=DIR --config.tiger=DIR

The verifier's answers and the drafter's own are scored apart: those of a pair are the verifier's,
token for token.
"""

import ml_collections

from configs import presets


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
    """All fields of the benchmark; `arg` is the name of a pair."""
    return presets.benchmark(
        arg, "capability",
        variants=(
            presets.PLAIN, presets.TIGER, presets.VANILLA,
            presets.alone(presets.TIGER), presets.alone(presets.VANILLA),
        ),
        datasets=presets.CAPABILITIES, modes=("score", "speed"),
        scenes=presets.SCENE_CAPABILITIES,
    )  # fmt: skip
