"""Acceptance by temperature: 0, 0.5, 0.7 and 1.

    python -m tiger_jax.evaluate --config configs/eval/temperature.py

`full, distilled` sees all visual tokens and was distilled for as many steps, not aligned
(configs/eval/ablation.py has the commands); it is left out where there is no such run.
"""

import ml_collections

from tiger_jax.evaluation.exact_config import TIGER_AND_FULL, drafters_config


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
    """All fields of the comparison; `arg` is not used."""
    del arg
    return drafters_config(TIGER_AND_FULL, temperatures=(0.0, 0.5, 0.7, 1.0), skip_missing=True)
