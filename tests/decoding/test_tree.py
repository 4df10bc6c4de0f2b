"""Trees with a real model: masks, positions and the move of the accepted path."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from tests.decoding.conftest import (
    accepted,
    emitted,
    limits_of,
    prompts_of,
    sampling_of,
)
from tiger_jax.decoding import draft_tree
from tiger_jax.decoding.draft_tree import DraftSpec, DraftTree
from tiger_jax.ops.kv_cache import KVCache, move_rows
from tiger_jax.ops.sampling import SamplingMode

GREEDY = SamplingMode.GREEDY


@dataclasses.dataclass(frozen=True)
class KnownText:
    """Drafts from known continuations: a right branch and wrong siblings beside it.

            root
           /    \\
       wrong    right
         |      /    \\
      (right)  wrong  right        params[b, i] is row b's i-th token
    """

    parents: tuple[int, ...] = (-1, 0, 0, 1, 2, 2)
    right: tuple[int, ...] = (0, 2, 5)
    """Node ids of the right branch, root first."""

    @property
    def spec(self):
        return DraftSpec(nodes=6, depth=2, is_chain=False, samples=False)

    def prefill(self, params, prompt, taps, capacity):
        return prompt.lengths

    def propose(self, params, state, context, mode):
        # The state holds prompt lengths, so this is the number of tokens emitted before the root.
        index = context.lengths - state
        rows = jnp.arange(index.shape[0])[:, None]
        ahead = params["known"][rows, index[:, None] + jnp.arange(3)[None]]
        tokens = jnp.full((index.shape[0], 6), 3, jnp.int32)
        for depth, node in enumerate(self.right):
            tokens = tokens.at[:, node].set(ahead[:, depth])
        tree = DraftTree(
            tokens=tokens.at[:, 0].set(context.pending),
            parents=jnp.broadcast_to(jnp.asarray(self.parents, jnp.int32)[None], tokens.shape),
            valid=jnp.ones(tokens.shape, bool),
        )
        return tree, state

    def observe(self, params, state, commit):
        return state


@pytest.mark.parametrize(
    "drafter",
    [
        KnownText(),
        KnownText((-1, 0, 0, 1, 2, 1), (0, 1, 3)),
        KnownText((-1, 0, 1, 0, 3, 3), (0, 3, 5)),
    ],
)
@pytest.mark.parametrize("batch", [1, 3])
def test_accepted_branch_is_plain_decoding(runner, drafter, batch):
    prompt, sampling, limits = prompts_of(batch, seed=5), sampling_of(batch), limits_of(batch, 25)
    plain = runner.run(prompt, sampling, limits)
    known = jnp.pad(plain.tokens, ((0, 0), (0, 4)), constant_values=3)
    state = runner.run(prompt, sampling, limits, GREEDY, drafter, {"known": known})
    assert emitted(state) == emitted(plain)
    assert all(lengths == [2] * 8 for lengths in accepted(state))


def test_wrong_trees_change_nothing(runner):
    prompt, sampling, limits = prompts_of(3, seed=6), sampling_of(3), limits_of(3, 20)
    plain = runner.run(prompt, sampling, limits)
    rng = np.random.default_rng(0)
    known = jnp.asarray(rng.integers(3, 90, (3, 40)), jnp.int32)
    state = runner.run(prompt, sampling, limits, GREEDY, KnownText(), {"known": known})
    assert emitted(state) == emitted(plain)


def test_cache_after_commit_equals_a_cache_from_scratch(runner):
    """The rows of the accepted path are those that plain decoding wrote."""
    prompt, sampling, limits = prompts_of(2, seed=7), sampling_of(2), limits_of(2, 25)
    plain = runner.run(prompt, sampling, limits)
    known = jnp.pad(plain.tokens, ((0, 0), (0, 4)), constant_values=3)
    state = runner.run(prompt, sampling, limits, GREEDY, KnownText(), {"known": known})
    np.testing.assert_array_equal(state.lengths, plain.lengths)
    for ours, theirs in zip(state.cache.keys, plain.cache.keys, strict=True):
        for row, length in enumerate(np.asarray(state.lengths)):
            np.testing.assert_allclose(ours[row, :, :length], theirs[row, :, :length], atol=2e-5)


def test_ancestors_and_depths():
    """0 - 1 - 3        4 is a second child of the root
    \\- 2
    """
    parents = jnp.asarray([[-1, 0, 1, 1, 0]])
    spec = DraftSpec(nodes=5, depth=2, is_chain=False)
    tree = DraftTree(tokens=parents, parents=parents, valid=parents >= -1)
    seen = draft_tree.ancestors(tree, spec)
    want = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 0, 1, 0], [1, 0, 0, 0, 1]]
    np.testing.assert_array_equal(seen[0], np.array(want, bool))
    np.testing.assert_array_equal(draft_tree.depths(seen)[0], [0, 1, 2, 2, 1])
    mask = draft_tree.cache_mask(seen, jnp.asarray([3]), 9)
    np.testing.assert_array_equal(mask[0, 4], [1, 1, 1, 1, 0, 0, 0, 1, 0])


def test_chain_is_the_special_case():
    tokens = jnp.arange(4)[None]
    chain = draft_tree.chain(tokens, tokens >= 0)
    lengths = jnp.asarray([2])
    general = DraftSpec(nodes=4, depth=3, is_chain=False)
    seen = draft_tree.ancestors(chain, general)
    np.testing.assert_array_equal(seen, draft_tree.ancestors(chain, DraftSpec(4, 3)))
    np.testing.assert_array_equal(
        draft_tree.cache_mask(seen, lengths, 8), draft_tree.chain_mask(lengths, 4, 8)
    )


def test_move_rows_gathers_the_path_to_the_front():
    rows = jnp.arange(10, dtype=jnp.float32)[None, None, :, None]
    cache = KVCache(keys=(rows,), values=(rows + 100,))
    moved = move_rows(cache, jnp.asarray([4]), jnp.asarray([[0, 2, 5]]))
    np.testing.assert_array_equal(moved.keys[0][0, 0, :, 0], [0, 1, 2, 3, 4, 6, 9, 7, 8, 9])
    np.testing.assert_array_equal(moved.values[0][0, 0, 4:7, 0], [104, 106, 109])
