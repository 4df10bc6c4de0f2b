"""Training blocks against cached decoding of the same prefix, against leaks, and their gradients.

B: examples, M: blocks, K: continuations, g: draft length, k: routed tokens.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from draft_cases import (
    G,
    blocks_of,
    decode_blocks,
    drafter_parts,
    make_case,
    make_items,
    prompt_until,
    response,
)

from tests.pictured import prompt_arrays
from tiger_jax.decoding.drafters.protocol import RoundContext
from tiger_jax.decoding.drafters.routed import RoutedDrafter
from tiger_jax.models.frames import Frames
from tiger_jax.ops.sampling import Sampling, SamplingMode
from tiger_jax.routing.router import RouterConfig
from tiger_jax.testing.tiny import FAMILIES
from tiger_jax.training.align_step import sampled_logits
from tiger_jax.training.distill_step import route_loss
from tiger_jax.training.draft_blocks import BlockDrafter

K = 2
TIGER = RouterConfig("tiger", routed_tokens=3)
CONFIGS = {
    "tiger": TIGER,
    # more than the smaller bank holds
    "text_only": RouterConfig("tiger", routed_tokens=16, query="text_only"),
    "four_pooled": RouterConfig("image_only", routed_tokens=3, pooled_tokens=4),
    "full": RouterConfig("full"),
}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def parts(family):
    return drafter_parts(hidden=16, family=family)


@functools.partial(jax.jit, static_argnames=("drafter",))
def run(drafter, params, batch, sampled):
    """(opened, logits of the batch's blocks, logits of K others)."""
    opened = drafter.open(
        params, batch.stream, batch.tiles, batch.text, batch.anchors, jax.random.key(0)
    )
    return (
        opened, drafter.logits(params, opened, batch.block_tokens),
        sampled_logits(drafter, params, opened, sampled),
    )  # fmt: skip


def sampled_tokens(batch, seed=5):
    shape = (*batch.anchors.shape, K, batch.block_tokens.shape[2])
    return np.random.default_rng(seed).integers(3, 90, shape).astype(np.int32)


def run_case(parts, router, case, sampled=None):
    model, params = parts
    sampled = sampled_tokens(case.batch) if sampled is None else sampled
    return run(BlockDrafter(model, router), params, case.batch, jnp.asarray(sampled))


@pytest.mark.parametrize("name", CONFIGS)
def test_blocks_are_rounds_of_decoding(parts, name):
    """KD blocks, and K sampled blocks of a prefix: several questions a picture, two pictures, none,
    prefixes of different lengths in one batch."""
    model, params = parts
    router = CONFIGS[name]
    case = make_case(model.config, router)
    sampled = sampled_tokens(case.batch)
    opened, logits, branched = run_case(parts, router, case, sampled)
    blocks = blocks_of(case.items)
    tokens = np.concatenate([np.asarray(case.batch.block_tokens)[:, :, None], sampled], axis=2)
    rows = [
        (case.items[b], q, r, tokens[b, m, way])
        for b, m, q, r in blocks for way in range(1 + K)
    ]  # fmt: skip
    want, chosen = decode_blocks(model, params, router, rows)
    got = np.concatenate([np.asarray(logits)[:, :, None], branched], axis=2)
    got = np.stack([got[b, m, way] for b, m, _, _ in blocks for way in range(1 + K)])
    assert len(blocks) == int((case.batch.anchors >= 0).sum()) >= 6
    np.testing.assert_allclose(got, want, atol=1e-5)
    if router.routes:
        for row, (b, m, _, _) in enumerate(blocks):
            valid = np.asarray(opened.routed.valid)[b, m]
            assert np.asarray(opened.routed.indices)[b, m][valid].tolist() == chosen[row * (1 + K)]


def test_blocks_are_proposals_of_the_decoder(family):
    """The laws and routes of RoutedDrafter itself: odd rows greedy, even rows sampled."""
    model, params = parts = drafter_parts(hidden=16, looks=1, family=family)
    router = RouterConfig("tiger", routed_tokens=3, looks=1)
    case = make_case(model.config, router)
    blocks = blocks_of(case.items)
    prompts = [prompt_until(case.items[b], q, r) for b, _, q, r in blocks]
    roots = [response(case.items[b], q)[r] for b, _, q, r in blocks]
    drafter = RoutedDrafter(model, G, router)
    temperature = jnp.where(jnp.arange(len(blocks)) % 2 == 1, 0.0, 1.0)
    tree, state = propose(drafter, params, prompt_arrays(model.config, prompts, width=64),
                          jnp.asarray(roots), temperature)  # fmt: skip
    drafts = np.array(case.batch.block_tokens)
    for row, (b, m, _, _) in enumerate(blocks):
        drafts[b, m] = tree.tokens[row, 1:]
    batch = case.batch.replace(block_tokens=jnp.asarray(drafts))
    opened, logits, _ = run_case(parts, router, case._replace(batch=batch))
    for row, (b, m, _, _) in enumerate(blocks):
        law = jax.nn.softmax(logits[b, m], axis=-1)
        if row % 2:
            assert tree.tokens[row, 1:].tolist() == jnp.argmax(law, axis=-1).tolist()
        else:
            np.testing.assert_allclose(tree.laws[row, 1:], law, atol=1e-5)
        routed = np.asarray(opened.routed.indices)[b, m]
        valid = np.asarray(opened.routed.valid)[b, m]
        assert state.valid[row].tolist() == valid.tolist()
        assert np.asarray(state.indices)[row][valid].tolist() == routed[valid].tolist()


@functools.partial(jax.jit, static_argnames=("drafter",))
def propose(drafter, params, prompt, roots, temperature):
    batch, width = prompt.tokens.shape
    state = drafter.prefill(params, prompt, jnp.zeros((batch, width, 0)), width + 16)
    request = Sampling(
        temperature=temperature, top_k=jnp.zeros((batch,), jnp.int32),
        top_p=jnp.ones((batch,)), seeds=jnp.arange(batch, dtype=jnp.uint32),
    )  # fmt: skip
    context = RoundContext(
        pending=roots, previous=roots, lengths=prompt.lengths, rope_deltas=prompt.rope_deltas,
        active=jnp.ones((batch,), bool), sampling=request,
        drawable=jnp.ones((drafter.model.config.text.vocab_size,), bool),
    )  # fmt: skip
    return drafter.propose(params, state, context, SamplingMode.TEMPERATURE)


def live_of(batch):
    return np.asarray(batch.anchors) >= 0


def put(where, value, positions):
    """`value` where it says so, on every axis of positions."""
    where = where.reshape(*where.shape, *[1] * (positions.ndim - where.ndim))
    return jnp.where(where, value, positions)


def test_padding_is_not_seen(parts):
    case = make_case(parts[0].config, TIGER)
    batch, stream = case.batch, case.batch.stream
    behind = jnp.arange(stream.tokens.shape[1])[None] >= stream.lengths[:, None]
    padded = stream.bank.rows < 0
    assert behind.any()
    assert padded.any()
    assert (batch.segments == 0).any()
    assert (batch.anchors < 0).any()
    other = batch.replace(
        tokens=jnp.where(batch.segments == 0, 50, batch.tokens),
        positions=jnp.where(batch.segments == 0, 7, batch.positions),
        stream=stream.replace(
            tokens=jnp.where(behind, 50, stream.tokens),
            positions=put(behind, 7, stream.positions),
            bank=stream.bank.replace(positions=put(padded, 9, stream.bank.positions)),
        ),
        block_tokens=jnp.where((batch.anchors < 0)[..., None], 50, batch.block_tokens),
    )
    _, before, ways = run_case(parts, TIGER, case)
    _, after, other_ways = run_case(parts, TIGER, case._replace(batch=other))
    live = live_of(batch)
    np.testing.assert_array_equal(before[live], after[live])
    np.testing.assert_array_equal(ways[live], other_ways[live])


def test_questions_and_pictures_do_not_see_each_other(parts):
    """Another second question changes the blocks of that question alone; another picture those of
    its example alone."""
    case = make_case(parts[0].config, TIGER)
    batch = case.batch
    _, before, _ = run_case(parts, TIGER, case)
    asked = batch.replace(tokens=jnp.where(batch.segments == 2, 50, batch.tokens))
    _, after, _ = run_case(parts, TIGER, case._replace(batch=asked))
    live = live_of(batch)
    own = np.take_along_axis(
        np.asarray(batch.segments), np.maximum(np.asarray(batch.anchors), 0), axis=1
    )
    same = (np.abs(before - after) < 1e-6).all(axis=(2, 3))
    np.testing.assert_array_equal(same[live], own[live] != 2)
    tiles = len(case.items[0].example.prefix.tiles)
    seen = batch.replace(tiles=brighter(batch.tiles, tiles))
    _, after, _ = run_case(parts, TIGER, case._replace(batch=seen))
    same = (np.abs(before - after) < 1e-6).all(axis=(2, 3))
    assert same[1:][live[1:]].all()
    assert not same[0][live[0]].any()


def brighter(tiles, count):
    """Other pixels in the first tiles."""
    if isinstance(tiles, Frames):
        return dataclasses.replace(tiles, patches=tiles.patches.at[:count].add(1.0))
    return tiles.at[:count].add(1.0)


def test_text_behind_the_anchor_is_not_seen(parts):
    """A block knows the text up to its root, and its own drafts."""
    case = make_case(parts[0].config, TIGER, make_items(parts[0].config, seed=3))
    batch = case.batch
    last = batch.anchors.max(axis=1, keepdims=True)
    place = jnp.arange(batch.tokens.shape[1])[None]
    other = batch.replace(tokens=jnp.where(place > last, 50, batch.tokens))
    assert (other.tokens != batch.tokens).any()
    _, before, _ = run_case(parts, TIGER, case)
    _, after, _ = run_case(parts, TIGER, case._replace(batch=other))
    live = live_of(batch)
    np.testing.assert_array_equal(before[live], after[live])


def test_routes_depend_on_the_text(parts):
    """Same picture, other text: another set. Not so for image_only."""
    for router, differ in ((TIGER, True), (CONFIGS["four_pooled"], False)):
        case = make_case(parts[0].config, router)
        opened, _, _ = run_case(parts, router, case)
        live, routed = live_of(case.batch)[0], np.asarray(opened.routed.indices)[0]
        assert set(case.items[0].blocks.questions.tolist()) == {0, 1}
        assert (len({tuple(row) for row in routed[live].tolist()}) > 1) == differ


def test_bank_padding_may_stand_anywhere(parts):
    """Rolled rows of the bank: same tokens in the same order, so the same logits."""
    case = make_case(parts[0].config, TIGER)
    bank = case.batch.stream.bank
    counts = (bank.rows >= 0).sum(axis=1)
    shift = bank.rows.shape[1] - int(counts[0])
    assert shift > 0
    rolled = bank.replace(
        **{
            name: getattr(bank, name).at[0].set(jnp.roll(getattr(bank, name)[0], shift, axis=0))
            for name in ("rows", "sources", "positions", "images", "regions")
        }
    )
    batch = case.batch.replace(stream=case.batch.stream.replace(bank=rolled))
    first, before, _ = run_case(parts, TIGER, case)
    second, after, _ = run_case(parts, TIGER, case._replace(batch=batch))
    live = live_of(case.batch)
    np.testing.assert_allclose(before[live], after[live], atol=1e-5)
    np.testing.assert_array_equal(
        np.asarray(first.routed.indices)[0][live[0]] + shift,
        np.asarray(second.routed.indices)[0][live[0]],
    )


def test_bank_order_changes_nothing(parts):
    """Permuted bank rows, two layers: the same tokens are routed, in the order of the prompt."""
    case = make_case(parts[0].config, TIGER)
    bank = case.batch.stream.bank
    order = np.random.default_rng(0).permutation(bank.rows.shape[1])
    names = ("rows", "sources", "positions", "images", "regions")
    mixed = bank.replace(**{name: getattr(bank, name)[:, order] for name in names})
    batch = case.batch.replace(stream=case.batch.stream.replace(bank=mixed))
    first, before, _ = run_case(parts, TIGER, case)
    second, after, _ = run_case(parts, TIGER, case._replace(batch=batch))
    live = live_of(case.batch)
    np.testing.assert_allclose(before[live], after[live], atol=1e-5)
    for b, m, _, _ in blocks_of(case.items):
        routed = []
        for opened, layout in ((first, bank), (second, mixed)):
            valid = np.asarray(opened.routed.valid)[b, m]
            rows = np.asarray(opened.routed.indices)[b, m][valid]
            routed.append(np.asarray(layout.rows)[b, rows].tolist())
        assert routed[0] == routed[1]


@pytest.mark.parametrize("gate", ["none", "straight_through", "sigmoid"])
def test_gradients_of_the_router(parts, gate):
    """W_q and W_v learn from route_distill with any gate, and from the drafts only through one."""
    model, params = parts
    router = RouterConfig("tiger", routed_tokens=3, gate=gate)
    drafter, batch = BlockDrafter(model, router), make_case(model.config, router).batch

    def losses(router):
        tree = params | {"router": router}
        opened = drafter.open(
            tree, batch.stream, batch.tiles, batch.text, batch.anchors, jax.random.key(0)
        )
        logs = jax.nn.log_softmax(drafter.logits(tree, opened, batch.block_tokens))
        weights = batch.block_lengths.astype(jnp.float32)
        return jnp.stack([route_loss(opened, batch, weights)[0], logs[..., 5].sum()])

    gradients = jax.jit(jax.jacrev(losses))(params["router"])
    for name in ("query", "key"):
        taught, drafted = jnp.abs(gradients[name]["kernel"]).max(axis=(1, 2))
        assert taught > 1e-4
        assert (drafted > 1e-6) if gate != "none" else (drafted == 0)
