"""A by the number of routed tokens k: 4, 8, 16, 32 and all.

    python -m tiger_jax.evaluate --config configs/eval/k_sweep.py --config.plot=k.png
    python -m tiger_jax.evaluate --config configs/eval/k_sweep.py \
        --config.more="('run:k4', 'run:k16', 'run:k32')"

The embedded drafter runs with every k (mismatched, save at its own); drafters trained with another
k (matched) are given as `more`. The report's `trained_k` tells them apart.
"""

import ml_collections

from tiger_jax.evaluation.exact_config import drafters_config


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
    """All fields of the comparison; `arg` is not used."""
    del arg
    tiger = "embedded:tiger"
    routed = [
        {"name": f"k = {k}", "drafter": tiger, "routed_tokens": k} for k in (8, 4, 16, 32)
    ]  # fmt: skip
    return drafters_config((*routed, {"name": "full", "drafter": "embedded:full"}))
