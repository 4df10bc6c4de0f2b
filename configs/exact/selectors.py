"""What chooses the k visual tokens: the router, or something in its place.

    python -m tiger_jax.evaluate --config configs/exact/selectors.py
    python -m tiger_jax.evaluate --config configs/exact/selectors.py --config.skip_missing=True

Each trained row is its own run of 200 steps from the full-visual drafter, RUNS/short/NAME/export:

    python -m tiger_jax.train --config configs/kd.py --config.steps=200 \\
        --config.run_dir=runs/short/NAME ...
    tiger          nothing more
    text_only      --config.router.query=text_only --config.router.looks=0
    image_only     --config.router.selector=image_only
    random         --config.router.selector=random
    no_teacher     --config.route_weight=0.0 --config.router.gate=straight_through
    plain_router   --config.router.looks=0 --config.router.pooled_tokens=1
    full           --config.router.selector=full

The selectors that learn nothing run on the weights of `tiger`.
"""

import ml_collections

from configs import presets


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
    """All fields of the comparison; `arg` is the name of an embedded pair."""
    tiger = "run:short/tiger"
    return presets.drafters(arg, (
        {"name": "tiger", "drafter": tiger},
        {"name": "oracle choice", "drafter": tiger, "oracle": True},
        {"name": "the paper's router, taught", "drafter": "run:short/plain_router"},
        {"name": "text_only query", "drafter": "run:short/text_only"},
        {"name": "image_only", "drafter": "run:short/image_only"},
        {"name": "no teacher", "drafter": "run:short/no_teacher"},
        {"name": "random", "drafter": "run:short/random"},
        {"name": "sparsevlm (not trained)", "drafter": tiger, "selector": "sparsevlm"},
        {"name": "vispruner (not trained)", "drafter": tiger, "selector": "vispruner"},
        {"name": "full", "drafter": "run:short/full"},
    ))  # fmt: skip
