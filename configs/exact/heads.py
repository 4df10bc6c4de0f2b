"""Draft heads beside the small drafter: acceptance exactly, chains and trees decoded, speed.

    python -m tiger_jax.evaluate --config configs/exact/heads.py --config.report=heads.json

Heads come from runs of configs/head.py (RUNS/heads/NAME/export), as many steps each, and are left
out where there is no such run (the package's own five: --config.more="('embedded:tiger_head',)"):

    tiger_head  --config.method=tiger_head          full    ... --config.head.visual=full
    round       ... --config.route_every=round      none    ... --config.head.visual=none
    eagle2, eagle3, vispec, medusa                  --config.method=NAME
    aligned, more_kl: 300 further steps of tiger_head, by expected_acceptance and by kl

How a variant is written: tiger_jax/evaluation/variants.py.
"""

import ml_collections

from configs import presets

NAMES = (
    "tiger_head", "full", "round", "none", "eagle2", "eagle3", "vispec", "medusa", "more_kl",
    "aligned",
)  # fmt: skip


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
    """All fields of the comparison; `arg` is the name of an embedded pair."""
    runs = tuple({"name": name, "drafter": f"run:heads/{name}"} for name in NAMES)
    return presets.drafters(
        arg, (*runs, {"name": "vlm, routed (tiger)", "drafter": "embedded:tiger"}),
        skip_missing=True, decode_trees=("60,5,10", "30,3,8"), decode_batches=(1, 4, 8),
    )  # fmt: skip
