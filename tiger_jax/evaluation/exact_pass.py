"""How likely each draft is accepted along a verifier's own responses: one packed pass a drafter.

B: pictures of a batch, L: packed text tokens, M: blocks, g: draft length, n: tokens of a response,
R: bank rows, V: vocabulary.

Every response token is the root of a block of g drafts, which are the response's next tokens. Draft
y is accepted with min(1, q_T(y) / p_T(y)) (p verifier, q drafter, both of the same prefix, with the
ids masked that decoding never draws); at T = 0 iff argmax q = y. evaluation/exact_acceptance.py
makes rounds of it.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from tiger_jax.data.batches import PromptInputs
from tiger_jax.data.draft_batches import PackDrafts, TaughtExample, every_block
from tiger_jax.data.draft_examples import DraftExample
from tiger_jax.data.teacher_cache import TeacherRecord
from tiger_jax.decoding.drafters.head import HeadDrafter
from tiger_jax.decoding.drafters.medusa import MedusaDrafter
from tiger_jax.decoding.drafters.protocol import PromptArrays
from tiger_jax.decoding.drafters.routed import RoutedDrafter
from tiger_jax.decoding.engine import Engine
from tiger_jax.models.interface import VisionLanguageModel
from tiger_jax.ops.sampling import log_chosen, mask_undrawable
from tiger_jax.pipeline import Pipeline
from tiger_jax.routing.router import LOOK_ONCE
from tiger_jax.training import block_layout
from tiger_jax.training.draft_batch import DraftBatch, draft_batch
from tiger_jax.training.draft_blocks import BlockDrafter
from tiger_jax.training.head_blocks import BlockHead
from tiger_jax.training.head_features import FeatureSettings, with_features

TEXT_MULTIPLE, BLOCK_MULTIPLE = 64, 32
"""Widths are rounded up to these: a few programs a drafter, however the answers differ."""
Progress = Callable[[int], None]


class Spoken(NamedTuple):
    """A picture's questions, and what the verifier answered."""

    example: DraftExample
    record: TeacherRecord
    """`logprobs` are log p_T once `with_logprobs` has filled them in; laws are empty."""


def spoken(example: DraftExample, record: TeacherRecord) -> Spoken:
    """Without what only training needs of a record."""
    none = np.zeros((len(record.tokens), 0))
    return Spoken(example, TeacherRecord(
        record.lengths, record.tokens, np.zeros(len(record.tokens), np.float32),
        law_ids=none.astype(np.int32), law_logprobs=none.astype(np.float32),
        route_ids=record.route_ids, route_weights=record.route_weights,
    ))  # fmt: skip


def spoken_to(prompt: PromptInputs, answer: Sequence[int]) -> Spoken:
    """One prompt with the tokens of its answer, the end token included if it was said."""
    visual = np.flatnonzero(prompt.image_ids >= 0)
    cut = int(visual[-1]) + 1 if len(visual) else 1
    prefix = prompt.cut(cut)
    tokens, none = np.asarray(answer, np.int32), np.zeros((len(answer), 0), np.float32)
    record = TeacherRecord(
        np.array([len(tokens)], np.int32), tokens, none, none, none,
        route_ids=none.astype(np.int32), route_weights=none,
    )  # fmt: skip
    return spoken(DraftExample("", prefix, (prompt.tokens[cut:],)), record)


def with_logprobs(
    engine: Engine, items: Sequence[Spoken], temperature: float, batch_size: int
) -> list[Spoken]:
    """The same with log p_T of every response token under the verifier; as they are at T = 0."""
    if temperature == 0:
        return list(items)
    pack = PackDrafts(engine.model.config, 1, 1, "full", TEXT_MULTIPLE, BLOCK_MULTIPLE)
    drawable, filled = jnp.asarray(engine.drawable), list(items)
    for members, batch in _batches(pack, items, batch_size, engine.model):
        after = np.asarray(
            _next_logprobs(engine.model, engine.params, batch, drawable, jnp.float32(temperature))
        )
        for row, number in enumerate(members):
            example, record = items[number]
            logprobs = after[row, _places(example, record) - 1]
            filled[number] = Spoken(example, record._replace(logprobs=logprobs))
    return filled


def draft_chances(
    pair: Pipeline, items: Sequence[Spoken], temperature: float, draft_length: int,
    batch_size: int, seed: int = 0, progress: Progress = lambda done: None, oracle: bool = False,
) -> list[Float[np.ndarray, "n g"]]:  # fmt: skip
    """[j - 1, u - 1]: draft u of a round at root y_j is accepted; of each response, in order.

    Args:
        items: with log p_T of this temperature.
        seed: of the selector `random`.
        oracle: route by the verifier's own attention instead of the router.
    """
    law = jnp.asarray(pair.engine.drawable), jnp.float32(temperature)
    if isinstance(pair.engine.drafter, HeadDrafter | MedusaDrafter):
        reader = _head_reader(pair, items, law, draft_length)
    else:
        reader = _model_reader(pair, items, law, draft_length, batch_size, oracle)
    rows, model = reader.rows, pair.engine.model
    chances: list[list[np.ndarray]] = [[] for _ in rows]
    for number, (members, batch) in enumerate(_batches(reader.pack, rows, batch_size, model)):
        key = jax.random.fold_in(jax.random.key(seed), number)
        found = np.asarray(reader.find(batch, members, key))
        for row, item in enumerate(members):
            chances[item] = _by_response(found[row], rows[item].record.lengths.tolist())
        progress(sum(len(rows[item].record.lengths) for item in members))
    return [response for item in chances for response in item]


class _Reader(NamedTuple):
    """How one kind of drafter is asked."""

    rows: list[Spoken]
    pack: PackDrafts
    find: Callable[[DraftBatch, list[int], Array], Array]
    """(batch, numbers of its rows, key) -> chances [B, M, g]."""


def _model_reader(
    pair: Pipeline, items: Sequence[Spoken], law: tuple[Array, Array], draft_length: int,
    batch_size: int, oracle: bool,
) -> _Reader:  # fmt: skip
    """A model of its own, which may route by scores that are not its router's."""
    router, engine = pair.router, pair.engine
    model, params = engine.drafter.model, engine.drafter_params
    looks = router.selector in LOOK_ONCE
    # Such scores may depend on the question, so that each is a row of its own.
    rows = [part for item in items for part in _questions(item)] if looks else list(items)
    drafter = BlockDrafter(model, router)
    pack = PackDrafts(
        model.config, draft_length, router.pooled_tokens, router.stream_query, TEXT_MULTIPLE,
        BLOCK_MULTIPLE,
    )  # fmt: skip

    def find(batch: DraftBatch, members: list[int], key: Array) -> Array:
        scores = None
        if looks:
            scores = _look_once(pair, [rows[i] for i in members], batch_size)
            scores = scores[:, None, : batch.stream.bank.rows.shape[1]]
        elif oracle:
            scores = _target_scores(batch)
        return _chances(drafter, params, batch, *law, key, scores)

    return _Reader(rows, pack, find)


def _head_reader(
    pair: Pipeline, items: Sequence[Spoken], law: tuple[Array, Array], draft_length: int
) -> _Reader:
    """A head, which reads the verifier's own states."""
    engine, drafter, length = pair.engine, pair.engine.drafter, draft_length
    if isinstance(drafter, MedusaDrafter):
        block, length = BlockHead(drafter.head), min(length, drafter.head.config.medusa_heads)
    else:
        block = BlockHead(drafter.head, drafter.router, drafter.route_query, drafter.route_every)

    def find(batch: DraftBatch, members: list[int], key: Array) -> Array:
        del members
        found = _head_chances(
            block, engine.model, engine.params, engine.drafter_params, batch, *law, key
        )
        # Blocks of a Medusa head end early: nothing behind them is accepted.
        return jnp.pad(found, ((0, 0), (0, 0), (0, draft_length - length)))

    pack = PackDrafts(engine.model.config, length, 1, "full", TEXT_MULTIPLE, BLOCK_MULTIPLE)
    return _Reader(list(items), pack, find)


@partial(jax.jit, static_argnames=("drafter",))
def _chances(
    drafter: BlockDrafter, params: Any, batch: DraftBatch, drawable: Bool[Array, "V"],
    temperature: Float[Array, ""], key: Key[Array, ""],
    scores: Float[Array, "B #M R"] | None,
) -> Float[Array, "B M g"]:  # fmt: skip
    if scores is not None:
        scores = jnp.broadcast_to(scores, (*batch.anchors.shape, scores.shape[-1]))
    opened = drafter.open(params, batch.stream, batch.tiles, batch.text, batch.anchors, key, scores)
    logits = drafter.logits(params, opened, batch.block_tokens)
    return _accepted(logits, batch, drawable, temperature)


@partial(jax.jit, static_argnames=("block", "model"))
def _head_chances(
    block: BlockHead, model: VisionLanguageModel, params: Any, drafter_params: Any,
    batch: DraftBatch, drawable: Bool[Array, "V"], temperature: Float[Array, ""],
    key: Key[Array, ""],
) -> Float[Array, "B M g"]:  # fmt: skip
    settings = FeatureSettings(block.head.config.taps)
    told = with_features(model, settings, params, batch, drafter_params["shared"])
    unrolled = block.unroll(drafter_params["head"], told, key)
    logits = block.logits(drafter_params["head"], told, unrolled)
    return _accepted(logits, batch, drawable, temperature)


def _accepted(
    logits: Float[Array, "B M g V"], batch: DraftBatch, drawable: Bool[Array, "V"],
    temperature: Float[Array, ""],
) -> Float[Array, "B M g"]:  # fmt: skip
    """The chance of each draft, once those before it are accepted."""
    logits = mask_undrawable(logits, drawable)
    agrees = jnp.argmax(logits, axis=-1) == batch.block_tokens
    log_q = log_chosen(logits, batch.block_tokens, jnp.where(temperature > 0, temperature, 1.0))
    chances = jnp.exp(jnp.minimum(log_q - batch.block_logprobs, 0.0))
    return jnp.where(temperature > 0, chances, agrees.astype(jnp.float32))


@partial(jax.jit, static_argnames=("model",))
def _next_logprobs(
    model: VisionLanguageModel, params: Any, batch: DraftBatch, drawable: Bool[Array, "V"],
    temperature: Float[Array, ""],
) -> Float[Array, "B L"]:  # fmt: skip
    """log p_T of the token behind each packed one."""
    run = block_layout.run_prompts(model, params, batch.prefixes, batch.text)
    logits = mask_undrawable(model.logits(params, run.hidden), drawable)
    return log_chosen(logits, jnp.pad(batch.tokens[:, 1:], ((0, 0), (0, 1))), temperature)


def _target_scores(batch: DraftBatch) -> Float[Array, "B M R"]:
    """The verifier's attention target at each root, as scores."""
    size, count = batch.anchors.shape
    rows = batch.stream.bank.rows.shape[1]
    ids = jnp.where(batch.route_ids >= 0, batch.route_ids, rows)  # padding is dropped
    places = jnp.arange(size)[:, None, None], jnp.arange(count)[None, :, None], ids
    return jnp.zeros((size, count, rows)).at[places].set(batch.route_weights, mode="drop")


def _look_once(pair: Pipeline, items: Sequence[Spoken], batch_size: int) -> Float[Array, "B R"]:
    """Scores as decoding makes them, from the whole prompts."""
    prompts = [item.example.prompt(0) for item in items]
    prompts += [prompts[-1]] * (batch_size - len(prompts))
    return _saliency(pair.engine.drafter, pair.engine.drafter_params, pair.arrays(prompts))


@partial(jax.jit, static_argnames=("drafter",))
def _saliency(drafter: RoutedDrafter, params: Any, prompt: PromptArrays) -> Float[Array, "B R"]:
    room = prompt.tokens.shape[1] + drafter.spec.nodes
    taps = jnp.zeros((*prompt.tokens.shape, 0))  # such a drafter reads none
    return drafter.prefill(params, prompt, taps, room).bank.saliency


def _batches(
    pack: PackDrafts, items: Sequence[Spoken], size: int, model: VisionLanguageModel
) -> Iterator[tuple[list[int], DraftBatch]]:
    """Numbers of the items in each batch, and the batch; short texts together, `size` rows each."""

    def length(number: int) -> int:
        example, record = items[number]
        return len(record.tokens) + sum(map(len, example.questions))

    order = sorted(range(len(items)), key=length)
    for start in range(0, len(order), size):
        members = order[start : start + size]
        filled = members + [members[-1]] * (size - len(members))
        taught = [
            TaughtExample(*item, every_block(item.record.lengths.tolist(), pack.draft_length))
            for item in (items[number] for number in filled)
        ]
        batch = jax.tree.map(jnp.asarray, draft_batch(pack(taught)._asdict()))
        yield members, batch.replace(tiles=batch.tiles.astype(model.dtype))


def _questions(item: Spoken) -> list[Spoken]:
    """An item for each question."""
    example, record = item
    ends = np.cumsum(record.lengths)
    return [
        Spoken(
            example._replace(questions=(question,)),
            TeacherRecord(
                record.lengths[n : n + 1],
                *(field[ends[n] - record.lengths[n] : ends[n]] for field in record[1:]),
            ),
        )
        for n, question in enumerate(example.questions)
    ]


def _places(example: DraftExample, record: TeacherRecord) -> np.ndarray:
    """Where the response tokens stand in the packed row."""
    places, start = [], 0
    for question, length in zip(example.questions, record.lengths, strict=True):
        start += len(question)
        places.append(start + np.arange(length))
        start += int(length)
    return np.concatenate(places)


def _by_response(
    blocks: Float[np.ndarray, "M g"], lengths: Sequence[int]
) -> list[Float[np.ndarray, "n g"]]:
    """Blocks of one row, in the order of `every_block`; the last token of a response is no root."""
    found, start = [], 0
    for length in lengths:
        count = max(length - 1, 0)
        rows = np.zeros((length, blocks.shape[1]))
        rows[:count] = blocks[start : start + count]
        found.append(rows)
        start += count
    return found
