"""Batches for training a drafter: prompts, the verifier's responses, and the blocks to draft.

Letters: B examples, P verifier-prefix tokens, L packed text tokens, M blocks of an example, g draft
length, k kept tokens of a law, w kept rows of an attention, n tiles of the batch.

A block starts at a response token, its root, and drafts the tokens behind it. The first response
token comes from the prefill in decoding, so it is a root and never drafted:

    response   y1 y2 y3 y4 y5 y6 </s>
    stride 3   root y1, drafts y2 | root y2, drafts y3 y4 y5 | root y5, drafts y6 </s>  (offset 1)
    every      a block of g drafts at each of y1 .. y6
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int32

from tiger_jax.data.batches import batch_prompts, round_tiles, round_width
from tiger_jax.data.clips import Clip
from tiger_jax.data.draft_examples import AskQuestions, DraftExample
from tiger_jax.data.examples import DroppedExample, Example
from tiger_jax.data.packing import PackedTexts, pack_texts
from tiger_jax.data.scenes import Scene
from tiger_jax.data.teacher_cache import TeacherCache, TeacherRecord
from tiger_jax.data.visual_stream import StreamBatch, batch_streams
from tiger_jax.models.config import ModelConfig
from tiger_jax.models.frames import Tiles

Lengths = Sequence[int] | np.ndarray
"""Tokens of each response of an example."""
NO_BLOCK = -1
"""Anchor of a place without a block."""


class BlockPlaces(NamedTuple):
    """Blocks of one example."""

    questions: Int32[np.ndarray, " M"]
    roots: Int32[np.ndarray, " M"]
    """Index of the root in its response."""
    lengths: Int32[np.ndarray, " M"]
    """Drafted tokens that belong to the response."""


class TaughtExample(NamedTuple):
    """An example, what the verifier said, and where drafts start."""

    example: DraftExample
    record: TeacherRecord
    blocks: BlockPlaces


BLOCK_MULTIPLE = 4
"""Blocks of an example are filled up to a multiple of it, for few shapes."""


class DraftRows(NamedTuple):
    """A batch; positions are those of the full prompt, padding is 0 unless said."""

    tiles: Tiles
    prefix_tokens: Int32[np.ndarray, "B P"]
    prefix_image_rows: Int32[np.ndarray, "B P"]
    prefix_lengths: Int32[np.ndarray, " B"]
    prefix_positions: Int32[np.ndarray, "B P *A"]
    stream: StreamBatch
    """The prefixes as the drafter reads them."""
    tokens: Int32[np.ndarray, "B L"]
    segments: Int32[np.ndarray, "B L"]
    positions: Int32[np.ndarray, "B L"]
    anchors: Int32[np.ndarray, "B M"]
    """The root's place in the packed text; NO_BLOCK is padding."""
    block_lengths: Int32[np.ndarray, "B M"]
    block_tokens: Int32[np.ndarray, "B M g"]
    block_logprobs: Float32[np.ndarray, "B M g"]
    """Of the tokens, under the verifier's own law."""
    law_ids: Int32[np.ndarray, "B M g k"]
    law_logprobs: Float32[np.ndarray, "B M g k"]
    route_ids: Int32[np.ndarray, "B M w"]
    route_weights: Float32[np.ndarray, "B M w"]
    record_ids: tuple[str, ...]
    """Keys of the examples, for messages."""


def stride_blocks(lengths: Lengths, g: int, rng: np.random.Generator) -> BlockPlaces:
    """Blocks that hold every response token but the first exactly once, at a random offset."""
    places = []
    for question, length in enumerate(lengths):
        offset, last = int(rng.integers(g)), int(length) - 1
        roots = [*([0] if offset else []), *range(offset, last, g)]
        ends = [*roots[1:], last][: len(roots)]  # a response of one token has no root
        places += [(question, r, end - r) for r, end in zip(roots, ends, strict=True) if end > r]
    return _places(places)


def every_block(lengths: Lengths, g: int) -> BlockPlaces:
    """A block at each response token that has a successor."""
    return _places(
        [(q, r, min(g, int(n) - 1 - r)) for q, n in enumerate(lengths) for r in range(int(n) - 1)]
    )


def random_blocks(lengths: Lengths, g: int, count: int, rng: np.random.Generator) -> BlockPlaces:
    """`count` different random cuts of the responses; all there are if they are fewer."""
    every = every_block(lengths, g)
    kept = np.sort(rng.permutation(len(every.roots))[:count])
    return BlockPlaces(*(field[kept] for field in every))


def _places(rows: list[tuple[int, int, int]]) -> BlockPlaces:
    return BlockPlaces(*np.array(rows, np.int32).reshape(-1, 3).T)


@dataclass(frozen=True)
class TeachExample:
    """Scene, Clip or Example -> TaughtExample, its blocks drawn anew each epoch.

    What cannot be read, or has no answer in the cache, becomes a DroppedExample.
    """

    ask: AskQuestions
    cache: TeacherCache
    draft_length: int
    cuts: int = 0
    """0: blocks that hold every token; else this many random cuts."""

    def __call__(
        self, record: Scene | Clip | Example, rng: np.random.Generator
    ) -> TaughtExample | DroppedExample:
        example = self.ask(record)
        if isinstance(example, DroppedExample):
            return example
        if example.key not in self.cache:
            return DroppedExample(example.key, "teacher", "the verifier has not answered it")
        said = self.cache[example.key]
        if fault := self.ask.too_long(example, said.lengths):
            return DroppedExample(example.key, "teacher", fault)
        if self.cuts:
            blocks = random_blocks(said.lengths, self.draft_length, self.cuts, rng)
        else:
            blocks = stride_blocks(said.lengths, self.draft_length, rng)
        return TaughtExample(example, said, blocks)


@dataclass(frozen=True)
class PackDrafts:
    """TaughtExamples -> DraftRows. A class, so that worker processes can receive it."""

    config: ModelConfig
    draft_length: int
    pooled_tokens: int
    query: str
    """As `visual_stream.stream_inputs`: visual, text_only or full."""
    text_multiple: int = 32
    block_multiple: int = BLOCK_MULTIPLE

    def __call__(self, items: Sequence[TaughtExample]) -> DraftRows:
        prefixes = [item.example.prefix for item in items]
        tiles = round_tiles(sum(len(prefix.tiles) for prefix in prefixes), len(items))
        longest = round_width(max(len(prefix.tokens) for prefix in prefixes))
        most = max(int((prefix.image_ids >= 0).sum()) for prefix in prefixes)
        verifier = batch_prompts(prefixes, self.config, longest, tiles)
        stream = batch_streams(
            prefixes, self.config, self.pooled_tokens, self.query, tile_bucket=tiles,
            seq_bucket=longest, bank_bucket=round_width(max(most, 1)),
        )  # fmt: skip
        stream = _cut_stream(stream)
        texts = pack_texts(
            [question_pairs(item.example, item.record) for item in items], self.text_multiple
        )
        inside = texts.segments > 0
        starts = np.array([prefix.next_position for prefix in prefixes])
        positions = np.where(inside, starts[:, None] + texts.offsets, 0)
        return DraftRows(
            tiles=verifier.tiles, prefix_tokens=verifier.tokens,
            prefix_image_rows=verifier.image_rows, prefix_lengths=verifier.lengths,
            prefix_positions=verifier.positions, stream=stream, tokens=texts.tokens,
            segments=texts.segments, positions=positions.astype(np.int32),
            record_ids=tuple(item.example.key for item in items), **self._blocks(items, texts),
        )  # fmt: skip

    def _blocks(self, items: Sequence[TaughtExample], texts: PackedTexts) -> dict[str, np.ndarray]:
        most = max(len(item.blocks.roots) for item in items)
        size = max(-(-most // self.block_multiple) * self.block_multiple, self.block_multiple)
        g, first = self.draft_length, items[0].record
        k, w = first.law_ids.shape[1], first.route_ids.shape[1]
        blocks = {
            "anchors": np.full((len(items), size), NO_BLOCK, np.int32),
            "block_lengths": np.zeros((len(items), size), np.int32),
            "block_tokens": np.zeros((len(items), size, g), np.int32),
            "block_logprobs": np.zeros((len(items), size, g), np.float32),
            "law_ids": np.full((len(items), size, g, k), -1, np.int32),
            "law_logprobs": np.full((len(items), size, g, k), -np.inf, np.float32),
            "route_ids": np.full((len(items), size, w), -1, np.int32),
            "route_weights": np.zeros((len(items), size, w), np.float32),
        }
        for b, item in enumerate(items):
            self._fill(blocks, b, item, texts)
        return blocks

    def _fill(self, blocks: dict, b: int, item: TaughtExample, texts: PackedTexts) -> None:
        record, (questions, roots, lengths) = item.record, item.blocks
        count = len(roots)
        starts = np.concatenate([[0], np.cumsum(record.lengths)[:-1]]).astype(np.int64)
        places = [texts.responses(b, n) for n in range(len(record.lengths))]
        root = starts[questions] + roots  # in the record, all responses one after the other
        blocks["anchors"][b, :count] = np.concatenate(places)[root]
        blocks["block_lengths"][b, :count] = lengths
        blocks["route_ids"][b, :count] = record.route_ids[root]
        blocks["route_weights"][b, :count] = record.route_weights[root]
        for u in range(self.draft_length):
            real = np.flatnonzero(lengths > u)
            drafted = root[real] + 1 + u
            blocks["block_tokens"][b, real, u] = record.tokens[drafted]
            blocks["block_logprobs"][b, real, u] = record.logprobs[drafted]
            blocks["law_ids"][b, real, u] = record.law_ids[drafted]
            blocks["law_logprobs"][b, real, u] = record.law_logprobs[drafted]


def question_pairs(
    example: DraftExample, said: TeacherRecord
) -> list[tuple[np.ndarray, np.ndarray]]:
    """(question, response) of each question, as texts are packed."""
    responses = np.split(said.tokens, np.cumsum(said.lengths)[:-1])
    return list(zip(example.questions, responses, strict=True))


def _cut_stream(stream: StreamBatch) -> StreamBatch:
    """Without most columns that are padding in every row: a stream is far shorter than its
    prompt."""
    longest = round_width(int(stream.lengths.max()))
    names = ("tokens", "sources", "positions", "visual")
    return stream._replace(**{name: getattr(stream, name)[:, :longest] for name in names})
