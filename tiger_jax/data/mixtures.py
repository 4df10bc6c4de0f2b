"""Training streams over scenes: shuffled by seed, sharded over processes, exactly resumable.

Letters: B scenes, P prefix tokens, N questions a scene (branches), T branch tokens, n tiles a
scene, M = B * n tiles a batch, r visual rows a tile, C cells, H, W tile height, width.

The four questions of a scene share one image prefix, so the picture is paid for once:

    prefix     <s> USER: <image> <image> .. <image> \\n
    branch 0       Read the words in the picture. ASSISTANT: It says cat. </s>
    branch 1       How many stars are there? ASSISTANT: There are 2. </s>
    loss                                                 ^^^^^^^^^^^^^^^^^

Prefix + branch is token by token the full prompt and answer of that question alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import grain
import numpy as np
from jaxtyping import Bool, Float32, Int32

from tiger_jax.data.batches import PromptInputs, batch_prompts, make_prompt
from tiger_jax.data.processor import Processor
from tiger_jax.data.prompts import build_prompt
from tiger_jax.data.scenes import HELD_OUT, QA, Scene, ask_more, make_scene

BRANCH_LENGTH = 56
"""Holds every question and answer of a 4x4 scene; a 4x8 or 8x4 one needs 96."""
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
    tiles: Float32[np.ndarray, "M H W 3"]
    branch_tokens: Int32[np.ndarray, "B N T"]
    loss_mask: Bool[np.ndarray, "B N T"]
    branch_lengths: Int32[np.ndarray, "B N"]


class TowerBatch(NamedTuple):
    """Pictures of one tile with the class of every cell, for pre-training the vision tower."""

    tiles: Float32[np.ndarray, "B H W 3"]
    content: Int32[np.ndarray, "B C"]
    color: Int32[np.ndarray, "B C"]


@dataclass(frozen=True)
class SceneSource(grain.sources.RandomAccessDataSource):
    """Scenes `first_index` up to `first_index + num_scenes` of the stream `seed`.

    `hard_share` of them have clutter, always the same ones.
    """

    num_scenes: int
    seed: int = 0
    first_index: int = 0
    hard_share: float = 0.0
    grid: tuple[int, int] = (4, 4)
    extra: tuple[str, ...] = ()
    """Kinds of questions that each scene is asked besides its own four."""

    def __post_init__(self):
        if self.first_index < HELD_OUT < self.first_index + self.num_scenes:
            raise ValueError(
                f"scenes {self.first_index}..{self.first_index + self.num_scenes - 1}: "
                f"expected all below or all from {HELD_OUT} (held out), got both"
            )

    def __len__(self) -> int:
        return self.num_scenes

    def __getitem__(self, position: int) -> Scene:
        index = self.first_index + int(position)
        hard = index * _GOLDEN % 1 < self.hard_share  # spread evenly, the same for every run
        scene = make_scene(self.seed, index, hard, self.grid)
        more = ask_more(scene, self.extra, [self.seed, index, len(self.extra)])
        return replace(scene, qa=scene.qa + more)


@dataclass(frozen=True)
class PackBranches(grain.transforms.Map):
    """Scene -> SceneExample."""

    processor: Processor
    branch_length: int = BRANCH_LENGTH

    def map(self, scene: Scene) -> SceneExample:
        first = scene.qa[0].question
        prompt = build_prompt(self.processor, first, n_images=1)
        prefix = make_prompt(
            self.processor, self.processor.config, prompt[: prompt.index(first)], [scene.image]
        )
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
        tile = self.processor.normalise(scene.image)
        return TowerBatch(tile, scene.cell_content, scene.cell_color)


def branch_ids(processor: Processor, pair: QA) -> tuple[list[int], list[int]]:
    """Ids after the image prefix: (question up to "ASSISTANT:", answer with its end token)."""
    prompt = build_prompt(processor, pair.question, n_images=1)
    asked = processor.encode_piece(prompt[prompt.index(pair.question) :])
    answered = processor.encode_piece(f" {pair.answer}{processor.tokenizer.eos_token}")
    return asked, answered


def scene_batches(
    processor: Processor,
    source: SceneSource,
    batch_size: int,
    task: Literal["sft", "tower"] = "sft",
    shuffle_seed: int | None = 0,
    num_epochs: int | None = None,
    shard: tuple[int, int] = (0, 1),
    branch_length: int = BRANCH_LENGTH,
    num_workers: int = 0,
) -> grain.IterDataset:
    """Batches of a scene source: SceneBatch for "sft", TowerBatch for "tower".

    `iter()` of the result has `get_state()` and `set_state(state)`: a restored iterator gives
    exactly the next batch.

    Args:
        shuffle_seed: order of the scenes, drawn anew each epoch; None keeps them in order.
        num_epochs: None repeats for ever. A last incomplete batch is left out.
        shard: (process index, number of processes); each scene goes to exactly one process an
        epoch.
    """
    index, count = shard
    if not 0 <= index < count:
        raise ValueError(f"shard: expected index below count, got {shard}")
    data = grain.MapDataset.source(source)
    if shuffle_seed is not None:
        data = data.shuffle(shuffle_seed)
    data = data[index::count].repeat(num_epochs)
    if task == "sft":
        data = data.map(PackBranches(processor, branch_length))
        collate = _Collate(processor)
    else:
        data, collate = data.map(PackTower(processor)), _stack_tower
    data = data.batch(batch_size, drop_remainder=True, batch_fn=collate)
    data = data.to_iter_dataset(grain.ReadOptions(num_threads=0))
    if num_workers:
        data = data.mp_prefetch(grain.MultiprocessingOptions(num_workers=num_workers))
    return data


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
            tiles=batch.tiles,
            branch_tokens=np.stack(tokens),
            loss_mask=np.stack(loss),
            branch_lengths=np.stack(lengths),
        )


def _stack_tower(rows: Sequence[TowerBatch]) -> TowerBatch:
    return TowerBatch(*map(np.stack, zip(*rows, strict=True)))
