"""Batches for training a draft head: a drafter's batch, and the verifier's states along its texts.

Letters: B examples, P verifier-prefix tokens, L packed text tokens, M blocks of an example, g draft
length, R bank rows, D verifier width, F width of its tapped hidden states, w kept rows of a look.

A block whose root stands at packed place a reads the tokens a, a + 1, ...: entry u of its looks is
what the verifier attended to while it read the token at a + u, before the u-th drafted one:

    packed    question  y1  y2  y3  y4  </s>
    block               root y2, drafts y3 y4 </s>     looks of y2, y3, y4
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float16, Float32, Int32

from tiger_jax.data.clips import Clip
from tiger_jax.data.draft_batches import DraftRows, PackDrafts, TaughtExample, TeachExample
from tiger_jax.data.draft_examples import AskQuestions
from tiger_jax.data.examples import DroppedExample, Example
from tiger_jax.data.feature_cache import FeatureCache, FeatureRecord
from tiger_jax.data.scenes import Scene
from tiger_jax.data.teacher_cache import NO_ENTRY, TeacherCache
from tiger_jax.errors import UserError
from tiger_jax.models.config import ModelConfig


class TaughtHead(NamedTuple):
    """An example with what the verifier said and how it saw it."""

    taught: TaughtExample
    features: FeatureRecord


class HeadRows(NamedTuple):
    """A batch; padding is 0 unless said. Tapped states stay in the half precision of the disk: the
    device turns them into the head's type faster, and half as much is carried to it."""

    draft: DraftRows
    """Its stream is the whole prefix; bank rows are in the prompt's order."""
    visual: Float32[np.ndarray, "B R D"]
    prefix_features: Float16[np.ndarray, "B P F"]
    text_features: Float16[np.ndarray, "B L F"]
    look_ids: Int32[np.ndarray, "B M g w"]
    """-1 pads, and stands behind a block's last drafted token."""
    look_weights: Float32[np.ndarray, "B M g w"]

    @property
    def record_ids(self) -> tuple[str, ...]:
        """Keys of the examples, for messages."""
        return self.draft.record_ids


@dataclass(frozen=True)
class TeachHead:
    """Scene, Clip or Example -> TaughtHead, its blocks drawn anew each epoch.

    What cannot be read, or stands in only one of the caches or none, becomes a DroppedExample.
    """

    ask: AskQuestions
    cache: TeacherCache
    features: FeatureCache
    draft_length: int
    cuts: int = 0
    """As TeachExample's."""

    def __call__(
        self, record: Scene | Clip | Example, rng: np.random.Generator
    ) -> TaughtHead | DroppedExample:
        """Raises UserError for features of other answers than the cached ones."""
        teach = TeachExample(self.ask, self.cache, self.draft_length, self.cuts)
        taught = teach(record, rng)
        if isinstance(taught, DroppedExample):
            return taught
        key = taught.example.key
        if key not in self.features:
            return DroppedExample(key, "features", "the verifier's states were not kept")
        features = self.features[key]
        if fault := _mismatch(taught, features):
            raise UserError(f"{self.features.folder}: {key}: {fault}; delete the folder")
        return TaughtHead(taught, features)


def _mismatch(taught: TaughtExample, features: FeatureRecord) -> str | None:
    """Where the sizes of features are not those of the example they are kept for."""
    prefix = taught.example.prefix
    text = sum(map(len, taught.example.questions)) + len(taught.record.tokens)
    wanted = {
        "prefix": len(prefix.tokens), "visual": int((prefix.image_ids >= 0).sum()), "text": text
    }  # fmt: skip
    for name, count in wanted.items():
        if len(getattr(features, name)) != count:
            return f"{name}: expected {count} tokens, got {len(getattr(features, name))}"
    return None


@dataclass(frozen=True)
class PackHeads:
    """TaughtHeads -> HeadRows. A class, so that worker processes can receive it."""

    config: ModelConfig
    draft_length: int
    text_multiple: int = 32
    block_multiple: int = 4

    def __call__(self, items: Sequence[TaughtHead]) -> HeadRows:
        pack = PackDrafts(
            self.config, self.draft_length, 1, "full", self.text_multiple, self.block_multiple
        )
        draft = pack([item.taught for item in items])
        features = [item.features for item in items]
        return HeadRows(
            draft=draft,
            visual=_pad([f.visual for f in features], draft.stream.bank_rows.shape[1], np.float32),
            prefix_features=_pad([f.prefix for f in features], draft.prefix_tokens.shape[1]),
            text_features=_pad([f.text for f in features], draft.tokens.shape[1]),
            **_looks(draft, features),
        )  # fmt: skip


def _pad(rows: Sequence[np.ndarray], width: int, dtype: type = np.float16) -> np.ndarray:
    """Rows [n, F] of different lengths -> [B, width, F]."""
    padded = np.zeros((len(rows), width, rows[0].shape[1]), dtype)
    for b, row in enumerate(rows):
        padded[b, : len(row)] = row
    return padded


def _looks(draft: DraftRows, features: Sequence[FeatureRecord]) -> dict[str, np.ndarray]:
    """look_ids and look_weights of every drafted token of every block."""
    steps = np.arange(draft.block_tokens.shape[2])
    shape = (*draft.block_tokens.shape, features[0].look_ids.shape[1])
    ids = np.full(shape, NO_ENTRY, np.int32)
    weights = np.zeros(shape, np.float32)
    for b, record in enumerate(features):
        m, u = np.nonzero(steps[None] < draft.block_lengths[b][:, None])
        places = draft.anchors[b][m] + u
        ids[b, m, u] = record.look_ids[places]
        weights[b, m, u] = record.look_weights[places]
    return {"look_ids": ids, "look_weights": weights}
