"""Any drafters of one verifier, compared on its own answers to held-out scenes.

    python -m tiger_jax.evaluate --config configs/exact/drafters.py \
        --config.more="('runs/grpo/export',)" --config.report=drafters.json

`full, distilled` sees all visual tokens and was distilled for as many steps, not aligned
(configs/exact/ablation.py has the commands); it is left out where there is no such run.

The fields, and what each means: tiger_jax/evaluation/exact_config.py; how a variant is written:
tiger_jax/evaluation/variants.py.
"""

import ml_collections

from configs import presets
from tiger_jax.evaluation.exact_config import TIGER_AND_FULL


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
    """All fields of the comparison; `arg` is the name of an embedded pair."""
    return presets.drafters(arg, TIGER_AND_FULL, skip_missing=True)
