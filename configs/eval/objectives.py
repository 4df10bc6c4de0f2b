"""tab:objective-comparison: what the drafter was trained for.

    python -m tiger_jax.evaluate --config configs/eval/objectives.py \\
        --config.root=../shared/data
    python -m tiger_jax.evaluate --config configs/eval/objectives.py:llava_next \\
        --config.root=DATA --config.verifier=DIR --config.drafter=DIR --config.tiger=DIR

Runs, RUNS/NAME/export, are left out by name where there are none:

    kd                            configs/kd.py
    grpo                          configs/grpo.py
    grpo_binary, grpo_agreement   configs/grpo.py --config.run_dir=RUNS/NAME \\
                                      --config.align.objective=grpo --config.align.reward=REWARD

with the rewards binary and token_agreement.
"""

import ml_collections

from configs import presets


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
    """All fields of the benchmark; `arg` is the name of a pair."""
    variants = (
        presets.VANILLA | {"name": "Vanilla drafter"},
        {"name": "KD-only (w/o Accepted Alignment)", "drafter": "run:kd"},
        {"name": "KD + binary acceptance reward", "drafter": "run:grpo_binary"},
        {"name": "KD + token-agreement reward", "drafter": "run:grpo_agreement"},
        {"name": "KD + accepted-prefix reward (GRPO)", "drafter": "run:grpo"},
        presets.TIGER,
    )
    return presets.benchmark(
        arg, "objectives", variants=[presets.PLAIN, *variants, *map(presets.alone, variants)],
        datasets=presets.CAPTIONS, modes=("speed", "score"), scenes=presets.SCENE_CAPTIONS,
    )  # fmt: skip
