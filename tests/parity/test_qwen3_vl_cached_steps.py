"""Prefill in pieces, cached steps and the scanned training pass against one pass of transformers.

B: prompts, S: tokens, T: tokens of a piece, C: cache rows, D: width, W: width of a visual row.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from qwen3_vl_pairs import Image, Video, batch_prompts, make_prompt
from qwen3_vl_stages import arrays, reference_stages
from stages import GATE, relative_l2

from tiger_jax.decoding.draft_tree import chain_mask
from tiger_jax.models.interface import build_model

NEW, LENGTH, CAPACITY = 12, 42, 56
CASES = [
    [3, Image(4, 6), 2, Image(6, 4), 2],
    [2, Video(2, 4, 4), 3],
    [9],
]
PIECES = [1, 3, 7]
"""LENGTH is a multiple of each."""
assert all(LENGTH % piece == 0 for piece in PIECES)


def continued(prompt, rng):
    """NEW words more."""
    more = prompt.positions.max() + 1 + np.repeat(np.arange(NEW)[:, None], 3, axis=1)
    return prompt._replace(
        tokens=np.append(prompt.tokens, rng.integers(0, 390, NEW).astype(np.int32)),
        kinds=np.append(prompt.kinds, np.zeros(NEW, np.int32)),
        positions=np.append(prompt.positions, more.astype(np.int32), axis=0),
        image_rows=np.append(prompt.image_rows, np.full(NEW, -1, np.int32)),
    )


@pytest.fixture(scope="module", params=["qwen3_vl", "qwen3_vl_8b"])
def pair(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def prompts():
    return [make_prompt(case) for case in CASES]


@pytest.fixture(scope="module")
def wanted(pair, prompts):
    """Tokens of each continued prompt and transformers' logits for them, in one pass."""
    rng = np.random.default_rng(5)
    longer = [continued(prompt, rng) for prompt in prompts]
    stages = [reference_stages(pair, [prompt])[0] for prompt in longer]
    return [(prompt.tokens, s["logits"]) for prompt, s in zip(longer, stages, strict=True)]


@partial(jax.jit, static_argnames="model")
def embed(model, params, tokens, image_rows, frames):
    """[B, S, W]"""
    return model.embed(params, tokens, image_rows, model.encode_images(params, frames))


@partial(jax.jit, static_argnames="model")
def prefill(model, params, x, positions):
    hidden, cache, _ = model.prefill(
        params, x, model.init_cache(len(x), CAPACITY), positions=positions
    )
    return model.logits(params, hidden), cache


@partial(jax.jit, static_argnames="model")
def extend_embedded(model, params, x, positions, cache, starts):
    mask = chain_mask(starts, x.shape[1], CAPACITY)
    hidden, cache, _ = model.extend_embedded(params, x, positions, cache, starts, mask)
    return model.logits(params, hidden), cache


@partial(jax.jit, static_argnames="model")
def extend(model, params, tokens, positions, cache, starts):
    mask = chain_mask(starts, tokens.shape[1], CAPACITY)
    hidden, cache, _ = model.extend(params, tokens, positions, cache, starts, mask)
    return model.logits(params, hidden), cache


def start(pair, prompts):
    """Embedded prompts [B, S, W], their positions, and their lengths."""
    batch = batch_prompts(prompts, LENGTH, frames=4, patches=24)
    tokens, positions, image_rows, frames = arrays(batch)
    return embed(pair.model, pair.params, tokens, image_rows, frames), positions, batch.lengths


def deltas(prompts) -> np.ndarray:
    return np.array([p.positions.max() + 1 - len(p.tokens) for p in prompts], np.int32)


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("rows", [[0], [0, 1]], ids=["alone", "batch"])
def test_prefill_in_pieces_equals_one_pass(pair, prompts, wanted, rows, piece):
    """B3: what DeepStack adds stays with its tokens, wherever the cut is and whatever the other
    prompt shows."""
    chosen = [prompts[row] for row in rows]
    if piece > 1:  # some cut lies between two visual tokens of one frame
        shown = chosen[0].image_rows >= 0
        assert (shown[piece::piece] & shown[piece - 1 : -1 : piece]).any()
    x, positions, lengths = start(pair, chosen)
    at_once, _ = prefill(pair.model, pair.params, x, positions)
    cache = pair.model.init_cache(len(rows), CAPACITY)
    parts = []
    for first in range(0, LENGTH, piece):
        at = np.s_[:, first : first + piece]
        starts = jnp.full(len(rows), first, jnp.int32)
        logits, cache = extend_embedded(
            pair.model, pair.params, x[at], positions[at], cache, starts
        )
        parts.append(logits)
    got = np.concatenate(parts, axis=1)
    for b, row in enumerate(rows):
        own = got[b, : lengths[b]]
        assert np.abs(own - np.asarray(at_once[b, : lengths[b]])).max() <= 1e-5
        assert relative_l2(own, wanted[row][1][: lengths[b]]) <= GATE


def steps(pair, prompts, wanted, blocks, place):
    """Logits [B, NEW, V] of the words behind the prompts, a block at a time; `place` gives the
    positions of tokens at cache rows [B, T]."""
    x, positions, lengths = start(pair, prompts)
    _, cache = prefill(pair.model, pair.params, x, positions)
    parts, done = [], 0
    for count in blocks:
        rows = lengths[:, None] + done + np.arange(count)
        tokens = np.stack([own[at] for (own, _), at in zip(wanted, rows, strict=True)])
        starts = jnp.asarray(rows[:, 0])
        logits, cache = extend(
            pair.model, pair.params, jnp.asarray(tokens), jnp.asarray(place(rows)), cache, starts
        )
        parts.append(logits)
        done += count
    return np.concatenate(parts, axis=1)


def expected(prompts, wanted) -> np.ndarray:
    return np.stack([
        logits[len(prompt.tokens) :] for prompt, (_, logits) in zip(prompts, wanted, strict=True)
    ])  # fmt: skip


def worst(logits: np.ndarray, target: np.ndarray) -> float:
    """Largest error in units of the largest logit: torch rounds as well, and each kind of processor
    in its own way (1.1e-5 beside logits of 3.9 on an Intel Xeon)."""
    return np.abs(logits - target).max() / np.abs(target).max()


@pytest.mark.parametrize("blocks", [[1] * NEW, [4, 4, 4], [1, 4, 1, 1, 4, 1]], ids=str)
def test_steps_at_length_plus_delta_equal_one_pass(pair, prompts, wanted, blocks):
    """One position a token; three equal ones give the same."""
    delta = deltas(prompts)[:, None]
    assert len(set(delta[:, 0].tolist())) == len(CASES)
    target = expected(prompts, wanted)
    scalar = steps(pair, prompts, wanted, blocks, lambda rows: (rows + delta).astype(np.int32))
    assert worst(scalar, target) <= 5e-6
    assert relative_l2(scalar, target) <= GATE
    axes = steps(
        pair, prompts, wanted, blocks,
        lambda rows: np.repeat((rows + delta).astype(np.int32)[..., None], 3, axis=-1),
    )  # fmt: skip
    np.testing.assert_allclose(axes, scalar, atol=1e-6, rtol=0)


def test_steps_without_delta_differ(pair, prompts, wanted):
    """B2: all prompts but the text one."""
    target = expected(prompts, wanted)
    got = steps(pair, prompts, wanted, [1] * NEW, lambda rows: rows.astype(np.int32))
    assert np.abs(got - target)[:2].max(axis=(1, 2)).min() > 0.1
    assert worst(got[2], target[2]) <= 5e-6


def test_text_needs_one_position_a_token(pair):
    x = jax.random.normal(jax.random.key(0), (1, LENGTH, pair.config.text.hidden_size))
    one = jnp.arange(LENGTH, dtype=jnp.int32)[None]
    three = jnp.broadcast_to(one[..., None], (1, LENGTH, 3))
    scalar, _ = prefill(pair.model, pair.params, x, one)
    axes, _ = prefill(pair.model, pair.params, x, three)
    unsaid, _ = prefill(pair.model, pair.params, x, None)
    np.testing.assert_allclose(axes, scalar, atol=1e-6, rtol=0)
    assert np.array_equal(unsaid, scalar)


@pytest.fixture(scope="module")
def training(pair, prompts):
    """Value, hidden states and gradients of the training pass: remat -> those."""
    x, positions, _ = start(pair, prompts)
    mask = jnp.tril(jnp.ones((1, LENGTH, LENGTH), bool))
    decoder = {"language_model": pair.params["language_model"]}

    def run(remat: bool):
        model = build_model(pair.config, remat=remat)

        def loss(decoder, x):
            hidden, context, taps = model.context(decoder, x, positions, mask, (0, 1, 2, 3, 4))
            score = jax.nn.logsumexp(model.logits(decoder, hidden), axis=-1)
            keys = sum(jnp.mean(k**2) for k in context.keys)
            return jnp.mean(score**2) + keys + jnp.mean(jnp.sin(taps)), (hidden, taps)

        return jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(decoder, x)

    return {remat: jax.device_get(run(remat)) for remat in (False, True)}


def test_the_scanned_pass_equals_the_unrolled_one(training):
    """Values and gradients, those of the visual rows and what DeepStack adds included."""
    flat, _ = jax.tree_util.tree_flatten_with_path(training[False])
    scanned = jax.tree.leaves(training[True])
    for (path, leaf), other in zip(flat, scanned, strict=True):
        assert relative_l2(other, leaf) <= 1e-5, jax.tree_util.keystr(path)
    _, (_, by_row) = training[True]
    width = by_row.shape[-1] // 4
    shares = np.abs(by_row.reshape(-1, 4, width)).max(axis=(0, 2))
    assert (shares > 1e-5).all()


def test_the_training_pass_equals_prefill(pair, prompts, wanted, training):
    (_, (hidden, _)), _ = training[True]
    logits = np.asarray(pair.model.logits(pair.params, jnp.asarray(hidden)))
    for b, prompt in enumerate(prompts):
        count = len(prompt.tokens)
        assert relative_l2(logits[b, :count], wanted[b][1][:count]) <= GATE
