"""tab:k-sensitivity: k in training and k in inference, over the four capabilities.

    python -m tiger_jax.evaluate --config configs/eval/k_sensitivity.py \\
        --config.root=../shared/data
    python -m tiger_jax.evaluate --config configs/eval/k_sensitivity.py:llava_next \\
        --config.root=DATA --config.verifier=DIR --config.drafter=DIR --config.tiger=DIR

Drafters that were trained with another k than 8 are runs of configs/kd.py with
--config.router.routed_tokens=K, RUNS/short/kK/export, left out by name where there is none.
"""

import ml_collections

from configs import presets

SETTINGS = ((4, 4), (8, 8), (8, 4), (8, 16), (16, 16), (32, 32))
"""The paper's (k in training, k in inference)."""


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
    """All fields of the benchmark; `arg` is the name of a pair."""
    variants = [
        {"name": f"{trained} -> {k}", "drafter": _drafter(trained), "routed_tokens": k}
        for trained, k in SETTINGS
    ]
    return presets.benchmark(
        arg, "k_sensitivity",
        variants=[presets.PLAIN, *variants, *map(presets.alone, variants)],
        datasets=presets.CAPABILITIES, modes=("speed", "score"),
        scenes=presets.SCENE_CAPABILITIES,
    )  # fmt: skip


def _drafter(trained: int) -> str:
    return "model:tiger" if trained == 8 else f"run:short/k{trained}"
