"""Training streams: shuffled by seed, sharded over processes, exactly resumable.

`mixture` gives the records of any sources one by one; `scene_batches` gives batches of scenes.

Letters: B scenes, P prefix tokens, N questions a scene (branches), T branch tokens, n tiles a
scene, M = B * n tiles a batch, r visual rows a tile, C cells, H, W tile height, width.

The four questions of a scene share one image prefix, so the picture is paid for once:

    prefix     <s> USER: <image> <image> .. <image> \\n
    branch 0       Read the words in the picture. ASSISTANT: It says cat. </s>
    branch 1       How many stars are there? ASSISTANT: There are 2. </s>
    loss                                                 ^^^^^^^^^^^^^^^^^

Prefix + branch is token by token the full prompt and answer of that question alone.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Literal, NamedTuple

import grain
import numpy as np
from jaxtyping import Bool, Int32

from tiger_jax.data import clips, scenes
from tiger_jax.data.batches import PromptInputs, batch_prompts, make_prompt
from tiger_jax.data.clips import Clip, make_clip
from tiger_jax.data.examples import DroppedExample, shown_in
from tiger_jax.data.processor import Processor
from tiger_jax.data.prompts import build_prompt
from tiger_jax.data.scenes import HELD_OUT, QA, Scene, make_scene
from tiger_jax.errors import UserError
from tiger_jax.models.frames import Tiles, join_tiles

BRANCH_LENGTH = 56
"""Holds every question and answer of a 4x4 scene; a 4x8 or 8x4 one needs 96."""
Records = Sequence | grain.sources.RandomAccessDataSource
"""`len`, and an index that gives the same record each time."""
_GOLDEN = 0.6180339887498949


class SceneExample(NamedTuple):
    """One scene for supervised training; `loss_mask` marks what to predict: answer and `</s>`."""

    prefix: PromptInputs
    branch_tokens: Int32[np.ndarray, "N T"]
    loss_mask: Bool[np.ndarray, "N T"]
    branch_lengths: Int32[np.ndarray, " N"]


class SceneBatch(NamedTuple):
    """Examples stacked; `prefix_image_rows` indexes the flat table [M * r + 1] as in batches.py."""

    prefix_tokens: Int32[np.ndarray, "B P"]
    prefix_image_rows: Int32[np.ndarray, "B P"]
    prefix_lengths: Int32[np.ndarray, " B"]
    prefix_positions: Int32[np.ndarray, "B P *A"]
    text_starts: Int32[np.ndarray, " B"]
    """Rotary position of a branch's first token."""
    tiles: Tiles
    branch_tokens: Int32[np.ndarray, "B N T"]
    loss_mask: Bool[np.ndarray, "B N T"]
    branch_lengths: Int32[np.ndarray, "B N"]


class TowerBatch(NamedTuple):
    """Pictures of one tile with the class of every cell, for pre-training the vision tower."""

    tiles: Tiles
    content: Int32[np.ndarray, "B C"]
    color: Int32[np.ndarray, "B C"]


@dataclass(frozen=True)
class SceneSource(grain.sources.RandomAccessDataSource):
    """Scenes `first_index` up to `first_index + num_scenes` of the stream `seed`, or clips.

    `hard_share` of them have clutter, always the same ones.
    """

    num_scenes: int
    seed: int = 0
    first_index: int = 0
    hard_share: float = 0.0
    grid: tuple[int, int] = (4, 4)
    extra: tuple[str, ...] = ()
    """Kinds of questions that each scene is asked besides its own four."""
    clips: bool = False

    def __post_init__(self):
        if self.first_index < HELD_OUT < self.first_index + self.num_scenes:
            raise ValueError(
                f"scenes {self.first_index}..{self.first_index + self.num_scenes - 1}: "
                f"expected all below or all from {HELD_OUT} (held out), got both"
            )

    def __len__(self) -> int:
        return self.num_scenes

    def __getitem__(self, position: int) -> Scene | Clip:
        index = self.first_index + int(position)
        hard = index * _GOLDEN % 1 < self.hard_share  # spread evenly, the same for every run
        if self.clips:
            drawn, ask = make_clip(self.seed, index, hard), clips.ask_more
        else:
            drawn, ask = make_scene(self.seed, index, hard, self.grid), scenes.ask_more
        more = ask(drawn, self.extra, [self.seed, index, len(self.extra)])
        return replace(drawn, qa=drawn.qa + more)


@dataclass(frozen=True)
class PackBranches(grain.transforms.Map):
    """Scene or Clip -> SceneExample."""

    processor: Processor
    branch_length: int = BRANCH_LENGTH

    def map(self, scene: Scene | Clip) -> SceneExample:
        first, shown = scene.qa[0].question, shown_in(scene)
        prompt = build_prompt(self.processor, first, *map(len, shown))
        prefix = make_prompt(
            self.processor, self.processor.config, prompt[: prompt.index(first)], shown.images,
            videos=shown.videos,
        )  # fmt: skip
        return SceneExample(prefix, *self._branches(scene.qa))

    def _branches(self, qa: Sequence[QA]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        shape = len(qa), self.branch_length
        tokens = np.full(shape, self.processor.config.pad_token_id, np.int32)
        loss = np.zeros(shape, bool)
        lengths = np.zeros(len(qa), np.int32)
        for b, pair in enumerate(qa):
            asked, answered = branch_ids(self.processor, pair)
            lengths[b] = len(asked) + len(answered)
            if lengths[b] > self.branch_length:
                raise ValueError(
                    f"branch {pair.question!r}: expected at most {self.branch_length} tokens, "
                    f"got {lengths[b]}"
                )
            tokens[b, : lengths[b]] = asked + answered
            loss[b, len(asked) : lengths[b]] = True
        return tokens, loss, lengths


@dataclass(frozen=True)
class PackTower(grain.transforms.Map):
    """Scene -> TowerBatch of one row without the batch axis."""

    processor: Processor

    def map(self, scene: Scene) -> TowerBatch:
        tile = self.processor.base_tile(scene.image)
        return TowerBatch(tile, scene.cell_content, scene.cell_color)


def branch_ids(processor: Processor, pair: QA) -> tuple[list[int], list[int]]:
    """Ids after the image prefix: (question up to "ASSISTANT:", answer with its end token)."""
    prompt = build_prompt(processor, pair.question, n_images=1)
    asked = processor.encode_piece(prompt[prompt.index(pair.question) :])
    return asked, processor.encode_answer(pair.answer)


def scene_batches(
    processor: Processor,
    sources: Sequence[tuple[SceneSource, float]],
    batch_size: int,
    task: Literal["sft", "tower"] = "sft",
    shuffle_seed: int | None = 0,
    num_epochs: int | None = None,
    shard: tuple[int, int] = (0, 1),
    branch_length: int = BRANCH_LENGTH,
    num_workers: int = 0,
) -> grain.IterDataset:
    """Batches of scenes and of clips: SceneBatch for "sft", TowerBatch for "tower".

    A batch is of one source, so that its prompts are of one length; sources take turns as their
    weights say, or come one after the other where they are read a number of times.

    `iter()` of the result has `get_state()` and `set_state(state)`: a restored iterator gives
    exactly the next batch.

    Args:
        shuffle_seed: order of the scenes, drawn anew each epoch; None keeps them in order.
        num_epochs: None repeats for ever. A last incomplete batch is left out.
        shard: (process index, number of processes); each scene goes to exactly one process an
        epoch.

    Raises:
        UserError: a source that is read a number of times and never fills a batch.
    """
    index, count = _check_shard(shard)
    sft = task == "sft"
    pack = PackBranches(processor, branch_length) if sft else PackTower(processor)
    collate = _Collate(processor) if sft else _stack_tower

    def batches(source: SceneSource) -> grain.MapDataset:
        data = grain.MapDataset.source(source)
        if shuffle_seed is not None:
            data = data.shuffle(shuffle_seed)
        data = data[index::count].repeat(num_epochs).map(pack)
        return data.batch(batch_size, drop_remainder=True, batch_fn=collate)

    parts = [batches(source) for source, _ in sources]
    if num_epochs is not None:
        if not all(map(len, parts)):
            sizes = ", ".join(str(len(source)) for source, _ in sources)
            raise UserError(f"scenes: expected {batch_size} or more for a batch, got {sizes}")
        data = grain.MapDataset.concatenate(parts)
    else:
        data = grain.MapDataset.mix(parts, [weight for _, weight in sources])
    return _read(data, num_workers)


def mixture(
    sources: Sequence[tuple[Records, float | int]],
    seed: int | None,
    shard: tuple[int, int] = (0, 1),
    num_epochs: int | None = None,
    transform: Callable | grain.transforms.Map | None = None,
    random_transform: Callable | None = None,
    num_workers: int = 0,
    dropped: dict[tuple[str, str], str] | None = None,
) -> grain.IterDataset:
    """Records of several sources as one pool, each at its own rate.

    A source of n records with weight w gives round(w * n) of them an epoch, the next ones of its
    own endless stream: all weights 1 is plain concatenation, each record once an epoch;
    2 is each twice; 0.5 is one half, and the other half in the next epoch. To draw a share p of an
    epoch of N records from it, give w = p * N / n. The epoch is shuffled as a whole.

    `iter()` of the result has `get_state()` and `set_state(state)`: a restored iterator gives
    exactly the next record, if everything but `dropped` is as it was. Batches: `.batch(size,
    drop_remainder=True, batch_fn=collate)` of the result.

    Args:
        sources: (records, weight), as a list of examples or a SceneSource.
        seed: order of the records, drawn anew each epoch; None keeps them in order. Grain takes
            about 10 ms a record to shuffle fewer than 64 of them, 1 ms at 100, 0.03 ms at 1,000.
        shard: (process index, number of processes). The shards of an epoch are disjoint and
            together the whole of it; they differ by one record where it does not divide.
        num_epochs: None repeats for ever.
        transform: record -> element, run in the workers. Elements that are DroppedExample are
            left out.
        random_transform: (record, numpy generator) -> element, in its place: its draws belong to
            the record's place in the endless stream.
        dropped: filled with what was left out so far, (source, id) -> why.

    Raises:
        UserError: an empty source, a weight that is not positive, fewer records than processes;
            while reading, a stream without any usable record.
    """
    index, count = _check_shard(shard)
    parts = [
        _part(i, records, weight, _derive_seed(seed, i))
        for i, (records, weight) in enumerate(sources)
    ]
    pool = _Pool(tuple(accumulate((size for _, size in parts), initial=0)))
    if len(pool) < count:
        raise UserError(f"mixture: expected at least {count} records (processes), got {len(pool)}")
    data = grain.MapDataset.select_from_datasets([part for part, _ in parts], pool)
    if seed is not None:
        data = data.shuffle(_derive_seed(seed, len(parts)))
    data = data[index::count]
    usable = _KeepUsable({} if dropped is None else dropped, patience=2 * len(data))
    data = data.repeat(num_epochs)
    if transform is not None:
        data = data.map(transform)
    if random_transform is not None:
        data = data.random_map(random_transform, seed=_derive_seed(seed or 0, len(parts) + 1))
    return _read(data, num_workers).filter(usable)


def draft_batches(
    sources: Sequence[tuple[Records, float | int]],
    teach: Callable,
    pack: Callable,
    batch_size: int,
    **settings: Any,
) -> grain.IterDataset:
    """Batches of a mixture: `teach` and `pack` are draft_batches.TeachExample and PackDrafts, or
    head_batches.TeachHead and PackHeads; `settings` those of `mixture`. A last incomplete batch is
    left out."""
    data = mixture(sources, random_transform=teach, **settings)
    return data.batch(batch_size, drop_remainder=True, batch_fn=pack)


def _part(
    number: int, records: Records, weight: float | int, seed: int | None
) -> tuple[grain.MapDataset, int]:
    """A source's endless stream and how many records it gives an epoch."""
    size = round(weight * len(records)) if weight > 0 else 0
    if size < 1:
        raise UserError(
            f"mixture: expected records and a positive weight in source {number}, "
            f"got {len(records)} records with weight {weight:g}"
        )
    part = grain.MapDataset.source(records)
    if seed is not None and size % len(records):  # else the pool's own shuffle is enough
        part = part.shuffle(seed)
    return part, size


def _derive_seed(seed: int | None, number: int) -> int | None:
    """Seeds far apart: Grain adds the epoch to a seed, so neighbours would share orders."""
    if seed is None:
        return None
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])


def _check_shard(shard: tuple[int, int]) -> tuple[int, int]:
    index, count = shard
    if not 0 <= index < count:
        raise ValueError(f"shard: expected index below count, got {shard}")
    return shard


def _read(data: grain.MapDataset, num_workers: int) -> grain.IterDataset:
    """Elements in order, made here (0) or by worker processes."""
    stream = data.to_iter_dataset(grain.ReadOptions(num_threads=0))
    if num_workers:
        stream = stream.mp_prefetch(grain.MultiprocessingOptions(num_workers=num_workers))
    return stream


@dataclass(frozen=True)
class _Pool(grain.transforms.DatasetSelectionMap):
    """Index in the endless merged pool -> (source, index in that source's endless stream).

    `starts` are where each source begins in an epoch, and the epoch's length.
    """

    starts: tuple[int, ...]

    def __len__(self) -> int:
        return self.starts[-1]

    def __getitem__(self, index: int) -> tuple[int, int]:
        epoch, offset = divmod(index, len(self))
        source = bisect_right(self.starts, offset) - 1
        size = self.starts[source + 1] - self.starts[source]
        return source, epoch * size + offset - self.starts[source]


@dataclass
class _KeepUsable(grain.transforms.Filter):
    """Runs after the workers, in the process that reads, so that one count sees everything."""

    dropped: dict[tuple[str, str], str]
    patience: int
    in_a_row: int = 0

    def filter(self, element: Any) -> bool:
        if not isinstance(element, DroppedExample):
            self.in_a_row = 0
            return True
        self.dropped[element.source, element.id] = element.message
        self.in_a_row += 1
        if self.in_a_row >= self.patience:  # an endless stream of these would never return
            raise UserError(f"mixture: no usable record; the last one: {element.message}")
        return False


@dataclass(frozen=True)
class _Collate:
    """A class, not a closure, so that worker processes can receive it."""

    processor: Processor

    def __call__(self, examples: Sequence[SceneExample]) -> SceneBatch:
        prefixes = [example.prefix for example in examples]
        longest = max(len(prefix.tokens) for prefix in prefixes)
        n_tiles = sum(len(prefix.tiles) for prefix in prefixes)
        batch = batch_prompts(prefixes, self.processor.config, longest, n_tiles)
        _, tokens, loss, lengths = zip(*examples, strict=True)
        return SceneBatch(
            prefix_tokens=batch.tokens,
            prefix_image_rows=batch.image_rows,
            prefix_lengths=batch.lengths,
            prefix_positions=batch.positions,
            text_starts=np.array([prefix.next_position for prefix in prefixes], np.int32),
            tiles=batch.tiles,
            branch_tokens=np.stack(tokens),
            loss_mask=np.stack(loss),
            branch_lengths=np.stack(lengths),
        )


def _stack_tower(rows: Sequence[TowerBatch]) -> TowerBatch:
    tiles, content, color = zip(*rows, strict=True)
    return TowerBatch(join_tiles(tiles, len(rows)), np.stack(content), np.stack(color))
