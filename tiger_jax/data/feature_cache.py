"""The verifier's hidden states along its own answers, on disk: what a draft head reads and learns.

Letters: P prefix tokens, T text tokens of an example, packed as data.packing does (question 0,
response 0, question 1, ...), r visual tokens, D verifier width, F width of its tapped hidden
states, w kept rows of a look.

The answers themselves, with the laws, are a TeacherCache's. Numbers are stored in half precision:
350 KB a scene of the tiny verifier.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from tiger_jax.data.record_cache import RecordCache
from tiger_jax.errors import UserError

_NUMBERS = ("prefix", "visual", "text", "look_weights")
_MOST_ROWS = np.iinfo(np.int16).max


class FeatureRecord(NamedTuple):
    """The states of one example; on disk float16, the ids int16."""

    prefix: Float[np.ndarray, "P F"]
    visual: Float[np.ndarray, "r D"]
    """Projected visual tokens: the bank's rows, in its order."""
    text: Float[np.ndarray, "T F"]
    look_ids: Int[np.ndarray, "T w"]
    """Bank rows that the verifier looks at most while it reads each text token; -1 = no entry."""
    look_weights: Float[np.ndarray, "T w"]
    """Their share of that one position's attention, sharpened; 0 where there is no entry."""


class FeatureCache(RecordCache[FeatureRecord]):
    """The states of one verifier along one cache of answers.

    The settings name all that they depend on: verifier, its dtype, the answers, the taps, and how
    the looks are sharpened and cut.
    """

    def __init__(self, root: str | os.PathLike, settings: Mapping[str, Any]) -> None:
        super().__init__(root, settings, FeatureRecord, half=_NUMBERS, raw=True)

    def add_shard(self, records: Sequence[tuple[str, FeatureRecord]]) -> None:
        """Write some records.

        Raises:
            UserError: states that half precision cannot hold, or sizes that contradict each other.
        """
        super().add_shard([(key, _small(key, record)) for key, record in records])


def _small(key: str, record: FeatureRecord) -> FeatureRecord:
    """The record in the types of the disk."""
    if fault := _fault(record):
        raise UserError(f"features: {key}: {fault}")
    with np.errstate(over="ignore"):  # named below
        small = {name: getattr(record, name).astype(np.float16) for name in _NUMBERS}
    for name, values in small.items():
        if not np.isfinite(values).all():
            raise UserError(
                f"features: {key}: {name}: expected finite numbers below 65520 (half precision), "
                f"got {np.abs(getattr(record, name)).max():g}"
            )
    return record._replace(look_ids=record.look_ids.astype(np.int16), **small)


def _fault(record: FeatureRecord) -> str | None:
    """What contradicts itself in the sizes of a record."""
    count, rows = len(record.text), len(record.visual)
    if not len(record.look_ids) == len(record.look_weights) == count:
        return f"expected looks of {count} text tokens, got {len(record.look_ids)}"
    if rows > _MOST_ROWS + 1:
        return f"expected at most {_MOST_ROWS + 1} visual tokens, got {rows}"
    if record.look_ids.size and not -1 <= record.look_ids.min() <= record.look_ids.max() < rows:
        return f"look_ids: expected bank rows below {rows}, got {record.look_ids.max()}"
    return None
