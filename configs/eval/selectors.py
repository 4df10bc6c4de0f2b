"""What chooses the k visual tokens: the router, or something in its place.

    python -m tiger_jax.evaluate --config configs/eval/selectors.py
    python -m tiger_jax.evaluate --config configs/eval/selectors.py --config.skip_missing=True

Selectors that need weights of their own, and drafters trained without the router's teacher or with
a query that sees no picture, are runs of configs/kd.py: RUNS/NAME/export.
"""

import ml_collections

from tiger_jax.evaluation.exact_config import drafters_config


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
    """All fields of the comparison; `arg` is not used."""
    del arg
    tiger = "embedded:tiger"
    return drafters_config((
        {"name": "tiger", "drafter": tiger},
        {"name": "random", "drafter": tiger, "selector": "random"},
        {"name": "sparsevlm", "drafter": tiger, "selector": "sparsevlm"},
        {"name": "vispruner", "drafter": tiger, "selector": "vispruner"},
        {"name": "full", "drafter": "embedded:full"},
        {"name": "random, trained", "drafter": "run:random"},
        {"name": "image_only, trained", "drafter": "run:image_only"},
        {"name": "text_only query, trained", "drafter": "run:text_only"},
        {"name": "no teacher, trained", "drafter": "run:no_teacher"},
    ))  # fmt: skip
