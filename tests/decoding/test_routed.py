"""Routed drafting: the geometry of a round, and that nothing but speed depends on it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.decoding import conftest as tools
from tests.decoding import test_sampling_law as law
from tests.decoding.conftest import accepted, emitted, limits_of, sampling_of
from tests.decoding.test_sampling_law import TableModel
from tests.pictured import mixed_prompts, pictured_prompt, prompt_arrays
from tiger_jax.decoding import speculative
from tiger_jax.decoding.drafters.protocol import RoundContext
from tiger_jax.decoding.drafters.routed import RoutedDrafter, RoutedState, tail_mask
from tiger_jax.decoding.drafters.vlm import VLMDrafter
from tiger_jax.models.frames import arrays_of
from tiger_jax.models.interface import build_model
from tiger_jax.ops.rotary import on_axes
from tiger_jax.ops.sampling import SamplingMode
from tiger_jax.routing import router as routing
from tiger_jax.routing.bank import BankLayout, embed_stream, gather_rows
from tiger_jax.routing.router import RouterConfig
from tiger_jax.testing.tiny import FAMILIES, lively_params

GREEDY = SamplingMode.GREEDY
WIDTH = 16


@pytest.fixture(scope="module", params=FAMILIES)
def config_of(request):
    """Configurations of a family by their sizes."""
    return FAMILIES[request.param]


@pytest.fixture(scope="module")
def verifier(config_of):
    """Verifier and drafter cut pictures alike; capacity for prompts of 128 tokens."""
    model = build_model(config_of())
    return Wide(model, lively_params(model, 0))


class Wide(tools.Runner):
    def start(self, prompt, sampling, limits, mode, drafter=None, drafter_params=None):
        return tools._start(
            model=self.model, drafter=drafter, params=self.params, drafter_params=drafter_params,
            prompt=prompt, request=sampling, limits=limits, capacity=176, room=32, mode=mode,
        )  # fmt: skip


@pytest.fixture(scope="module")
def small(config_of):
    """A random drafter with a lively router: its routes differ from text to text."""
    return drafter_of(config_of(hidden=WIDTH))


def drafter_of(config, seed=1):
    model = build_model(config)
    params = lively_params(model, seed)
    return model, params | {"router": lively_router(config.text.hidden_size, seed)}


def lively_router(width, seed):
    """Random weights, the saliency vector too."""
    router = routing.init_router(jax.random.key(seed), width)
    return router | {"saliency": jax.random.normal(jax.random.key(seed + 1), (width,))}


@pytest.fixture(scope="module")
def prompts(config_of):
    return mixed_prompts(config_of())


CASES = [
    ("tiger", 1, 1), ("tiger", 4, 8), ("tiger", 8, 3), ("tiger", 32, 3), ("random", 4, 3),
    ("image_only", 4, 1), ("sparsevlm", 4, 1), ("vispruner", 4, 1), ("full", 8, 1),
]  # fmt: skip


@pytest.mark.parametrize(("selector", "k", "g"), CASES)
def test_no_route_changes_a_token(verifier, small, prompts, plain, selector, k, g):
    prompt, sampling, limits = prompt_arrays(small[0].config, prompts), sampling_of(4), budget()
    drafter = VLMDrafter(small[0], g)
    if selector != "full":
        drafter = RoutedDrafter(small[0], g, RouterConfig(selector, k))
    params = small[1] if selector in routing.LEARNED else without_router(small[1])
    state = verifier.run(prompt, sampling, limits, GREEDY, drafter, params)
    assert emitted(state) == plain


def without_router(params):
    return {name: value for name, value in params.items() if name != "router"}


def budget():
    return limits_of(4, max_new=(24, 23, 22, 21), stop_ids=(7,))


@pytest.fixture(scope="module")
def plain(verifier, prompts):
    prompt = prompt_arrays(verifier.model.config, prompts)
    return emitted(verifier.run(prompt, sampling_of(4), budget()))


def test_the_router_cannot_draft_for_full(small):
    with pytest.raises(ValueError, match="selector other than full"):
        RoutedDrafter(small[0], 3, RouterConfig("full"))


def test_tail_mask_by_hand():
    """Two stream rows, three routed places of which two exist, the root and a draft."""
    mask = tail_mask(jnp.asarray([2]), jnp.asarray([[True, True, False]]), 0, 5, 8)
    want = ["11100000", "11110000", "11110000", "11110100", "11110110"]
    assert ["".join(str(int(x)) for x in row) for row in mask[0]] == want
    alone = tail_mask(jnp.asarray([2]), jnp.asarray([[True, True, False]]), 4, 1, 8)
    assert alone[0].tolist() == mask[0, 4:].tolist()


def test_a_round_is_the_whole_text_run_at_once(verifier, prompts):
    """The verifier's weights draft, so that several tokens are accepted: after some rounds the
    cached stream, the route and the drafts equal one pass over [stream | routed | root | drafts]
    without any cache. Pooled tokens of four regions."""
    model = verifier.model
    params = verifier.params | {"router": lively_router(32, 5)}
    drafter = RoutedDrafter(model, 3, RouterConfig(routed_tokens=6, pooled_tokens=4))
    prompt = prompt_arrays(model.config, prompts, pooled_tokens=4)
    sampling, limits = sampling_of(4), limits_of(4)
    state = verifier.start(prompt, sampling, limits, GREEDY, drafter, params)
    state = tools._speculative(
        model=model, drafter=drafter, params=verifier.params, drafter_params=params, state=state,
        request=sampling, limits=limits, rounds=jnp.int32(3), mode=GREEDY,
    )  # fmt: skip
    assert len({int(c) for c in state.counts}) > 1  # rows went different ways
    context = RoundContext(
        pending=state.pending, previous=state.previous, lengths=state.lengths,
        rope_deltas=state.rope_deltas, active=state.active, sampling=sampling,
        drawable=limits.drawable,
    )  # fmt: skip
    tree, after = jax.jit(drafter.propose, static_argnums=3)(params, state.drafter, context, GREEDY)
    run = jax.jit(model.context)
    table = model.encode_images(params, prompt.tiles)
    bank_tokens = gather_rows(table, prompt.stream.bank)
    stream = np.asarray(embed_stream(model, params, prompt.stream, bank_tokens))
    for row in range(4):
        size, count = int(prompt.stream.lengths[row]), int(state.counts[row])
        text = model.embed(params, state.tokens[row : row + 1, :count])[0]
        first = int(prompt.lengths[row])
        x = np.concatenate([stream[row, :size], model.widen(text)])
        delta = int(prompt.rope_deltas[row])
        before = np.asarray(prompt.stream.positions[row, :size])
        places = np.concatenate([before, spread(first + delta + np.arange(count), before)])
        hidden = whole(run, params, x, places)
        width = model.config.text.hidden_size
        seen = np.asarray(bank_tokens[row])[:, :width]
        bank = seen @ np.asarray(params["router"]["key"]["kernel"])
        scores = bank @ (hidden @ np.asarray(params["router"]["query"]["kernel"]))
        real = int((np.asarray(prompt.stream.bank.rows[row]) >= 0).sum())
        best = sorted(np.argsort(-scores[:real], kind="stable")[:6].tolist())
        assert np.asarray(after.indices[row])[np.asarray(after.valid[row])].tolist() == best
        x = np.concatenate([x, np.asarray(bank_tokens[row])[best]])
        places = np.concatenate([places, np.asarray(prompt.stream.bank.positions[row])[best]])
        token, drafts = int(state.pending[row]), []
        for step in range(3):
            word = model.embed(params, jnp.asarray([[token]]))[0]
            x = np.concatenate([x, model.widen(word)])
            next_place = np.array([int(state.lengths[row]) + delta + step])
            places = np.concatenate([places, spread(next_place, places)])
            logits = model.logits(params, jnp.asarray(whole(run, params, x, places)))
            token = int(jnp.argmax(jnp.where(limits.drawable, logits, -1e9)))
            drafts.append(token)
        assert tree.tokens[row, 1:].tolist() == drafts


def spread(positions, like):
    """A text's positions on as many axes as `like` has."""
    return np.asarray(on_axes(jnp.asarray(positions), jnp.asarray(like)))


def whole(run, params, x, places, size=160):
    """Hidden state of the last row of a causal pass."""
    count = len(x)
    rest = size - count
    x = jnp.pad(jnp.asarray(x), ((0, rest), (0, 0)))[None]
    places = jnp.asarray(places, jnp.int32)
    places = jnp.pad(places, ((0, rest), *[(0, 0)] * (places.ndim - 1)))[None]
    causal = jnp.tril(jnp.ones((size, size), bool))[None]
    return np.asarray(run(params, x, places, causal)[0][0, count - 1])


@pytest.mark.parametrize("selector", ["tiger", "random"])
def test_a_row_does_not_depend_on_its_batch(verifier, small, prompts, selector):
    mode, config = SamplingMode.TEMPERATURE, small[0].config
    drafter = RoutedDrafter(small[0], 4, RouterConfig(selector, 4))
    together = verifier.run(
        prompt_arrays(config, prompts), sampling_of(4, 1.0, seeds=[11, 12, 13, 14]), limits_of(4),
        mode, drafter, small[1],
    )  # fmt: skip
    for row in (0, 3):
        alone = verifier.run(
            prompt_arrays(config, [prompts[row]], tile_bucket=8),
            sampling_of(1, 1.0, seeds=[11 + row]), limits_of(1), mode, drafter, small[1],
        )  # fmt: skip
        assert emitted(alone)[0] == emitted(together)[row]
        assert accepted(alone)[0] == accepted(together)[row]


def test_stale_rows_are_never_read(verifier, prompts):
    """Everything behind the stream, old tails too, is 1e9 between rounds. The verifier drafts, so
    a wrong row would show in what is accepted."""
    params = verifier.params | {"router": lively_router(32, 5)}
    drafter = RoutedDrafter(verifier.model, 4, RouterConfig(routed_tokens=4))
    prompt = prompt_arrays(verifier.model.config, prompts)
    sampling, limits = sampling_of(4), limits_of(4)
    want = verifier.run(prompt, sampling, limits, GREEDY, drafter, params)

    def poison(rows, first):
        behind = jnp.arange(rows.shape[2])[None] >= first[:, None]
        return jnp.where(behind[:, None, :, None], 1e9, rows)

    @jax.jit
    def round_of(state):
        inner = state.drafter
        first = state.lengths + inner.offsets - inner.fresh_count
        cache = jax.tree.map(lambda rows: poison(rows, first), inner.cache)
        state = state.replace(drafter=inner.replace(cache=cache))
        return speculative.decode_round(
            verifier.model, drafter, verifier.params, params, state, sampling, limits, mode=GREEDY
        )

    state = verifier.start(prompt, sampling, limits, GREEDY, drafter, params)
    while state.active.any():
        state = round_of(state)
    assert emitted(state) == emitted(want)
    assert accepted(state) == accepted(want)
    assert max(map(max, accepted(want))) > 0


def test_order_of_the_bank_is_irrelevant(verifier, small, prompts):
    """The same tokens in another order of the bank: the same positions are chosen and stand in the
    prompt's order, so that two layers draft the same tokens."""
    model, params = small
    drafter = RoutedDrafter(model, 4, RouterConfig(routed_tokens=4))
    prompt, sampling, limits = prompt_arrays(model.config, prompts), sampling_of(4), limits_of(4)
    bank = prompt.stream.bank
    order = np.random.default_rng(0).permutation(bank.rows.shape[1])
    names = ("rows", "sources", "positions", "images", "regions")
    moved = bank.replace(**{name: getattr(bank, name)[:, order] for name in names})
    other = prompt.replace(stream=prompt.stream.replace(bank=moved))
    states = [verifier.run(p, sampling, limits, GREEDY, drafter, params) for p in (prompt, other)]
    assert accepted(states[0]) == accepted(states[1])
    chosen = [routed_places(state.drafter, p.stream.bank) for state, p in zip(
        states, (prompt, other), strict=True
    )]  # fmt: skip
    assert chosen[0] == chosen[1]


def routed_places(state, layout):
    """Places in the prompt of the routed tokens of each row."""
    rows = zip(*map(np.asarray, (state.indices, state.valid, layout.sources)), strict=True)
    return [sorted(places[indices[valid]].tolist()) for indices, valid, places in rows]


def test_the_route_depends_on_the_text(small):
    """One picture, two questions; a router that looks at the picture alone chooses the same."""
    config = small[0].config
    texts = ((3, 4, 5, 6), (3, 40, 50, 60))
    asked = [pictured_prompt(config, (3,), text, seed=9) for text in texts]
    for first, second in zip(*(arrays_of(prompt.tiles) for prompt in asked), strict=True):
        np.testing.assert_array_equal(first, second)
    prompt = prompt_arrays(config, asked)
    routes = {}
    for selector in ("tiger", "image_only"):
        drafter = RoutedDrafter(small[0], 2, RouterConfig(selector, 4))
        state = jax.jit(drafter.prefill, static_argnums=3)(
            small[1], prompt, jnp.zeros((2, 128, 0)), 176
        )
        context = RoundContext(
            pending=jnp.asarray([8, 8]), previous=jnp.asarray([6, 60]), lengths=prompt.lengths,
            rope_deltas=prompt.rope_deltas,
            active=jnp.ones(2, bool), sampling=sampling_of(2), drawable=jnp.ones(97, bool),
        )  # fmt: skip
        routes[selector] = jax.jit(drafter.route)(small[1], state, context).indices
    assert routes["tiger"][0].tolist() != routes["tiger"][1].tolist()
    assert routes["image_only"][0].tolist() == routes["image_only"][1].tolist()


@dataclasses.dataclass(frozen=True)
class RoutedTable(TableModel):
    """The draft's law also depends on the tokens that were routed."""

    @property
    def row_width(self):
        return law.VOCAB

    def embed(self, params, tokens, image_rows=None, table=None):
        return jax.nn.one_hot(tokens, law.VOCAB)

    def extend_embedded(self, params, x, positions, cache, starts, mask, taps=()):
        if x.shape[1] == ROUTED + 1:  # [routed tokens | root]
            x = x + x[:, :ROUTED].mean(axis=1, keepdims=True)
        return x, cache, x[..., :0]


ROUTED, ROWS = 2, 50_000


@pytest.mark.parametrize("selector", ["random", "tiger"])
def test_the_law_is_the_verifiers(selector):
    """Chi-square as in test_sampling_law; a draft's law that depends on random routes is one more
    way to go wrong, if routes shared their keys with drafts or coins."""
    state, drafter, params = table_round(selector)
    request = sampling_of(ROWS, 1.0)
    limits = limits_of(ROWS, max_new=3, vocab=law.VOCAB, undrawable=0)
    run = jax.jit(lambda state: speculative.decode(
        TableModel(), drafter, {"table": jnp.asarray(law.P)}, params, state, request, limits,
        jnp.int32(100), mode=SamplingMode.TEMPERATURE,
    ))  # fmt: skip
    tokens = np.asarray(run(state).tokens)
    laws = law.exact_laws({"temperature": 1.0})
    first = laws[law.ROOT]
    law.assert_follows(np.bincount(tokens[:, 0], minlength=law.VOCAB), first)
    for start, before in ((0, first), (1, first @ laws)):
        pairs = np.zeros((law.VOCAB, law.VOCAB))
        np.add.at(pairs, (tokens[:, start], tokens[:, start + 1]), 1)
        law.assert_follows(pairs, before[:, None] * laws)


def table_round(selector):
    """A state before its first round: a bank of four one-hot tokens for every row."""
    drafter = RoutedDrafter(RoutedTable(), 3, RouterConfig(selector, ROUTED))
    params = {"table": jnp.asarray(law.Q), "router": lively_router(law.VOCAB, 2)}
    tokens = jnp.broadcast_to(jnp.eye(law.VOCAB)[None, 1:], (ROWS, 4, law.VOCAB))
    zeros = jnp.zeros((ROWS, 4), jnp.int32)
    layout = BankLayout(
        rows=zeros, sources=zeros, positions=zeros, images=zeros, regions=zeros,
        region_sizes=jnp.ones((ROWS, 1)),
    )  # fmt: skip
    state = law.empty_state(ROWS, 3)
    inner = RoutedState(
        cache=state.drafter, offsets=zeros[:, 0],
        bank=routing.make_bank(params["router"], tokens, layout),
        fresh=jnp.zeros((ROWS, 3), jnp.int32), fresh_count=zeros[:, 0],
        indices=jnp.zeros((ROWS, ROUTED), jnp.int32), valid=jnp.zeros((ROWS, ROUTED), bool),
    )  # fmt: skip
    return state.replace(drafter=inner), drafter, params
