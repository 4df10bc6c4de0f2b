"""Drafters on the verifier's hidden states: what stands in the cache, and that no token changes.

B: batch, S: prompt length, D, F: widths, n: rows, X, H, K, d: as in models/head.py.

A vocabulary of 13 tokens lets random heads agree with a random verifier often enough that rounds of
every length happen. A drafter's half of a round and the verifier's are compiled apart, because the
verifier's is the same for many drafters.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.decoding import conftest as tools
from tests.decoding.conftest import accepted, emitted, limits_of, sampling_of
from tests.pictured import pictured_prompt, prompt_arrays
from tiger_jax.data.batches import PromptInputs
from tiger_jax.decoding import prefill, speculative
from tiger_jax.decoding.draft_tree import DraftSpec
from tiger_jax.decoding.drafters.head import HeadDrafter
from tiger_jax.decoding.drafters.head_cache import root_end
from tiger_jax.decoding.drafters.medusa import MedusaDrafter
from tiger_jax.decoding.drafters.protocol import Drafter, RoundContext, RoutingDrafter
from tiger_jax.decoding.drafters.tree import DynamicTree, StaticTree
from tiger_jax.errors import UserError
from tiger_jax.models.head import DraftHead, HeadConfig, shared_weights
from tiger_jax.models.interface import build_model
from tiger_jax.ops.sampling import SamplingMode
from tiger_jax.routing.head_router import init_head_router
from tiger_jax.routing.router import RouterConfig
from tiger_jax.testing.tiny import lively_params, tiny_config

VOCAB, DRAWABLE, DIM, WIDTH, ROOM = 13, 11, 32, 128, 24
CAPACITY = WIDTH + ROOM + 11
MODE = SamplingMode.TEMPERATURE
CONFIG = tiny_config(vocab=VOCAB)
TAPS = (0, 1, 2)
DRAFT_IDS = np.array([3, 4, 5, 6, 7, 8, 9, 10, 2, 12])
TREE = DynamicTree(nodes=8, depth=2, width=3)
BUSHY = StaticTree(((0,), (1,), (2,), (0, 0), (0, 1), (2, 0), (0, 0, 0), (2, 0, 0), (2, 0, 1)))


def head_of(layout="eagle2", visual="none", **fields):
    sizes = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "intermediate_size": 40}
    if layout == "medusa":
        sizes = {}
    shape = {"hidden_size": DIM, "vocab_size": VOCAB, "num_layers": 2}
    return DraftHead(HeadConfig(layout=layout, visual=visual, **shape | sizes | fields))


def routed(layout="eagle2", k=4, selector="tiger", tree=None, g=3, fields=(), **options):
    head = head_of(layout, "routed", **dict(fields))
    return HeadDrafter(head, g, tree, RouterConfig(selector, k, query="text_only"), **options)


DRAFTERS = {
    "eagle2": HeadDrafter(head_of(), 3),
    "full-narrow": HeadDrafter(head_of(visual="full", width=16), 3),
    "eagle3-full": HeadDrafter(
        head_of("eagle3", "full", features=(0, 1, 2), draft_vocab=len(DRAFT_IDS)), 3
    ),
    "resampler": HeadDrafter(head_of(visual="resampler", resampler_queries=3), 3),
    "routed": routed(),
    "routed-hidden": routed("eagle3", route_query="hidden", fields={"features": (0, 1, 2)}),
    "routed-step": routed("eagle3", route_every="step", fields={"width": 16}),
    "routed-random": routed(selector="random", route_every="step", confidence=0.15),
    "eagle3-tree": HeadDrafter(head_of("eagle3", features=(1, 2)), 3, BUSHY),
    "full-tree": HeadDrafter(head_of(visual="full"), 3, TREE),
    "resampler-tree": HeadDrafter(head_of(visual="resampler"), 3, BUSHY),
    "routed-tree": routed("eagle3", tree=BUSHY),
    "routed-step-tree": routed(tree=BUSHY, route_every="step"),
    "routed-beams": routed(tree=TREE, route_query="hidden"),
    "medusa": MedusaDrafter(head_of("medusa"), 3),
    "medusa-tree": MedusaDrafter(head_of("medusa"), 3, TREE),
}
HEADS = [name for name in DRAFTERS if not name.startswith("medusa")]
REFERRED = [n for n in HEADS if DRAFTERS[n].tree is not TREE and n != "routed-random"]


@functools.cache
def verifier():
    model = build_model(CONFIG)
    return model, lively_params(model, 0)


@functools.cache
def params_of(name):
    return random_params(DRAFTERS[name])


def random_params(drafter, seed=1):
    """Everything random, also what an untrained head has at zero."""
    head, rng = drafter.head, np.random.default_rng(seed)

    def draw(path, shape):
        noise = rng.normal(size=shape.shape).astype(np.float32)
        scale = {"scale": 0.1, "bias": 0.1, "queries": 1.0}
        noise *= scale.get(path[-1].key, shape.shape[0] ** -0.5)
        return jnp.asarray(noise + (path[-1].key == "scale"))

    params = jax.tree_util.tree_map_with_path(draw, head.abstract_params())
    if getattr(drafter, "router", None) is not None:
        shapes = jax.eval_shape(lambda: init_head_router(
            jax.random.key(0), head.config, drafter.router, drafter.route_query
        ))  # fmt: skip
        params |= {"router": jax.tree_util.tree_map_with_path(draw, shapes)}
    ids = jnp.asarray(DRAFT_IDS) if head.config.draft_vocab else None
    return {"head": params, "shared": shared_weights(verifier()[1], ids)}


@functools.cache
def texts():
    """Prompts with two pictures, none, one of two tiles, one of a single tile."""
    rng = np.random.default_rng(0)
    pictures = (((0, 1), 9), ((), 6), ((2,), 12), ((0,), 4))
    return [
        pictured_prompt(CONFIG, which, rng.integers(3, DRAWABLE, size).tolist(), row)
        for row, (which, size) in enumerate(pictures)
    ]


def longer(prompt, tokens):
    """A prompt with more text behind it."""
    return prompt.followed_by(np.asarray(tokens, np.int32))


def arrays(drafter, prompts, **sizes):
    query = getattr(drafter, "stream_query", "text_only")
    return prompt_arrays(CONFIG, prompts, query=query, width=WIDTH, **sizes)


def limits(batch=4):
    return limits_of(batch, np.arange(ROOM, ROOM - batch, -1), vocab=VOCAB)


def select(drafter, taps):
    """The columns that a drafter asks for, of the taps TAPS."""
    columns = [taps[..., DIM * tap : DIM * tap + DIM] for tap in drafter.spec.taps]
    return jnp.concatenate(columns, axis=-1)


@jax.jit
def read_prompts(prompt):
    """The verifier over the prompts: the same program for every drafter."""
    model, weights = verifier()
    return prefill.prefill_model(model, weights, prompt, CAPACITY, TAPS).taps


@functools.cache
def prefilled(drafter, capacity):
    return jax.jit(functools.partial(drafter.prefill, capacity=capacity))


def start(drafter, prompt, sampling, params, capacity=CAPACITY):
    """A state before its first round."""
    model, weights = verifier()
    bare = prompt.replace(stream=None)
    state = tools._start(
        model=model, drafter=None, params=weights, drafter_params=None, prompt=bare,
        request=sampling, limits=limits(len(prompt.lengths)), room=ROOM, mode=MODE,
        capacity=CAPACITY,
    )  # fmt: skip
    taps = select(drafter, read_prompts(bare))
    return state.replace(drafter=prefilled(drafter, capacity)(params, prompt, taps))


def context_of(state, sampling):
    return RoundContext(
        pending=state.pending, previous=state.previous, lengths=state.lengths,
        rope_deltas=state.rope_deltas, active=state.active, sampling=sampling,
        drawable=limits().drawable,
    )  # fmt: skip


@functools.partial(jax.jit, static_argnames="drafter")
def propose(drafter, params, state, context):
    return drafter.propose(params, state, context, MODE)


@dataclasses.dataclass(frozen=True)
class Replay:
    """Proposes the tree that is its state, and keeps the commit as the next one."""

    spec: DraftSpec

    def prefill(self, params, prompt, taps, capacity):
        return ()

    def propose(self, params, state, context, mode):
        return state, state

    def observe(self, params, state, commit):
        return commit


@functools.partial(jax.jit, static_argnames="spec")
def verify(spec, state, sampling):
    model, weights = verifier()
    return speculative.decode_round(
        model, Replay(spec), weights, None, state, sampling, limits(), mode=MODE
    )


def play(drafter, state, sampling, params, rounds=1000):
    """Rounds until all rows are done. The state of a drafter keeps its shapes, as a loop wants."""
    spec = dataclasses.replace(drafter.spec, taps=TAPS)
    while rounds and state.active.any():
        tree, inner = propose(drafter, params, state.drafter, context_of(state, sampling))
        before, rounds = state.drafter, rounds - 1
        state = verify(spec, state.replace(drafter=tree), sampling)
        commit = state.drafter.replace(taps=select(drafter, state.drafter.taps))
        after = drafter.observe(params, inner, commit)
        assert kinds(after) == kinds(before)
        state = state.replace(drafter=after)
    return state


def kinds(state):
    """Shapes and dtypes."""
    leaves, tree = jax.tree.flatten(state)
    return tree, [(leaf.shape, leaf.dtype, leaf.weak_type) for leaf in leaves]


@functools.cache
def plain():
    model, weights = verifier()
    state = start(MedusaDrafter(head_of("medusa"), 1), arrays(None, texts()), sampling_of(4),
                  params_of("medusa")).replace(drafter=())  # fmt: skip
    return emitted(tools._plain(
        model=model, params=weights, state=state, request=sampling_of(4), limits=limits(),
        steps=jnp.int32(1000), mode=MODE,
    ))  # fmt: skip


@functools.cache
def after_rounds(name):
    """Three rounds at temperature 1, in which the rows go different ways."""
    drafter, params, sampling = DRAFTERS[name], params_of(name), sampling_of(4, 1.0)
    return play(drafter, start(drafter, arrays(drafter, texts()), sampling, params), sampling,
                params, 3)  # fmt: skip


def committed(name):
    """What the verifier has read by then, as prompts."""
    tokens = emitted(after_rounds(name))
    return [longer(text, row[:-1]) for text, row in zip(texts(), tokens, strict=True)]


def poisoned(state, context):
    """Every row that holds nothing committed, routed ones of the last round too, is 1e9."""
    size = state.valid.shape[1]
    first = root_end(state, context) - state.count
    column = jnp.arange(state.cache.capacity)[None]
    stale = column >= first[:, None]
    if state.bank is not None:
        stale = stale | (column < size)
    cache = jax.tree.map(lambda rows: jnp.where(stale[:, None, :, None], 1e9, rows), state.cache)
    return state.replace(cache=cache)


@pytest.mark.parametrize("name", DRAFTERS)
def test_no_head_changes_a_token(name):
    drafter, params, sampling = DRAFTERS[name], params_of(name), sampling_of(4)
    state = start(drafter, arrays(drafter, texts()), sampling, params)
    state = play(drafter, state, sampling, params)
    assert emitted(state) == plain()
    hits = [length for row in accepted(state) for length in row]
    assert 0 < max(hits) <= drafter.spec.depth


def test_the_engines_own_loop():
    drafter, params = DRAFTERS["routed-step"], params_of("routed-step")
    model, weights = verifier()
    common = {
        "model": model, "drafter": drafter, "params": weights, "drafter_params": params,
        "request": sampling_of(4), "limits": limits(), "mode": SamplingMode.GREEDY,
    }  # fmt: skip
    prompt = arrays(drafter, texts())
    state = tools._start(**common, prompt=prompt, capacity=CAPACITY, room=ROOM)
    state = tools._speculative(**common, state=state, rounds=jnp.int32(1000))
    assert emitted(state) == plain()


@pytest.mark.parametrize("name", HEADS)
def test_cache_and_drafts_after_rounds_are_those_from_scratch(name):
    """Rejected drafts, and routes of earlier rounds, are never read."""
    drafter, params, sampling = DRAFTERS[name], params_of(name), sampling_of(4, 1.0)
    state = after_rounds(name)
    assert len(set(state.counts.tolist())) > 1
    fresh = start(drafter, arrays(drafter, committed(name)), sampling, params)
    np.testing.assert_array_equal(state.lengths, fresh.lengths)
    context = context_of(state, sampling)
    tree, ours = propose(drafter, params, poisoned(state.drafter, context), context)
    wanted, theirs = propose(drafter, params, fresh.drafter, context)
    ends = np.asarray(root_end(ours, context))
    for mine, other in zip(jax.tree.leaves(ours.cache), jax.tree.leaves(theirs.cache), strict=True):
        for row, end in enumerate(ends):
            real = [*np.flatnonzero(ours.valid[row]), *range(ours.valid.shape[1], end)]
            np.testing.assert_allclose(mine[row][:, real], other[row][:, real], atol=2e-4)
    np.testing.assert_array_equal(tree.tokens, wanted.tokens)
    np.testing.assert_array_equal(ours.indices, theirs.indices)
    if tree.laws is not None:
        np.testing.assert_allclose(tree.laws, wanted.laws, atol=1e-4)


SIZE = 160
"""Rows of the reference, padding included."""


@functools.partial(jax.jit, static_argnames="head")
def reference_read(head, params, states):
    return head.read(params["head"], params["shared"], states)


@functools.partial(jax.jit, static_argnames="head")
def reference_look(head, params, tokens, images):
    return head.resample(params, tokens, images, 2)


@functools.partial(jax.jit, static_argnames="head")
def reference_project(head, params, x, positions):
    return head.project(params, x, positions)


@functools.partial(jax.jit, static_argnames="head")
def reference_rows(head, params, words, features, glances, positions):
    x, residual = head.rows(params, words[None], features[None], glances)
    return x[0], residual[0], *(rows[0] for rows in head.project(params, x, positions[None]))


@functools.partial(jax.jit, static_argnames="head")
def reference_logits(head, params, residual, mixed):
    g = head.finish(params["head"], residual[None, None], mixed[None, None])
    return g[0, 0], head.logits(params["head"], params["shared"], g)[0, 0]


class Reference:
    """One text drafted from without a cache, a batch or a mask, row by row as the method says."""

    def __init__(self, drafter, params, text: PromptInputs, taps: np.ndarray):
        self.drafter, self.head, self.params = drafter, drafter.head, params
        self.visual, self.length = text.image_ids >= 0, len(text.tokens)
        self.images = text.image_ids
        self.words = taps[: self.length, :DIM]
        features = reference_read(self.head, params, jnp.asarray(taps[:, DIM:]))
        self.features = np.asarray(features)[: self.length]
        self.embedding = np.asarray(params["shared"].embedding)
        self.kind = self.head.config.visual
        self.bank = np.flatnonzero(self.visual)
        if self.kind == "resampler":
            self.look()

    def look(self):
        tokens = pad(self.words[self.bank])[None]
        images = pad(self.images[self.bank] + 1)[None] - 1  # padding belongs to no picture
        vectors, whole = reference_look(self.head, self.params["head"], tokens, images)
        self.whole = np.asarray(whole[0])
        lasts = [np.flatnonzero(self.images == i).max() for i in range(self.images.max() + 1)]
        self.front = []
        for image, last in enumerate(lasts):
            each = vectors[:, image]
            places = jnp.full(each.shape[:2], last, jnp.int32)
            _, keys, values = reference_project(self.head, self.params["head"], each, places)
            self.front += list(zip(np.asarray(keys[0]), np.asarray(values[0]), strict=True))

    def glance(self, position):
        """Of the last picture that ended before."""
        seen = self.images[: position + 1].max(initial=-1)
        return self.whole[seen] if seen >= 0 else np.zeros_like(self.whole[0])

    def rows(self, pairs) -> list[tuple[np.ndarray, ...]]:
        """(x, residual, query, key, value) of pairs (word, feature, position)."""
        words, features, positions = (np.stack(part) for part in zip(*pairs, strict=True))
        glances = None
        if self.kind == "resampler":
            looks = [self.glance(min(p, self.length - 1)) for p in positions]
            glances = pad(np.stack(looks))[None]
        found = reference_rows(
            self.head, self.params["head"], pad(words), pad(features), glances,
            pad(positions.astype(np.int32)),
        )  # fmt: skip
        found = [np.asarray(part)[: len(pairs)] for part in found]
        return list(zip(*found, strict=True))

    def routed(self, queries, bank) -> list:
        """Keys and values of the k bank rows that fit these rows best, all together."""
        router = {name: np.asarray(w["kernel"]) for name, w in self.params["head"]["router"].items()
                  if name != "saliency"}  # fmt: skip
        keys = np.stack([row[0] for row in bank]) @ router["key"]
        scores = np.stack(queries) @ router["query"] @ keys.T * queries[0].size ** -0.5
        if len(queries) > 1:
            scores = np.exp(scores - scores.max(axis=1, keepdims=True))
            scores /= scores.sum(axis=1, keepdims=True)
        best = np.argsort(-scores.mean(axis=0), kind="stable")
        return [bank[i][3:] for i in best[: self.drafter.router.routed_tokens]]

    def attend(self, row, seen) -> tuple[np.ndarray, np.ndarray]:
        """(g, logits) of a row that sees these keys and values."""
        keys, values = (np.stack(part) for part in zip(*seen, strict=True))
        query = row[2]
        share = query.shape[0] // keys.shape[1]
        keys, values = (np.repeat(part, share, axis=1) for part in (keys, values))
        scores = np.einsum("hd,nhd->hn", query, keys) * query.shape[1] ** -0.5
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        mixed = np.einsum("hn,nhd->hd", weights, values).reshape(-1)
        found = reference_logits(self.head, self.params, jnp.asarray(row[1]), jnp.asarray(mixed))
        return tuple(map(np.asarray, found))

    def logits(self, levels) -> dict[tuple[int, ...], np.ndarray]:
        """Drawable logits after every path of ranks; a level has {path: token}.

        The first level is {(): root}.
        """
        pairs, bank = [], []
        for p in range(self.length):
            if self.visual[p]:
                if self.kind == "full":
                    pairs.append((self.words[p], self.features[p], p))
                continue
            last = p == self.length - 1
            word = self.embedding[levels[0][()]] if last else self.words[p + 1]
            pairs.append((word, self.features[p], p))
        rows = {(): self.rows(pairs)}  # what each node sees, itself last
        if self.kind == "routed" and len(self.bank):
            bank = self.rows([(self.words[p], self.features[p], p) for p in self.bank])
        front, found, g = getattr(self, "front", []), {}, {}
        for step, level in enumerate(levels):
            for path, token in level.items() if step else ():
                pair = self.embedding[token], g[path[:-1]], self.length - 1 + step
                rows[path] = rows[path[:-1]] + self.rows([pair])
            seen = {path: [row[3:] for row in rows[path]] for path in level}
            if bank and (step == 0 or self.drafter.route_every == "step"):
                queries = [rows[path][-1][0] for path in level]
                if self.drafter.route_query == "hidden":
                    queries = [self.attend(rows[()][-1], seen[()])[0]]
                front = self.routed(queries, bank)
            for path in level:
                g[path], logits = self.attend(rows[path][-1], front + seen[path])
                found[path] = np.where(np.arange(VOCAB) < DRAWABLE, logits, -1e30)
        return found


def pad(rows):
    return jnp.asarray(np.pad(rows, [(0, SIZE - len(rows))] + [(0, 0)] * (rows.ndim - 1)))


@pytest.mark.parametrize("name", REFERRED)
def test_a_round_is_what_the_method_says(name):
    """The pairs, their positions, what is routed where, and what each draft token sees."""
    drafter, params, sampling = DRAFTERS[name], params_of(name), sampling_of(4, 1.0)
    state = after_rounds(name)
    tree, _ = propose(drafter, params, state.drafter, context_of(state, sampling))
    prompt = arrays(drafter, committed(name))
    taps = np.asarray(select(drafter, read_prompts(prompt.replace(stream=None))))
    for row, text in enumerate(committed(name)):
        reference = Reference(drafter, params, text, taps[row])
        tokens = np.asarray(tree.tokens[row])
        if drafter.tree is None:
            levels = [{(0,) * u: token} for u, token in enumerate(tokens[:-1])]
            logits = jnp.asarray(np.stack(list(reference.logits(levels).values())))
            np.testing.assert_allclose(tree.laws[row, 1:], jax.nn.softmax(logits), atol=2e-4)
            continue
        paths = sorted(BUSHY.choices, key=lambda path: (len(path), path))
        token = {(): tokens[0], **dict(zip(paths, tokens[1:], strict=True))}
        parents = sorted({path[:-1] for path in paths})
        levels = [{p: token[p] for p in parents if len(p) == depth} for depth in range(3)]
        logits = reference.logits(levels)
        for path in paths:
            best = np.argsort(-logits[path[:-1]], kind="stable")
            assert token[path] == best[path[-1]]


def test_medusa_reads_the_state_before_the_root():
    drafter, params = DRAFTERS["medusa"], params_of("medusa")
    sampling, state = sampling_of(4, 1.0), after_rounds("medusa")
    tree, _ = propose(drafter, params, state.drafter, context_of(state, sampling))
    taps = read_prompts(arrays(None, committed("medusa")).replace(stream=None))
    kernel = np.asarray(params["shared"].lm_head)
    for row, last in enumerate(np.asarray(state.lengths) - 1):
        x = np.asarray(taps[row, last, 2 * DIM :])
        f = x / np.sqrt((x**2).mean() + 1e-5) * np.asarray(params["shared"].norm_scale)
        for u in range(3):
            block = {k: np.asarray(v) for k, v in params["head"][f"blocks_{u}"].items()}
            y = f @ block["kernel"] + block["bias"]
            logits = (f + y / (1 + np.exp(-y))) @ kernel
            law = np.exp(logits[:DRAWABLE]) / np.exp(logits[:DRAWABLE]).sum()
            np.testing.assert_allclose(tree.laws[row, u + 1, :DRAWABLE], law, atol=1e-4)


def test_all_tokens_routed_is_the_full_head():
    """k is larger than every bank; the same layer sees the same rows in another place."""
    full, params, sampling = DRAFTERS["full-narrow"], params_of("full-narrow"), sampling_of(4, 1.0)
    router = routed(k=70, fields={"width": 16})
    both = params | {"head": params["head"] | {"router": random_params(router)["head"]["router"]}}
    laws = []
    for drafter, weights in ((full, params), (router, both)):
        state = start(drafter, arrays(drafter, texts()), sampling, weights)
        tree, _ = propose(drafter, weights, state.drafter, context_of(state, sampling))
        laws.append(np.asarray(tree.laws[:, 1:]))
    np.testing.assert_allclose(laws[0], laws[1], atol=1e-5)


@pytest.mark.parametrize("name", ["routed", "routed-step", "resampler"])
def test_order_of_the_bank_is_irrelevant(name):
    drafter, params, sampling = DRAFTERS[name], params_of(name), sampling_of(4, 1.0)
    prompt = arrays(drafter, texts())
    bank = prompt.stream.bank
    order = np.random.default_rng(0).permutation(bank.rows.shape[1])
    names = ("rows", "sources", "positions", "images", "regions")
    moved = bank.replace(**{name: getattr(bank, name)[:, order] for name in names})
    found = []
    for layout in (bank, moved):
        given = prompt.replace(stream=prompt.stream.replace(bank=layout))
        state = start(drafter, given, sampling, params)
        tree, after = propose(drafter, params, state.drafter, context_of(state, sampling))
        found.append((np.asarray(tree.laws), after))
    np.testing.assert_allclose(found[0][0], found[1][0], atol=1e-5)
    if drafter.routed_tokens:
        places = [chosen(after, layout) for (_, after), layout in zip(
            found, (bank, moved), strict=True
        )]  # fmt: skip
        assert places[0] == places[1]


def chosen(state, layout):
    """Positions of the tokens that each row has routed."""
    rows = zip(*map(np.asarray, (state.indices, state.valid, layout.positions)), strict=True)
    return [places[indices[valid]].tolist() for indices, valid, places in rows]


@pytest.mark.parametrize("name", ["routed-step", "resampler-tree"])
def test_a_row_does_not_depend_on_its_batch(name):
    drafter, params = DRAFTERS[name], params_of(name)
    sampling = sampling_of(4, 1.0, seeds=[11, 12, 13, 14])
    state = start(drafter, arrays(drafter, texts()), sampling, params)
    together, _ = propose(drafter, params, state.drafter, context_of(state, sampling))
    for row in (0, 2):
        prompt = arrays(drafter, [texts()[row]], tile_bucket=8)
        single = sampling_of(1, 1.0, seeds=[11 + row])
        alone = start(drafter, prompt, single, params)
        assert alone.pending[0] == state.pending[row]
        tree, _ = propose(drafter, params, alone.drafter, context_of(alone, single))
        np.testing.assert_array_equal(tree.tokens[0], together.tokens[row])
        if tree.laws is not None:
            np.testing.assert_allclose(tree.laws[0], together.laws[row], atol=1e-5)


def test_route_is_the_beginning_of_propose():
    drafter, params, sampling = DRAFTERS["routed"], params_of("routed"), sampling_of(4, 1.0)
    assert isinstance(drafter, RoutingDrafter)
    assert isinstance(DRAFTERS["medusa"], Drafter)
    state = after_rounds("routed")
    context = context_of(state, sampling)
    routed_only = jax.jit(drafter.route)(params, state.drafter, context)
    tree, after = propose(drafter, params, state.drafter, context)
    again, _ = propose(drafter, params, routed_only, context)
    np.testing.assert_array_equal(routed_only.indices, after.indices)
    np.testing.assert_array_equal(routed_only.valid, after.valid)
    assert routed_only.valid.sum(axis=1).tolist() == [4, 0, 4, 4]
    np.testing.assert_array_equal(tree.tokens, again.tokens)


@pytest.mark.parametrize("name", ["routed-step", "resampler-tree", "medusa"])
def test_a_loop_in_half_precision(name):
    """The state of a drafter keeps its dtypes, and the cache is as narrow as the head's."""
    drafter = DRAFTERS[name]
    drafter = dataclasses.replace(drafter, head=DraftHead(drafter.head.config, jnp.bfloat16))
    model = build_model(CONFIG, jnp.bfloat16)
    half = functools.partial(jax.tree.map, lambda x: x.astype(
        jnp.bfloat16 if x.dtype == jnp.float32 else x.dtype
    ))  # fmt: skip
    request, bounds = sampling_of(4), limits()

    def run(weights, params, prompt):
        state = prefill.start(
            model, drafter, weights, params, prompt, request, bounds,
            capacity=CAPACITY, room=ROOM, mode=MODE,
        )  # fmt: skip
        inner = speculative.decode(
            model, drafter, weights, params, state, request, bounds, jnp.int32(9), mode=MODE
        ).drafter
        return jax.tree.leaves(getattr(inner, "cache", inner))

    prompt = arrays(drafter, texts())
    shapes = jax.eval_shape(run, half(verifier()[1]), half(params_of(name)), prompt)
    assert {x.dtype.name for x in shapes} == {"bfloat16"}


def test_a_beam_search_has_room_for_what_it_runs():
    """Three levels of four rows, of which two nodes stand in the tree."""
    drafter = HeadDrafter(head_of(), 3, DynamicTree(nodes=3, depth=3, width=4))
    prompt = arrays(drafter, texts())

    def rows(params, taps):
        return drafter.prefill(params, prompt, taps, WIDTH + ROOM + 3).cache.keys[0]

    taps = jax.ShapeDtypeStruct((4, WIDTH, 2 * DIM), jnp.float32)
    shape = jax.eval_shape(rows, random_params(drafter), taps).shape
    assert shape[2] == prompt.stream.tokens.shape[1] + ROOM + 3 * 4


def test_wrong_settings():
    tiger = RouterConfig("tiger", 4)
    head, plain_head = head_of(visual="routed"), head_of()
    wrong = (
        (lambda: HeadDrafter(head, 3), "router: expected one that routes"),
        (lambda: HeadDrafter(plain_head, 3, router=tiger), "router: expected one that routes"),
        (lambda: routed(route_query="both"), "route_query: expected one of input, hidden"),
        (lambda: routed(route_every="step", route_query="hidden"), "route_query hidden"),
        (lambda: routed(selector="vispruner"), "selector: expected one of tiger"),
        (lambda: HeadDrafter(plain_head, 0), "draft_length: expected at least 1"),
        (lambda: HeadDrafter(plain_head, 3, TREE, confidence=0.5), "confidence: expected 0"),
        (lambda: HeadDrafter(head_of("medusa"), 3), "layout: expected one with a layer"),
        (lambda: MedusaDrafter(plain_head, 3), "layout: expected medusa"),
        (lambda: MedusaDrafter(head_of("medusa"), 5), "draft_length: expected 1..4"),
        (lambda: MedusaDrafter(head_of("medusa"), 1, DynamicTree(8, 4, 3)), "got 5"),
    )
    for make, message in wrong:
        with pytest.raises(UserError, match=message):
            make()
