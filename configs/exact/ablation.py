"""The paper's ablation: TIGER without routing, without alignment, without distillation.

    python -m tiger_jax.evaluate --config configs/exact/ablation.py
    python -m tiger_jax.evaluate --config configs/exact/ablation.py --config.decode=True

The others are training runs, RUNS/NAME/export. Without routing means a drafter that sees all visual
tokens and was trained for as many steps; it is there distilled (kd_full) and aligned too
(no_routing).

    configs/kd.py    --config.run_dir=runs/kd_full --config.router.selector=full
    configs/grpo.py  --config.run_dir=runs/no_routing --config.router.selector=full \\
                     --config.init_from=runs/kd_full
    configs/grpo.py  --config.run_dir=runs/no_kd \\
                     --config.init_from=tiger_jax/assets/tiny_llava/drafter
"""

import ml_collections

from configs import presets


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
    """All fields of the comparison; `arg` is the name of an embedded pair."""
    return presets.drafters(arg, (
        {"name": "tiger", "drafter": "embedded:tiger"},
        {"name": "without routing", "drafter": "run:no_routing"},
        {"name": "without alignment", "drafter": "run:kd"},
        {"name": "without routing, alignment", "drafter": "run:kd_full"},
        {"name": "without KD (300 alignment steps)", "drafter": "run:no_kd"},
    ))  # fmt: skip
