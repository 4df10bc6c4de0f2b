"""Acceptance by temperature: 0, 0.5, 0.7 and 1.

    python -m tiger_jax.evaluate --config configs/exact/temperature.py

`full, distilled` sees all visual tokens and was distilled for as many steps, not aligned
(configs/exact/ablation.py has the commands); it is left out where there is no such run.
"""

import ml_collections

from configs import presets
from tiger_jax.evaluation.exact_config import TIGER_AND_FULL


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
    """All fields of the comparison; `arg` is the name of an embedded pair."""
    return presets.drafters(
        arg, TIGER_AND_FULL, temperatures=(0.0, 0.5, 0.7, 1.0), skip_missing=True
    )
