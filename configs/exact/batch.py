"""Speed at batch 1, 8 and 16, against plain decoding of the same verifier at the same batch.

    python -m tiger_jax.evaluate --config configs/exact/batch.py

Every setting is decoded for real, on `decode_scenes` pictures: a quiet machine is needed.
`full, distilled` sees all visual tokens and was distilled for as many steps, not aligned
(configs/exact/ablation.py has the commands); it is left out where there is no such run.
"""

import ml_collections

from configs import presets
from tiger_jax.evaluation.exact_config import TIGER_AND_FULL


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
    """All fields of the comparison; `arg` is the name of an embedded pair."""
    return presets.drafters(
        arg, TIGER_AND_FULL, decode=True, decode_batches=(1, 8, 16), scenes=30, temperatures=(0.0,),
        draft_lengths=(5,), skip_missing=True,
    )  # fmt: skip
