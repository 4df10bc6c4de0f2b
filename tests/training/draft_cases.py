"""Synthetic draft batches for tiny models, and decoding oracles that share no code with training.

R: rows of an oracle, one a block; L: its text; g: draft length; k: routed tokens.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tests.pictured import pictured_prompt
from tiger_jax.data.draft_batches import (
    PackDrafts,
    TaughtExample,
    every_block,
    stride_blocks,
)
from tiger_jax.data.draft_examples import DraftExample
from tiger_jax.data.teacher_cache import TeacherRecord
from tiger_jax.data.visual_stream import stream_inputs
from tiger_jax.models.frames import join_tiles
from tiger_jax.routing import router as routing
from tiger_jax.testing.tiny import tiny_model
from tiger_jax.training.draft_batch import draft_batch

G = 3
KEPT, ROWS = 5, 4
SHAPES = (((0,), (4, 6), (5, 2)), ((0, 1), (3,), (6,)), ((), (5, 2), (1, 4)))
"""Pictures, question lengths and response lengths of each example."""


class Case(NamedTuple):
    """A batch on the device with what it was made from."""

    batch: object
    items: list


def drafter_parts(seed=1, looks=0, **sizes):
    """(model, params) of a tiny drafter whose router tells texts apart."""
    model, params = tiny_model(seed, **sizes)
    router = routing.init_router(jax.random.key(seed), model.config.text.hidden_size, looks)
    rng = np.random.default_rng(seed)

    def lively(leaf):
        scale = 3.0 * leaf.shape[0] ** -0.5 if leaf.ndim == 2 else 1.0
        return jnp.asarray(scale * rng.normal(size=leaf.shape), jnp.float32)

    return model, params | {"router": jax.tree.map(lively, router)}


def make_items(config, shapes=SHAPES, seed=0, every=False, g=G):
    """Examples with random questions and responses, and their blocks."""
    rng = np.random.default_rng(seed)
    vocab = config.text.vocab_size

    def words(count):
        return rng.integers(3, vocab - 2, count).astype(np.int32)

    items = []
    for number, (pictures, asked, said) in enumerate(shapes):
        prefix = pictured_prompt(config, pictures, words(1 + number).tolist(), seed + number)
        questions = tuple(words(length) for length in asked)
        example = DraftExample(f"{seed}-{number}", prefix, questions)
        record = make_record(rng, said, vocab, int((prefix.image_ids >= 0).sum()))
        blocks = every_block(said, g) if every else stride_blocks(said, g, rng)
        items.append(TaughtExample(example, record, blocks))
    return items


def make_record(rng, lengths, vocab, bank):
    """Random responses; the response token is among those that a law keeps."""
    count = sum(lengths)
    laws = rng.dirichlet(np.full(vocab, 0.3), count)
    tokens = np.array([rng.choice(np.arange(3, vocab - 2)) for _ in range(count)], np.int32)
    ids = np.argsort(-laws, axis=1)[:, :KEPT].astype(np.int32)
    ids = np.where((ids == tokens[:, None]).any(1)[:, None], ids, np.c_[tokens, ids[:, 1:]])
    logs = np.log(np.maximum(np.take_along_axis(laws, ids, axis=1), 1e-4))
    kept = min(ROWS, bank)
    route_ids = np.full((count, ROWS), -1, np.int32)
    weights = np.zeros((count, ROWS), np.float32)
    for row in range(count if kept else 0):
        route_ids[row, :kept] = rng.permutation(bank)[:kept]
        weights[row, :kept] = 0.9 * rng.dirichlet(np.ones(kept))
    return TeacherRecord(
        lengths=np.array(lengths, np.int32), tokens=tokens,
        logprobs=rng.uniform(-3, -0.1, count).astype(np.float32), law_ids=ids,
        law_logprobs=logs.astype(np.float32), route_ids=route_ids, route_weights=weights,
    )  # fmt: skip


def make_case(config, router, items=None, g=G, **packing) -> Case:
    """Items as a batch for a drafter with this router."""
    items = items or make_items(config, g=g)
    multiples = {"text_multiple": 8, "block_multiple": 2} | packing
    pack = PackDrafts(config, g, router.pooled_tokens, router.stream_query, **multiples)
    return Case(jax.tree.map(jnp.asarray, draft_batch(pack(items)._asdict())), items)


def blocks_of(items):
    """(b, m, question, root in the response) of every block, in the batch's order."""
    return [
        (b, m, int(q), int(r))
        for b, item in enumerate(items)
        for m, (q, r) in enumerate(zip(item.blocks.questions, item.blocks.roots, strict=True))
    ]


def response(item, question):
    """Tokens of one response."""
    starts = np.concatenate([[0], np.cumsum(item.record.lengths)])
    return item.record.tokens[starts[question] : starts[question + 1]]


def prompt_until(item, question, count):
    """The prompt of one question, followed by the first `count` tokens of its response."""
    return item.example.prompt(question).followed_by(response(item, question)[:count])


@functools.partial(jax.jit, static_argnames=("model", "capacity"))
def _prefill(model, params, x, positions, capacity):
    cache = model.init_cache(x.shape[0], capacity)
    return model.prefill(params, x, cache, positions=positions)[:2]


@functools.partial(jax.jit, static_argnames=("model", "g"))
def _extend(model, params, x, positions, cache, starts, mask, g):
    hidden, _, _ = model.extend_embedded(params, x, positions, cache, starts, mask)
    return model.logits(params, hidden[:, -g:])


def visual_table(model, params, prompt):
    """The prompt's own table of visual rows, numpy."""
    if not len(prompt.tiles):
        return np.zeros((0, model.row_width), np.float32)
    tiles = jax.tree.map(jnp.asarray, join_tiles([prompt.tiles], 8))
    table = np.asarray(_encode(model, params, tiles))
    rows = len(prompt.tiles) * prompt.tile_rows
    return np.concatenate([table[:rows], table[-1:]])  # a newline, where there is one


@functools.partial(jax.jit, static_argnames=("model",))
def _encode(model, params, tiles):
    return model.encode_images(params, tiles)


def _read(model, params, config, prompt):
    """(embeddings, positions) of a prompt's stream, and its bank (tokens, positions)."""
    table, words = visual_table(model, params, prompt), word_table(model, params)
    rows = stream_inputs(prompt, config.pooled_tokens, config.stream_query)
    bank = table[prompt.image_rows[rows.bank_sources]]
    x = []
    for token, visual in zip(rows.tokens, rows.visual, strict=True):
        if visual == -1:
            x.append(words[token])
        elif visual >= 0:
            x.append(bank[visual])
        else:
            x.append(bank[rows.bank_regions == -2 - visual].mean(axis=0))
    return np.stack(x), rows.positions, bank, rows.bank_positions


def word_table(model, params):
    """Embeddings of all ids, as wide as visual rows."""
    return np.asarray(model.widen(params["language_model"]["embed_tokens"]["embedding"]))


def pad(rows, width):
    """Rows of different lengths as one array, zeros behind."""
    out = np.zeros((len(rows), width, *rows[0].shape[1:]), rows[0].dtype)
    for row, values in enumerate(rows):
        out[row, : len(values)] = values
    return out


def decode_blocks(model, params, config, blocks, width=64):
    """Logits [R, g, V] and routed bank rows of blocks (item, question, root, drafts [g]), by cached
    decoding with one sequence a block, and numpy in between."""
    read = [_read(model, params, config, prompt_until(i, q, r + 1)) for i, q, r, _ in blocks]
    lengths = np.array([len(x) for x, *_ in read])
    x, positions = pad([r[0] for r in read], width), pad([r[1] for r in read], width)
    hidden, cache = _prefill(model, params, jnp.asarray(x), jnp.asarray(positions), width + 48)
    hidden = np.asarray(hidden)[np.arange(len(read)), lengths - 1]
    words, k = word_table(model, params), config.routed_tokens if config.routes else 0
    tails, places, masks, chosen = [], [], [], []
    starts = lengths if config.routes else lengths - 1
    for row, (_, _, _, drafts) in enumerate(blocks):
        bank, bank_positions = read[row][2:]
        routed = []
        if config.routes:
            seen = bank[:, : model.config.text.hidden_size]
            routed = _best(params["router"], config, hidden[row], seen)
        chosen.append(list(routed))
        tokens = [read[row][0][-1], *words[drafts[:-1]]]
        root = read[row][1][-1]
        empty = np.zeros((k - len(routed), x.shape[-1]), np.float32)
        tails.append(np.stack([*bank[routed], *empty, *tokens]) if k else np.stack(tokens))
        steps = np.arange(len(tokens)).reshape(-1, *[1] * root.ndim)  # on every axis
        none = np.zeros((len(empty), *root.shape), int)
        places.append(np.concatenate([bank_positions[routed].reshape(-1, *root.shape), none,
                                      root + steps]))  # fmt: skip
        masks.append(_tail_mask(starts[row], len(routed), k, len(tokens), width + 48))
    logits = _extend(
        model, params, jnp.asarray(np.stack(tails)), jnp.asarray(np.stack(places), jnp.int32),
        cache, jnp.asarray(starts, jnp.int32), jnp.asarray(np.stack(masks)), len(blocks[0][3]),
    )  # fmt: skip
    return np.asarray(logits), chosen


def _best(router, config, hidden, bank):
    kernel = {name: np.asarray(router[name]["kernel"]) for name in ("query", "key")}
    query = hidden @ kernel["query"]
    if config.selector == "image_only":
        query = np.asarray(router["saliency"])
    scores = (bank @ kernel["key"]) @ query / np.sqrt(len(query))
    return np.sort(np.argsort(-scores, kind="stable")[: config.routed_tokens])


def _tail_mask(start, real, k, tokens, capacity):
    """Rows of the cache that each tail token sees: the text, the tail behind it causally."""
    mask = np.zeros((k + tokens, capacity), bool)
    for t in range(k + tokens):
        mask[t, : start + t + 1] = True
        mask[t, start + real : start + k] = False
    return mask


def full_forward(model, params, rows, width=64):
    """Logits [R, width, V] of whole prompts that end in any text, through prefill alone."""
    plain = routing.RouterConfig("full")
    read = [_read(model, params, plain, prompt) for prompt in rows]
    x, positions = pad([r[0] for r in read], width), pad([r[1] for r in read], width)
    hidden, _ = _prefill(model, params, jnp.asarray(x), jnp.asarray(positions), width)
    return np.asarray(model.logits(params, hidden))
