"""tab:routing_sparsity: k = 4, 8, 16, 32 routed tokens, and all of them.

    python -m tiger_jax.evaluate --config configs/eval/routing_sparsity.py \\
        --config.root=../shared/data
    python -m tiger_jax.evaluate --config configs/eval/routing_sparsity.py:llava_next \\
        --config.root=DATA --config.verifier=DIR --config.drafter=DIR --config.tiger=DIR

One drafter, trained with k = 8, runs with every k; configs/eval/k_sensitivity.py has those that
were trained with theirs.
"""

import ml_collections

from configs import presets


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
    """All fields of the benchmark; `arg` is the name of a pair."""
    routed = [
        {"name": f"k = {k}", "drafter": "model:tiger", "routed_tokens": k} for k in (4, 8, 16, 32)
    ]
    variants = [*routed, presets.VANILLA | {"name": "Full visual tokens"}]
    return presets.benchmark(
        arg, "routing_sparsity",
        variants=[presets.PLAIN, *variants, *map(presets.alone, variants)],
        datasets=presets.CAPTIONS, modes=("speed", "score"), scenes=presets.SCENE_CAPTIONS,
    )  # fmt: skip
