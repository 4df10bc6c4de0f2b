"""Objectives of acceptance alignment against a control of as many further distillation steps.

    python -m tiger_jax.evaluate --config configs/exact/objectives.py

All start from the run `kd` (runs/kd) and take 300 steps, RUNS/NAME/export:

    kd_more              configs/kd.py --config.run_dir=runs/kd_more --config.init_from=runs/kd \\
                         --config.steps=300 --config.learning_rate=5e-4
    expected_acceptance  configs/grpo.py --config.run_dir=runs/expected_acceptance
    grpo, grpo_exact     configs/grpo.py --config.run_dir=runs/NAME \\
                         --config.align.objective=NAME --config.learning_rate=1e-4
"""

import ml_collections

from configs import presets


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
    """All fields of the comparison; `arg` is the name of an embedded pair."""
    return presets.drafters(arg, (
        {"name": "control: more KD", "drafter": "run:kd_more"},
        {"name": "KD", "drafter": "run:kd"},
        {"name": "grpo (the paper's)", "drafter": "run:grpo"},
        {"name": "grpo_exact", "drafter": "run:grpo_exact"},
        {"name": "expected_acceptance", "drafter": "run:expected_acceptance"},
    ))  # fmt: skip
