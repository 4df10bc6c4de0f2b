"""Grown trees: the nodes are those of a slow reference, and the emitted tokens the verifier's."""

import dataclasses
import itertools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.decoding.conftest import accepted, emitted, limits_of, prompts_of, sampling_of
from tests.decoding.test_sampling_law import (
    ROOT,
    VOCAB,
    P,
    Q,
    TableModel,
    assert_follows,
    empty_state,
    exact_laws,
    sample,
)
from tiger_jax.decoding import draft_tree, speculative
from tiger_jax.decoding.draft_tree import DraftSpec, DraftTree
from tiger_jax.decoding.drafters.protocol import RoundContext
from tiger_jax.decoding.drafters.tree import DynamicTree, StaticTree, static_choices
from tiger_jax.errors import UserError
from tiger_jax.ops.sampling import NEVER, SamplingMode

CHOICES = ((0, 0), (2,), (0,), (0, 2), (2, 1), (1,), (0, 2, 1), (2, 1, 0))


def context_of(pending, active=None, vocab=16):
    pending = jnp.asarray(pending, jnp.int32)
    active = jnp.ones(pending.shape, bool) if active is None else jnp.asarray(active)
    return RoundContext(
        pending=pending, previous=pending, lengths=pending + 3,
        rope_deltas=jnp.zeros_like(pending), active=active,
        sampling=sampling_of(pending.shape[0]), drawable=jnp.arange(vocab) < vocab,
    )  # fmt: skip


def step_state(state, token, states):
    """The state of a path: it depends on every token, so a wrong parent gives another law."""
    return (state * 7 + token * 5 + 1) % states


def grow(growth, table, pending=(0, 1, 2), active=None):
    """The tree, and the levels that were run, of a model with law table[state of the path]."""
    table = jnp.asarray(table)
    context = context_of(pending, active, table.shape[1])
    calls = []

    def expand(tokens, parents, step, states):
        calls.append((step, tokens.shape[1]))
        states = step_state(jnp.take_along_axis(states, parents, axis=1), tokens, len(table))
        return table[states], states

    root = context.pending[:, None]
    run = jax.jit(lambda *start: growth.grow(*start, expand, context)[0])
    tree = run(table[root], root)
    return SimpleNamespace(**{name: np.asarray(x) for name, x in vars(tree).items()}), calls


def logs_of(table):
    return np.asarray(jax.nn.log_softmax(jnp.asarray(table, jnp.float32), axis=-1))


def ranked(scores, count):
    """The best indices; the first of equals wins."""
    return sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:count]


def eagle2(logs, root, nodes, depth, width):
    """EAGLE-2 with lists: (tokens, parents) of the tree, and all stored (score, token, parent)."""

    def children(index, score, state):
        best = ranked(logs[state], width)
        return [(np.float32(score + logs[state][t]), t, index, state) for t in best]

    stored = children(-1, np.float32(0), root)
    level = list(range(width))
    for _ in range(depth):
        beams = [level[i] for i in ranked([stored[i][0] for i in level], width)]
        level = []
        for beam in beams:
            score, token, _, state = stored[beam]
            level += range(len(stored), len(stored) + width)
            stored += children(beam, score, step_state(state, token, len(logs)))
    kept = sorted(ranked([node[0] for node in stored], nodes - 1))
    tokens = [stored[i][1] for i in kept]
    parents = [0 if stored[i][2] < 0 else 1 + kept.index(stored[i][2]) for i in kept]
    return [root, *tokens], [-1, *parents], stored


@pytest.mark.parametrize(
    ("nodes", "depth", "width", "candidates"),
    [(60, 5, 10, 510), (30, 3, 8, 200), (8, 2, 3, 21), (22, 2, 3, 21), (3, 0, 4, 4), (2, 2, 1, 3)],
)
def test_dynamic_tree_is_the_reference(nodes, depth, width, candidates):
    table = np.random.default_rng(nodes).normal(0, 2, (31, 16)).astype(np.float32)
    growth = DynamicTree(nodes, depth, width)
    tree, calls = grow(growth, table)
    assert tree.tokens.shape == (3, nodes)
    assert calls == [(step, width) for step in range(1, depth + 1)]
    assert tree.valid.all()
    for row in range(3):
        tokens, parents, stored = eagle2(logs_of(table), row, nodes, depth, width)
        assert len(stored) == candidates
        assert tree.tokens[row].tolist() == tokens
        assert tree.parents[row].tolist() == parents
    assert_is_tree(tree, growth)
    with pytest.raises(UserError, match=f"2 to {candidates + 1} nodes"):
        DynamicTree(candidates + 2, depth, width)


def assert_is_tree(tree, growth):
    """Parents first, levels in order, no path too long, no token twice among siblings."""
    spec = DraftSpec(growth.nodes, growth.spec_depth, is_chain=False, samples=False)
    assert (tree.parents < np.arange(growth.nodes)[None]).all()
    assert (tree.parents[:, 1:] >= 0).all()
    # One step more than the spec allows would show a path that is longer.
    longer = dataclasses.replace(spec, depth=spec.depth + 1)
    arrays = DraftTree(*map(jnp.asarray, (tree.tokens, tree.parents, tree.valid)))
    depths = np.asarray(draft_tree.depths(draft_tree.ancestors(arrays, longer)))
    assert depths.max() <= growth.spec_depth
    assert (np.diff(depths, axis=1) >= 0).all()
    for parents, tokens, valid in zip(tree.parents, tree.tokens, tree.valid, strict=True):
        pairs = list(zip(parents[valid], tokens[valid], strict=True))
        assert len(set(pairs)) == len(pairs)


def test_a_child_as_good_as_its_parent_does_not_replace_it():
    """One token has all the mass, so the whole chain 2-2-2-2 scores exactly 0: the two best of the
    equals are its first two nodes. An order that takes the last ones keeps a child whose parent is
    missing."""
    table = np.full((5, 4), -200.0, np.float32)
    table[:, 2] = 0.0
    tree, _ = grow(DynamicTree(3, 3, 2), table, pending=(0,))
    assert tree.tokens[0].tolist() == [0, 2, 2]
    assert tree.parents[0].tolist() == [-1, 0, 1]
    assert tree.valid.all()


@pytest.mark.parametrize("nodes", [2, 5, 9, 20, 40])
@pytest.mark.parametrize("flat", [True, False])
def test_ties_leave_the_tree_closed(nodes, flat):
    """Uniform laws (ties across a level), and laws of two values (ties everywhere)."""
    rng = np.random.default_rng(nodes)
    table = np.zeros((31, 6)) if flat else np.where(rng.random((31, 6)) < 0.4, 0.0, -300.0)
    growth = DynamicTree(nodes, 3, 4)
    tree, _ = grow(growth, table.astype(np.float32))
    assert tree.valid.all()
    assert_is_tree(tree, growth)
    for row in range(3):
        tokens, parents, _ = eagle2(logs_of(table), row, nodes, 3, 4)
        assert tree.tokens[row].tolist() == tokens
        assert tree.parents[row].tolist() == parents


def test_a_node_without_its_parent_is_not_proposed():
    """NaN is the largest number to top_k; it comes only after the second token here."""
    table = np.zeros((9, 4), np.float32)
    table[0] = [0.0, 1.0, -1.0, -2.0]
    table[step_state(0, 0, 9)] = np.nan
    tree, _ = grow(DynamicTree(3, 1, 2), table, pending=(0,))
    assert tree.valid[0].tolist() == [True, False, False]
    assert (tree.parents[0] < np.arange(3)).all()


def test_tokens_that_cannot_be_drawn_are_not_proposed():
    """Two of five tokens are drawable and the width is 3: 2 + 2 * 2 valid nodes of 12."""
    table = np.random.default_rng(0).normal(size=(11, 5)).astype(np.float32)
    table[:, [0, 2, 3]] = NEVER
    growths = DynamicTree(13, 1, 3), StaticTree(tuple(itertools.product(range(3))) + tuple(
        itertools.product(range(3), range(3))
    ))  # fmt: skip
    for growth in growths:
        tree, _ = grow(growth, table)
        assert tree.valid[:, 1:].sum(axis=1).tolist() == [6, 6, 6]
        assert set(tree.tokens[:, 1:][tree.valid[:, 1:]]) == {1, 4}
        parents = np.take_along_axis(tree.valid, np.maximum(tree.parents, 0), axis=1)
        assert (parents | ~tree.valid).all()


@pytest.mark.parametrize("growth", [DynamicTree(6, 2, 2), StaticTree(CHOICES)])
def test_rows_that_are_done_draft_nothing(growth):
    table = np.random.default_rng(1).normal(size=(11, 5)).astype(np.float32)
    tree, _ = grow(growth, table, active=[True, False, True])
    assert tree.valid[:, 0].all()
    assert tree.valid[:, 1:].all(axis=1).tolist() == [True, False, True]
    assert not tree.valid[1, 1:].any()


def test_static_tree_takes_ranks():
    table = np.random.default_rng(2).normal(size=(31, 7)).astype(np.float32)
    growth = StaticTree(CHOICES)
    tree, calls = grow(growth, table)
    # Nodes with children only: (0,), (2,), then (0, 2), (2, 1).
    assert calls == [(1, 2), (2, 2)]
    assert (growth.nodes, growth.spec_depth) == (9, 3)
    order = [(0,), (1,), (2,), (0, 0), (0, 2), (2, 1), (0, 2, 1), (2, 1, 0)]
    assert tree.parents.tolist() == [[-1, 0, 0, 0, 1, 1, 3, 5, 6]] * 3
    for row in range(3):
        for node, path in enumerate(order, start=1):
            state = row
            for rank in path:
                token = ranked(table[state], 7)[rank]
                state = step_state(state, token, 31)
            assert tree.tokens[row, node] == token
    assert_is_tree(tree, growth)


@pytest.mark.parametrize("growth", [DynamicTree(20, 2, 4), StaticTree(CHOICES)])
def test_logits_of_a_level_may_be_shared(growth):
    """As Medusa's are: [B, 1, V] stands for the same law after each node."""
    table = jnp.asarray(np.random.default_rng(3).normal(size=(4, 7)), jnp.float32)
    context = context_of([3, 4], vocab=7)
    trees = []
    for shared in (True, False):

        def expand(tokens, parents, step, inner, shared=shared):
            shape = (2, 1 if shared else tokens.shape[1], 7)
            return jnp.broadcast_to(table[step][None, None], shape), inner

        first = jnp.broadcast_to(table[0][None, None], (2, 1, 7))
        trees.append(growth.grow(first, (), expand, context)[0])
    for ours, theirs in zip(*map(jax.tree.leaves, trees), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    "choices", [(), ((),), ((0,), (0,)), ((0, 1),), ((0,), (1, 0)), ((0,), (-1,))], ids=str
)
def test_choices_that_are_no_tree(choices):
    with pytest.raises(UserError, match="choices: expected"):
        StaticTree(choices)


def test_sizes_that_are_no_tree():
    for sizes in ((1, 2, 2), (5, -1, 2), (5, 2, 0)):
        with pytest.raises(UserError, match="tree: expected"):
            DynamicTree(*sizes)
    with pytest.raises(UserError, match="nodes: expected 2 to 7"):
        static_choices([[0.5, 0.4], [0.5, 0.4]], 8)


def test_static_choices_by_hand():
    """.6 | .3 (0, 0) and (1,) | .15 (1, 0) before .12 (0, 1)."""
    choices = static_choices([[0.6, 0.3], [0.5, 0.2]], 5)
    assert set(choices) == {(0,), (0, 0), (1,), (1, 0)}
    assert choices[0] == (0,)


def test_static_choices_are_the_best_of_all_paths():
    """Products fall along a path, so the greedy tree is the best set of any paths."""
    rng = np.random.default_rng(4)
    table = rng.random((3, 4))
    products = {
        path: np.prod([table[level, rank] for level, rank in enumerate(path)])
        for depth in (1, 2, 3)
        for path in itertools.product(range(4), repeat=depth)
    }
    for nodes in (2, 12, 40, 85):
        choices = static_choices(table, nodes)
        assert set(choices) == set(sorted(products, key=products.get)[::-1][: nodes - 1])
        assert StaticTree(choices).nodes == nodes


@dataclasses.dataclass(frozen=True)
class TreeTable:
    """Drafts trees from params["table"][last token]; `shuffle` puts their nodes in another order
    in which parents still come first."""

    growth: object
    shuffle: int | None = None

    @property
    def spec(self):
        return DraftSpec(
            self.growth.nodes, self.growth.spec_depth, is_chain=False, samples=False
        )  # fmt: skip

    def prefill(self, params, prompt, taps, capacity):
        return ()

    def propose(self, params, state, context, mode):
        def laws(tokens):
            return jnp.where(context.drawable[None, None], params["table"][tokens], NEVER)

        def expand(tokens, parents, step, inner):
            return laws(tokens), inner

        tree, state = self.growth.grow(laws(context.pending[:, None]), state, expand, context)
        return (tree if self.shuffle is None else self._shuffled(tree)), state

    def _shuffled(self, tree):
        depths = draft_tree.depths(draft_tree.ancestors(tree, self.spec))
        noise = jax.random.uniform(jax.random.key(self.shuffle), depths.shape)
        order = jnp.argsort(depths + noise, axis=1)
        place = jnp.argsort(order, axis=1)
        parents = jnp.take_along_axis(tree.parents, order, axis=1)
        moved = jnp.take_along_axis(place, jnp.maximum(parents, 0), axis=1)
        return DraftTree(
            tokens=jnp.take_along_axis(tree.tokens, order, axis=1),
            parents=jnp.where(parents < 0, -1, moved),
            valid=jnp.take_along_axis(tree.valid, order, axis=1),
        )

    def observe(self, params, state, commit):
        return state


DRAFTERS = {
    "dynamic": TreeTable(DynamicTree(8, 2, 3)),
    "static": TreeTable(StaticTree(CHOICES)),
}


@pytest.mark.parametrize(
    ("name", "settings"),
    [("dynamic", {"temperature": 1.0}), ("static", {"temperature": 1.3, "top_p": 0.8})],
)
def test_tokens_and_pairs_follow_the_verifier(name, settings):
    tokens = sample(DRAFTERS[name], settings)
    laws = exact_laws(settings)
    assert_follows(np.bincount(tokens[:, 0], minlength=VOCAB), laws[ROOT])
    for start, law in ((0, laws[ROOT]), (1, laws[ROOT] @ laws)):
        pairs = np.zeros((VOCAB, VOCAB))
        np.add.at(pairs, (tokens[:, start], tokens[:, start + 1]), 1)
        assert_follows(pairs, law[:, None] * laws)


def mixed(batch):
    """Rows at temperature 0 and 1 by turns."""
    return sampling_of(batch, jnp.arange(batch) % 2)


def test_node_order_is_irrelevant():
    runs = []
    for shuffle in (None, 1):
        drafter = TreeTable(DynamicTree(16, 2, 3), shuffle)
        state = speculative.decode(
            TableModel(), drafter, {"table": jnp.asarray(P)}, {"table": jnp.asarray(P + Q)},
            empty_state(64, 12), mixed(64), limits_of(64, 12, (), VOCAB, 0), jnp.int32(50),
            mode=SamplingMode.TEMPERATURE,
        )  # fmt: skip
        runs.append((emitted(state), accepted(state)))
    assert runs[0] == runs[1]
    assert {length for lengths in runs[0][1] for length in lengths} == {0, 1, 2, 3}


@pytest.mark.parametrize(
    "growth", [StaticTree(((0,), (0, 0), (1,), (0, 0, 0))), DynamicTree(9, 2, 3)]
)
def test_the_verifier_as_its_own_drafter_is_always_right(growth):
    """A law sharp enough that the likeliest path is the best one of the tree too."""
    state = speculative.decode(
        TableModel(), TreeTable(growth), *[{"table": jnp.asarray(20 * P)}] * 2, empty_state(4, 13),
        sampling_of(4), limits_of(4, 12, (), VOCAB, 0), jnp.int32(50), mode=SamplingMode.GREEDY,
    )  # fmt: skip
    assert accepted(state) == [[3, 3, 3]] * 4


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_real_model_decodes_as_without_a_tree(runner, name):
    """The match rule draws the verifier's own tokens with plain decoding's keys, so the output is
    the same at temperature 1 too."""
    mode = SamplingMode.TEMPERATURE
    prompt, sampling, limits = prompts_of(4, seed=8), mixed(4), limits_of(4, 20)
    plain = runner.run(prompt, sampling, limits, mode)
    # Among the best guesses after each token are those that plain decoding emitted there.
    text = np.asarray(plain.tokens)
    table = jnp.asarray(np.random.default_rng(6).normal(size=(97, 97)), jnp.float32)
    table = table.at[text[:, :-1].ravel(), text[:, 1:].ravel()].add(8.0)
    state = runner.run(prompt, sampling, limits, mode, DRAFTERS[name], {"table": table})
    assert emitted(state) == emitted(plain)
    assert all(2 <= max(row) <= 3 for row in accepted(state))
