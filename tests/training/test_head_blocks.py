"""Blocks of a head against an oracle that drafts one block at a time, row by row, from whole
prompts: no packing, no masks, no branches.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.training import draft_cases
from tiger_jax.models.head import DraftHead, HeadConfig, shared_weights
from tiger_jax.ops.attention import attend
from tiger_jax.routing.router import RouterConfig
from tiger_jax.testing.tiny import tiny_model
from tiger_jax.training.head_blocks import BlockHead
from tiger_jax.training.head_features import FeatureSettings, with_features
from tiger_jax.training.head_step import OBJECTIVES, HeadLossSettings, make_head_loss

G = draft_cases.G
FULL = RouterConfig("full")
CHECKED = ((0, 1), (1, 0), (1, 1))
"""Blocks (b, m) of one picture, and of two."""
K = 3


def make_head(model, layout="eagle2", visual="none", **fields):
    text = model.config.text
    sizes = {"num_heads": 2, "num_kv_heads": 2, "head_dim": 8, "intermediate_size": 12}
    return DraftHead(
        HeadConfig(
            layout=layout, visual=visual, hidden_size=text.hidden_size, num_layers=text.num_layers,
            vocab_size=text.vocab_size, **sizes, **fields,
        )
    )  # fmt: skip


def lively(params, seed=0):
    """Weights large enough that every part of a head shows in its logits."""
    rng = np.random.default_rng(seed)

    def draw(leaf):
        scale = 1.5 * leaf.shape[0] ** -0.5 if leaf.ndim >= 2 else 0.5
        return jnp.asarray(scale * rng.normal(size=leaf.shape) + (leaf.ndim == 1), jnp.float32)

    return jax.tree.map(draw, params)


@pytest.fixture(scope="module", params=["llava_next"])
def case(request):
    """(verifier, its parameters, a drafter's batch with the items it was made of). That of
    Qwen3-VL has one table for words and logits, and rotary positions behind a picture that are
    fewer than the tokens, which a head counts."""
    sizes = {"tied": True} if request.param == "qwen3_vl" else {}
    model, params = tiny_model(3, request.param, **sizes)
    made = draft_cases.make_case(model.config, FULL)
    deltas = np.asarray(made.batch.prefixes.rope_deltas)
    assert (deltas < 0).tolist() == [request.param == "qwen3_vl"] * 2 + [False]
    return model, params, made


def checked(case):
    """(b, m, item, question, root) of the blocks that are looked at."""
    items = case[2].items
    found = [row for row in draft_cases.blocks_of(items) if row[:2] in CHECKED]
    assert len(found) == len(CHECKED)
    return [(b, m, items[b], question, root) for b, m, question, root in found]


def build(case, block, seed=0):
    model, params, made = case
    head = lively(block.init_params(jax.random.key(seed)), seed)
    shared = shared_weights(params)
    settings = FeatureSettings(block.head.config.taps, kept_rows=4)
    return head, with_features(model, settings, params, made.batch, shared)


def prompt_states(case, prompt, taps):
    """Merged embeddings [1, S, D] and tapped states [1, S, F] of one whole text, run plainly."""
    model, width = case[0], case[0].config.text.hidden_size
    key = type(model.config), prompt.tokens.tobytes()
    if key not in _STATES:
        _STATES[key] = _run_prompt(case, prompt)
    x, everything = _STATES[key]
    assert everything.shape[-1] == (model.config.text.num_layers + 1) * width
    return x, jnp.concatenate(
        [everything[..., tap * width : (tap + 1) * width] for tap in taps], axis=-1
    )


_STATES = {}


def _run_prompt(case, prompt):
    model, params, _ = case
    table = rows = None
    if len(prompt.tiles):
        table = model.encode_images(params, jax.tree.map(jnp.asarray, prompt.tiles))
        # Its newline row is the last one.
        last = len(prompt.tiles) * prompt.tile_rows
        rows = jnp.asarray(np.minimum(prompt.image_rows, last))[None]
    x = model.embed(params, jnp.asarray(prompt.tokens)[None], rows, table)
    cache = model.init_cache(1, x.shape[1] + 1)
    taps = tuple(range(model.config.text.num_layers + 1))
    _, _, tapped = model.prefill(params, x, cache, taps, jnp.asarray(prompt.positions)[None])
    return x[..., : model.config.text.hidden_size], tapped


class Oracle:
    """One block, drafted row by row from a whole prompt; rows are kept in a list."""

    def __init__(self, case, block, head, item, question, root):
        self.block, self.net, self.head = block, block.head, head
        self.shared = shared_weights(case[1])
        prompt = draft_cases.prompt_until(item, question, root + 1)
        said = draft_cases.response(item, question)
        self.drafts = [prompt.tokens[-1], *said[root + 1 : root + G]]
        self.x, tapped = prompt_states(case, prompt, self.net.config.taps)
        self.f = self.net.read(head, self.shared, tapped)
        self.images, self.last = prompt.image_ids, len(prompt.tokens) - 2
        self.rows = []  # (key, value, position, whether it is a picture's)
        self.bank, self.glances, self.chosen = [], None, []

    def logits(self):
        """[g, V], and the bank rows of every route."""
        self.read_prompt()
        state, logits, routes = self.f[:, self.last : self.last + 1], [], []
        for step, token in enumerate(self.drafts):
            place = self.last + step
            word = self.net.embed(self.shared, jnp.full((1, 1), token, jnp.int32))
            inputs, residual = self.net.rows(self.head, word, state, self.glance(place))
            queries = self.remember(inputs, place)
            again = step == 0 or self.block.route_every == "step"
            if self.net.config.visual == "routed" and again:
                query = inputs
                if self.block.route_query == "hidden":
                    query = self.attend(queries, residual, everything=False)
                routes.append(self.route(query))
            state = self.attend(queries, residual)
            logits.append(np.asarray(self.net.logits(self.head, self.shared, state))[0, 0])
        return np.stack(logits), routes

    def read_prompt(self):
        visual, config = self.images >= 0, self.net.config
        if config.visual == "resampler":
            count = int(self.images.max()) + 1
            images = jnp.asarray(self.images[visual])[None]
            vectors, self.glances = self.net.resample(self.head, self.x[:, visual], images, count)
            for number in range(count):
                end = int(np.flatnonzero(self.images == number)[-1])
                for vector in range(vectors.shape[2]):
                    self.remember(vectors[:, number, vector][:, None], end)
        for place in range(self.last):
            if visual[place] and config.visual in ("none", "resampler"):
                continue
            own = self.x[:, place if visual[place] else place + 1][:, None]
            f = self.f[:, place : place + 1]
            inputs, _ = self.net.rows(self.head, own, f, self.glance(place))
            self.remember(inputs, place, len(self.bank) if visual[place] else None)
            if visual[place]:
                self.bank.append(inputs[0, 0])
        self.chosen = range(len(self.bank))

    def glance(self, place):
        if self.net.config.visual != "resampler":
            return None
        before = self.images[: min(place, self.last) + 1].max()
        shape = (1, 1, self.net.config.inner)
        return jnp.zeros(shape) if before < 0 else self.glances[:, before].reshape(shape)

    def remember(self, inputs, place, bank_row=None):
        at = jnp.full((1, 1), place, jnp.int32)
        queries, key, value = self.net.project(self.head, inputs, at)
        self.rows.append((key, value, bank_row))
        return queries

    def route(self, query):
        asked = query[0, 0] @ self.head["router"]["query"]["kernel"]
        scores = (jnp.stack(self.bank) @ self.head["router"]["key"]["kernel"]) @ asked
        # Equal rows must not be told apart by rounding.
        best = np.argsort(-np.round(np.asarray(scores), 4), kind="stable")[:K]
        self.chosen = sorted(best.tolist())
        return self.chosen

    def attend(self, queries, residual, everything=True):
        seen = self.chosen if everything else ()
        kept = [row for row in self.rows if row[2] is None or row[2] in seen]
        keys, values = (
            jnp.concatenate([row[part] for row in kept], axis=1).swapaxes(1, 2) for part in (0, 1)
        )
        mixed = attend(queries, keys, values, jnp.ones((1, 1, len(kept)), bool))
        return self.net.finish(self.head, residual, mixed)


KINDS = {
    "eagle2-none": ({}, {}),
    "eagle2-full": ({"visual": "full"}, {}),
    "eagle3-full": ({"layout": "eagle3", "visual": "full", "features": (0, 1, 2)}, {}),
    "narrow-fused-round": (
        {"visual": "routed", "width": 16, "features": (1, 2)}, {"route_every": "round"}
    ),
    "eagle3-step": ({"layout": "eagle3", "visual": "routed"}, {"route_every": "step"}),
    "hidden": ({"visual": "routed"}, {"route_query": "hidden"}),
    "resampler": ({"visual": "resampler", "resampler_queries": 3}, {}),
}  # fmt: skip


CASES = [
    *[("llava_next", kind) for kind in KINDS],
    *[("qwen3_vl", kind) for kind in ("eagle3-step", "resampler")],
]


@pytest.mark.parametrize(("case", "kind"), CASES, indirect=["case"])
def test_blocks_equal_one_block_at_a_time(case, kind):
    fields, routing_fields = KINDS[kind]
    router = RouterConfig(routed_tokens=K) if fields.get("visual") == "routed" else None
    block = BlockHead(make_head(case[0], **fields), router, **routing_fields)
    head, batch = build(case, block)
    unrolled = jax.jit(block.unroll)(head, batch, jax.random.key(0))
    logits = np.asarray(block.logits(head, batch, unrolled))
    for b, m, item, question, root in checked(case):
        length = int(batch.draft.block_lengths[b, m])
        expected, routes = Oracle(case, block, head, item, question, root).logits()
        # eagle2's plain projections magnify rounding: errors are measured by the logits' size
        size = 2e-4 * np.abs(expected[:length]).max()
        np.testing.assert_allclose(logits[b, m, :length], expected[:length], atol=size)
        if routes:
            got = np.asarray(unrolled.indices)[b, m]
            rows = int((item.example.prefix.image_ids >= 0).sum())
            routed = [sorted(i for i in step if i < rows) for step in got.tolist()]
            known = routes[:length]  # behind a block's end, the batch has no tokens to route by
            assert routed[: len(known)] == known


def test_medusa_reads_the_state_before_the_root_alone(case):
    block = BlockHead(make_head(case[0], layout="medusa", medusa_heads=G))
    head, batch = build(case, block)
    logits = block.logits(head, batch, block.unroll(head, batch, jax.random.key(0)))
    shared = shared_weights(case[1])
    for b, m, item, question, root in checked(case):
        prompt = draft_cases.prompt_until(item, question, root + 1)
        _, tapped = prompt_states(case, prompt, block.head.config.taps)
        f = block.head.read(head, shared, tapped)[:, -2]
        for u in range(G):
            weights = head[f"blocks_{u}"]
            inner = f @ weights["kernel"] + weights["bias"][None]
            expected = (f + jax.nn.silu(inner)) @ shared.lm_head
            np.testing.assert_allclose(logits[b, m, u], expected[0], atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_has_a_gradient_everywhere(case, objective):
    """No weight of a head is left out of its loss, and nothing is NaN."""
    layout = {"eagle3": "eagle3", "medusa": "medusa"}.get(objective, "eagle2")
    visual = "none" if layout == "medusa" else "routed"
    fields = {"medusa_heads": G} if layout == "medusa" else {}
    router = RouterConfig(routed_tokens=K) if visual == "routed" else None
    block = BlockHead(make_head(case[0], layout, visual, **fields), router)
    head, batch = build(case, block)
    loss = make_head_loss(block, HeadLossSettings(objective, decay=0.8))

    def total(params):
        sums = loss(params, batch, jax.random.key(0))
        return sums.loss, sums

    gradients, sums = jax.jit(jax.grad(total, has_aux=True))(head)
    assert float(sums.weight) > 0
    assert np.isfinite(float(sums.loss))
    flat = jax.tree_util.tree_leaves_with_path(gradients)
    dead = [jax.tree_util.keystr(path) for path, g in flat if not float(jnp.abs(g).max()) > 0]
    assert [name for name in dead if "saliency" not in name] == []
    assert all(bool(jnp.isfinite(g).all()) for _, g in flat)
