"""A by the number of routed tokens k: 4, 8, 16, 32 and all.

    python -m tiger_jax.evaluate --config configs/exact/k_sweep.py --config.plot=k.png

Mismatched: the embedded drafter, trained with k = 8, runs with every k. Matched: drafters that were
trained with the k they run with, 200 steps each (configs/exact/selectors.py has the commands, with
--config.router.routed_tokens=4, 16 or 32); they are left out where there is no such run. The
report's `trained_k` tells them apart.

`full, distilled` sees all visual tokens and was distilled for as many steps as the
embedded drafter (configs/exact/ablation.py has the commands); the plot's dashed line is its A.
"""

import ml_collections

from configs import presets


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
    """All fields of the comparison; `arg` is the name of an embedded pair."""
    tiger = "embedded:tiger"
    mismatched = [
        {"name": f"k = {k}", "drafter": tiger, "routed_tokens": k} for k in (8, 4, 16, 32)
    ]
    runs = (("k4", 4), ("tiger", 8), ("k16", 16), ("k32", 32))
    matched = [{"name": f"k = {k}, matched", "drafter": f"run:short/{run}"} for run, k in runs]
    full = ({"name": "full, distilled", "drafter": "run:kd_full"},
            {"name": "full, matched", "drafter": "run:short/full"},
            {"name": "full, supervised only", "drafter": "embedded:full"})  # fmt: skip
    return presets.drafters(arg, (*mismatched, *matched, *full), skip_missing=True)
