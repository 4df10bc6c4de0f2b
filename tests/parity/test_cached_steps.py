"""Prefill and cached extension against one full forward pass of transformers.

B prompts of other lengths and image counts share one batch, so every row starts elsewhere.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pairs import picture, prompt_text
from stages import GATE, make_prompts, reference_stages, relative_l2

from tiger_jax.data.batches import batch_prompts
from tiger_jax.decoding.draft_tree import DraftSpec, DraftTree, ancestors, cache_mask, chain_mask
from tiger_jax.ops.kv_cache import move_rows

NEW = 12
CAPACITY = 192
CASES = [
    (prompt_text(2), [picture(60, 100), picture(130, 45, 1)]),
    (prompt_text(0, 9), []),
    (prompt_text(1, 4), [picture(31, 400)]),
]


@pytest.fixture(scope="module")
def wanted(pair):
    """transformers' logits of each prompt with NEW more random tokens behind it, in one pass."""
    rng = np.random.default_rng(5)
    texts = [
        f"{text} {' '.join(f'word{i}' for i in rng.integers(0, 290, NEW))}" for text, _ in CASES
    ]
    stages = [
        reference_stages(pair, text, images) for text, (_, images) in zip(texts, CASES, strict=True)
    ]
    return [(s["token ids"], s["logits"]) for s in stages]


@partial(jax.jit, static_argnames="model")
def prefill(model, params, tokens, image_rows, tiles):
    table = model.encode_images(params, tiles)
    x = model.embed(params, tokens, image_rows, table)
    hidden, cache, _ = model.prefill(params, x, model.init_cache(len(tokens), CAPACITY))
    return model.logits(params, hidden), cache


@partial(jax.jit, static_argnames="model")
def verify(model, params, tokens, positions, lengths, mask, cache):
    hidden, cache, _ = model.extend(params, tokens, positions, cache, lengths, mask)
    return model.logits(params, hidden), cache


def extend(model, params, tokens, lengths, cache):
    """T more tokens of each row as a chain."""
    count = tokens.shape[1]
    positions = lengths[:, None] + jnp.arange(count)[None]
    mask = chain_mask(lengths, count, CAPACITY)
    return verify(model, params, tokens, positions, lengths, mask, cache)


def start(pair, rows):
    prompts = make_prompts(pair, [CASES[row] for row in rows])
    batch = batch_prompts(prompts, pair.config, seq_bucket=160, tile_bucket=16)
    logits, cache = prefill(
        pair.model, pair.params, jnp.asarray(batch.tokens), jnp.asarray(batch.image_rows),
        jnp.asarray(batch.tiles),
    )  # fmt: skip
    return np.asarray(logits), cache, jnp.asarray(batch.lengths)


def next_tokens(wanted, rows, lengths, first, count):
    """Tokens first .. first + count - 1 behind each prompt."""
    starts = np.asarray(lengths) + first
    return jnp.asarray(
        np.stack([wanted[row][0][s : s + count] for row, s in zip(rows, starts, strict=True)]),
        jnp.int32,
    )


@pytest.mark.parametrize("rows", [[0], [0, 1, 2]], ids=["alone", "batch"])
@pytest.mark.parametrize("blocks", [[1] * NEW, [4] * 3, [1, 4, 1, 1, 4, 1]], ids=str)
def test_steps_equal_one_pass(pair, wanted, rows, blocks):
    logits, cache, lengths = start(pair, rows)
    prompt_ends = np.asarray(lengths)
    for b, row in enumerate(rows):
        expected = wanted[row][1][: prompt_ends[b]]
        assert relative_l2(logits[b, : prompt_ends[b]], expected) <= GATE
    done = 0
    for count in blocks:
        tokens = next_tokens(wanted, rows, prompt_ends, done, count)
        logits, cache = extend(pair.model, pair.params, tokens, lengths, cache)
        for b, row in enumerate(rows):
            at = prompt_ends[b] + done
            expected = wanted[row][1][at : at + count]
            assert np.abs(np.asarray(logits[b]) - expected).max() <= 1e-5, (row, done)
            assert relative_l2(np.asarray(logits[b]), expected) <= GATE
        lengths, done = lengths + count, done + count


def test_rows_advance_by_different_amounts(pair, wanted):
    """As after a speculative round: each row keeps another part of the same block."""
    rows, kept = [0, 1, 2], np.array([4, 1, 2])
    _, cache, lengths = start(pair, rows)
    tokens = next_tokens(wanted, rows, lengths, 0, 4)
    garbage = jnp.where(jnp.arange(4)[None] < kept[:, None], tokens, 7)
    _, cache = extend(pair.model, pair.params, garbage, lengths, cache)
    starts = np.asarray(lengths) + kept
    tokens = next_tokens(wanted, rows, starts, 0, 4)
    logits, _ = extend(pair.model, pair.params, tokens, jnp.asarray(starts), cache)
    for b, row in enumerate(rows):
        expected = wanted[row][1][starts[b] : starts[b] + 4]
        assert np.abs(np.asarray(logits[b]) - expected).max() <= 1e-5


@pytest.mark.parametrize("rows", [[0], [0, 1, 2]], ids=["alone", "batch"])
def test_a_branch_of_a_tree_equals_one_pass(pair, wanted, rows):
    """The true continuation is one path among wrong siblings; then its rows move to the front.

    node    0  1  2  3  4  5        0 - 2 - 3 - 5 is true, 1 and 4 are wrong
    parent -1  0  0  2  2  3
    """
    path, parents = [0, 2, 3, 5], [-1, 0, 0, 2, 2, 3]
    _, cache, lengths = start(pair, rows)
    prompt_ends = np.asarray(lengths)
    true = next_tokens(wanted, rows, lengths, 0, len(path))
    tokens = jnp.full((len(rows), 6), 9, jnp.int32).at[:, jnp.asarray(path)].set(true)
    batch = (len(rows), 6)
    tree = DraftTree(
        tokens, jnp.broadcast_to(jnp.asarray(parents)[None], batch), jnp.ones(batch, bool)
    )
    seen = ancestors(tree, DraftSpec(nodes=6, depth=3, is_chain=False))
    positions = lengths[:, None] + seen.sum(-1, dtype=jnp.int32) - 1
    mask = cache_mask(seen, lengths, CAPACITY)
    logits, cache = verify(pair.model, pair.params, tokens, positions, lengths, mask, cache)
    logits = np.asarray(logits)
    for b, row in enumerate(rows):
        expected = wanted[row][1][prompt_ends[b] : prompt_ends[b] + 4]
        assert np.abs(logits[b, path] - expected).max() <= 1e-5

    accepted = jnp.broadcast_to(jnp.asarray(path)[None], (len(rows), 4))
    cache = jax.jit(move_rows)(cache, lengths, accepted)
    tokens = next_tokens(wanted, rows, prompt_ends, 4, 4)
    logits, _ = extend(pair.model, pair.params, tokens, lengths + 4, cache)
    for b, row in enumerate(rows):
        at = prompt_ends[b] + 4
        assert np.abs(np.asarray(logits[b]) - wanted[row][1][at : at + 4]).max() <= 1e-5
