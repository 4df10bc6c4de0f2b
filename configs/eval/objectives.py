"""Objectives of acceptance alignment against a control of as many further distillation steps.

    python -m tiger_jax.evaluate --config configs/eval/objectives.py

All start from the checkpoint of the run `kd`; each is a run of configs/grpo.py (the control one of
configs/kd.py): RUNS/NAME/export.
"""

import ml_collections

from tiger_jax.evaluation.exact_config import drafters_config


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
    """All fields of the comparison; `arg` is not used."""
    del arg
    return drafters_config((
        {"name": "control: more KD", "drafter": "run:kd_more"},
        {"name": "KD", "drafter": "run:kd"},
        {"name": "grpo (the paper's)", "drafter": "run:grpo"},
        {"name": "grpo_exact", "drafter": "run:grpo_exact"},
        {"name": "expected_acceptance", "drafter": "run:expected_acceptance"},
    ))  # fmt: skip
