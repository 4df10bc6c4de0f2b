"""The verifier's hidden states along its own answers, kept for the heads that learn from them.

What `teacher` is for laws: one packed pass over prompts with their responses fills a FeatureCache.
"""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import numpy as np

from tiger_jax.data.batches import batch_prompts, round_tiles, round_width
from tiger_jax.data.draft_batches import question_pairs
from tiger_jax.data.draft_examples import DraftExample
from tiger_jax.data.feature_cache import FeatureCache, FeatureRecord
from tiger_jax.data.packing import pack_texts
from tiger_jax.data.teacher_cache import TeacherCache, TeacherRecord
from tiger_jax.decoding.engine import Engine
from tiger_jax.training.block_layout import Prefixes, TextRows
from tiger_jax.training.head_features import Features, FeatureSettings, verifier_features


@dataclasses.dataclass(frozen=True)
class FeatureTeacher:
    """A frozen verifier that fills a cache of features."""

    engine: Engine
    settings: FeatureSettings
    batch: int = 16

    def fill(
        self, cache: FeatureCache, answers: TeacherCache, examples: Callable[[int], DraftExample],
        keys: Sequence[str], progress: Callable[[int], None] = lambda done: None, shard: int = 128,
    ) -> None:  # fmt: skip
        """Read every example whose key has no record, a shard at a time.

        Args:
            answers: the verifier's responses, complete for `keys`.
            examples: the example at a place of `keys`.
        """
        missing = cache.missing(keys)
        for start in range(0, len(missing), shard):
            group = [examples(place) for place in missing[start : start + shard]]
            records = []
            for first in range(0, len(group), self.batch):
                part = group[first : first + self.batch]
                records += self.read(part, [answers[example.key] for example in part])
            cache.add_shard([(e.key, r) for e, r in zip(group, records, strict=True)])
            progress(len(group))

    def read(
        self, examples: Sequence[DraftExample], said: Sequence[TeacherRecord]
    ) -> list[FeatureRecord]:
        """Records of at most `batch` examples, in their order."""
        filled = self.batch - len(examples)
        everyone = [*examples, *[examples[-1]] * filled]
        answers = [*said, *[said[-1]] * filled]
        packed = pack_texts([question_pairs(*each) for each in zip(everyone, answers, strict=True)])
        prefixes = [example.prefix for example in everyone]
        longest = round_width(max(len(prefix.tokens) for prefix in prefixes))
        tiles = round_tiles(sum(len(prefix.tiles) for prefix in prefixes), len(prefixes))
        batch = batch_prompts(prefixes, self.engine.model.config, longest, tiles)
        shared = Prefixes(**batch._asdict())
        starts = np.array([prefix.next_position for prefix in prefixes])
        text = TextRows(packed.tokens, packed.segments, starts[:, None] + packed.offsets)
        found = jax.device_get(self.engine.over_batch(self._pass, (shared, text)))
        return [
            _record(found, b, batch.image_rows[b], len(prefixes[b].tokens), packed.segments[b])
            for b in range(len(examples))
        ]

    def _pass(self, texts: tuple[Prefixes, TextRows]) -> Features:
        return verifier_features(self.engine.model, self.settings, self.engine.params, *texts)


def _record(
    found: Features, b: int, image_rows: np.ndarray, length: int, segments: np.ndarray
) -> FeatureRecord:
    inside = segments > 0
    return FeatureRecord(
        prefix=found.prefix[b, :length],
        visual=found.table[image_rows[image_rows >= 0]],
        text=found.text[b, inside],
        look_ids=found.look_ids[b, inside],
        look_weights=found.look_weights[b, inside],
    )
