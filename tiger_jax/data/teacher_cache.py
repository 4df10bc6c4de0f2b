"""The verifier's answers on disk, keyed by verifier and prompt, with what a drafter learns of them.

Letters: N questions of an example, n response tokens of an example, k kept tokens of a law, w kept
rows of an attention.
"""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int32

from tiger_jax.data.record_cache import RecordCache

NO_ENTRY = -1
"""An id that pads a list of kept entries."""


class TeacherRecord(NamedTuple):
    """What the verifier said about one example, all its responses one after the other."""

    lengths: Int32[np.ndarray, " N"]
    """Tokens of each response, the end token included if it was said."""
    tokens: Int32[np.ndarray, " n"]
    logprobs: Float[np.ndarray, " n"]
    """Natural-log probability of each token under the verifier's own law."""
    law_ids: Int32[np.ndarray, "n k"]
    """The likeliest tokens in each token's place."""
    law_logprobs: Float[np.ndarray, "n k"]
    route_ids: Int32[np.ndarray, "n w"]
    """The bank rows that matter most for what follows this token (method.md 2.1)."""
    route_weights: Float[np.ndarray, "n w"]
    """Their share; what is missing to 1 lies on the other rows."""


class TeacherCache(RecordCache[TeacherRecord]):
    """The answers of one verifier under one set of settings."""

    def __init__(self, root: str | os.PathLike, settings: Mapping[str, Any]) -> None:
        # Law and attention are good to three digits in half precision, at half the size.
        super().__init__(root, settings, TeacherRecord, half=("law_logprobs", "route_weights"))
