"""Exact acceptance against hand-traced loops, simulated chains and the decoding loop itself."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.decoding.conftest import limits_of, sampling_of
from tests.decoding.test_sampling_law import VOCAB, P, Q, TableModel, empty_state
from tiger_jax.decoding import speculative
from tiger_jax.decoding.drafters.vlm import VLMDrafter
from tiger_jax.evaluation.exact_acceptance import response_statistics, stack_responses
from tiger_jax.ops.sampling import SamplingMode

DRAFTS = 3
NEW = 14


def test_three_tokens_by_hand():
    # y_1: A = 0 with .5 (root y_2 next), A = 1 with .5 * .6 (y_3 replaces: over), A = 2 with .2.
    # y_2: one token left: A = 1 with .2; its second draft (.9) stands against nothing.
    accept = np.array([[[0.5, 0.4], [0.2, 0.9], [0.7, 0.7]]])
    exact = response_statistics(accept, np.array([3]))
    np.testing.assert_allclose(exact.start_probability, [[1, 0.5, 0]])
    np.testing.assert_allclose(exact.expected_rounds, [1.5])
    np.testing.assert_allclose(exact.p_at_least, [[0.5 + 0.5 * 0.2, 0.2]])
    np.testing.assert_allclose(exact.expected_accepted, [0.8])  # .89 were y_2's A not cut


# Accepted lengths of a greedy loop at each n, read off `TRACE`: rounds start at y_1, y_4, y_5.
TRACE = [[1, 1, 0], [0, 1, 0], [1, 1, 1], [0, 1, 1], [1, 1, 1], [0, 0, 0], [1, 0, 1], [1, 1, 1]]
ROUNDS = {
    0: [], 1: [], 2: [1], 3: [2], 4: [2], 5: [2, 0], 6: [2, 0, 1], 7: [2, 0, 2], 8: [2, 0, 3],
}  # fmt: skip


@pytest.mark.parametrize("tokens", ROUNDS)
def test_greedy_rounds_by_hand(tokens):
    """n = 4: y_4 replaces the third draft, so no round starts there; n = 6, 7: the last is cut."""
    exact = response_statistics(np.array([TRACE], bool), np.array([tokens]))
    rounds = np.array(ROUNDS[tokens], int)
    starts = [int(j in {1, 4, 5} and j < tokens) for j in range(1, 9)]
    assert exact.expected_rounds.tolist() == [len(rounds)]
    assert exact.expected_accepted.tolist() == [rounds.sum()]
    assert exact.p_at_least.tolist() == [[(rounds >= m).sum() for m in (1, 2, 3)]]
    assert exact.start_probability.tolist() == [starts]


def test_every_token_is_emitted_once():
    """1 (prefill) + sum of A + one replacement or bonus a round, save where a draft is y_n: n."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 31, 200)
    accept = rng.random((200, 30, 5)) ** 0.5
    exact = response_statistics(accept, lengths)
    by_draft = np.zeros(200)
    for b, n in enumerate(lengths):
        for j in range(max(1, n - 5), n):
            by_draft[b] += exact.start_probability[b, j - 1] * accept[b, j - 1, : n - j].prod()
    emitted = 1 + exact.expected_rounds + exact.expected_accepted - by_draft
    np.testing.assert_allclose(emitted, lengths)
    assert by_draft.max() > 0.1


def test_simulated_chains_agree():
    rng = np.random.default_rng(1)
    accept, tokens, chains = rng.random((9, 4)) ** 0.5, 9, 20_000
    accepted = np.zeros((chains, 9))
    starts = np.zeros((chains, 9), bool)
    root = np.ones(chains, int)
    while (running := root < tokens).any():
        hits = rng.random((chains, 4)) < accept[np.minimum(root, tokens) - 1]
        length = np.minimum(np.cumprod(hits, axis=1).sum(axis=1), tokens - root)
        rows = np.flatnonzero(running)
        starts[rows, root[rows] - 1] = True
        accepted[rows, root[rows] - 1] = length[rows]
        root = np.where(running, root + length + 1, root)
    exact = response_statistics(accept[None], np.array([tokens]))
    assert_mean(starts, exact.start_probability[0])
    assert_mean(starts.sum(axis=1), exact.expected_rounds[0])
    assert_mean(accepted.sum(axis=1), exact.expected_accepted[0])
    at_least = (starts[:, :, None] & (accepted[:, :, None] >= np.arange(1, 5))).sum(axis=1)
    assert_mean(at_least, exact.p_at_least[0])


@pytest.mark.parametrize("stop_ids", [(), (4,)], ids=["length", "stop token"])
def test_the_loop_agrees_when_sampling(stop_ids):
    """Given the texts that came out, what the loop counted has the mean that is predicted."""
    state, responses, lengths = run_loop(4000, 1.0, stop_ids)
    laws = [np.exp(t) / np.exp(t).sum(axis=1, keepdims=True) for t in (P, Q)]
    ratio = np.minimum(1, laws[1] / laws[0])
    exact = response_statistics(against(ratio, responses), lengths)
    rounds, accepted, at_least = counted(state)
    assert_mean(rounds - exact.expected_rounds, 0)
    assert_mean(accepted - exact.expected_accepted, 0)
    assert_mean(at_least - exact.p_at_least, 0)
    # How sharp that is: a cut one token early, and drafter and verifier exchanged, are both seen.
    early = response_statistics(against(ratio, responses), lengths - 1)
    swapped = response_statistics(against(np.minimum(1, laws[0] / laws[1]), responses), lengths)
    for wrong in (early, swapped):
        with pytest.raises(AssertionError):
            assert_mean(accepted - wrong.expected_accepted, 0)


@pytest.mark.parametrize("stop_ids", [(), (4,)], ids=["length", "stop token"])
def test_the_loop_agrees_when_greedy(stop_ids):
    state, responses, lengths = run_loop(VOCAB, 0.0, stop_ids)
    hit = np.eye(VOCAB)[Q.argmax(axis=1)]
    exact = response_statistics(against(hit, responses), lengths)
    for number, expected in zip(counted(state), exact, strict=False):
        assert number.tolist() == expected.tolist()


def test_stacked_responses_and_padding():
    rng = np.random.default_rng(2)
    arrays = [rng.random((n, 4)) for n in (3, 7, 1)]
    accept, lengths = stack_responses(arrays)
    assert accept.shape == (3, 7, 4)
    together = response_statistics(accept, lengths)
    unread = np.arange(7)[:, None] + 1 + np.arange(1, 5) > lengths[:, None, None]
    spoiled = response_statistics(np.where(unread, np.nan, accept), lengths)
    for got, expected in zip(spoiled, together, strict=True):
        np.testing.assert_array_equal(got, expected)
    for b, array in enumerate(arrays):
        alone = response_statistics(array[None], lengths[b : b + 1])
        assert together.expected_accepted[b] == pytest.approx(alone.expected_accepted[0])
        assert together.expected_rounds[b] == pytest.approx(alone.expected_rounds[0])


def test_bad_arguments():
    with pytest.raises(ValueError, match=r"lengths: expected 0\.\.2, got 3\.\.3"):
        response_statistics(np.zeros((1, 2, 4)), np.array([3]))
    for wrong in (1.5, -0.1, np.nan):
        with pytest.raises(ValueError, match=f"accept: expected probabilities, got {wrong}"):
            response_statistics(np.full((1, 2, 1), wrong), np.array([2]))
    with pytest.raises(ValueError, match=r"one draft length, got \[2, 3\]"):
        stack_responses([np.zeros((1, 2)), np.zeros((1, 3))])


def run_loop(rows, temperature, stop_ids):
    """Rounds of the table pair from every root: (state, responses [B, 1 + NEW], n)."""
    mode = SamplingMode.TEMPERATURE if temperature else SamplingMode.GREEDY
    request = sampling_of(rows, temperature)
    limits = limits_of(rows, max_new=NEW, stop_ids=stop_ids, vocab=VOCAB, undrawable=0)
    roots = np.arange(rows, dtype=np.int32) % VOCAB
    state = dataclasses.replace(empty_state(rows, NEW), pending=jnp.asarray(roots))
    drafter, params = VLMDrafter(TableModel(), DRAFTS), [{"table": jnp.asarray(x)} for x in (P, Q)]
    run = jax.jit(
        lambda s: speculative.decode(
            TableModel(), drafter, *params, s, request, limits, jnp.int32(100), mode=mode
        )
    )
    state = run(state)
    responses = np.concatenate([roots[:, None], np.asarray(state.tokens)], axis=1)
    return state, responses, 1 + np.asarray(state.counts)


def against(table, responses):
    """accept [B, N, g] of a pair whose laws depend on the last token only."""
    step = np.pad(table[responses[:, :-1], responses[:, 1:]], ((0, 0), (0, DRAFTS)))
    rows = responses.shape[1]
    return np.stack([step[:, u : u + rows] for u in range(DRAFTS)], axis=2).astype(np.float64)


def counted(state):
    """What the loop counted in each row: rounds, sum of A, rounds with A >= m."""
    rounds = np.asarray(state.rounds)
    real = np.arange(NEW)[None] < rounds[:, None]
    accepted = np.asarray(state.accepted) * real
    at_least = (accepted[:, :, None] >= np.arange(1, DRAFTS + 1)).sum(axis=1)
    return rounds, accepted.sum(axis=1), at_least


def assert_mean(samples, expected):
    """Mean over the first axis within 4.5 standard errors."""
    error = samples.std(axis=0, ddof=1) / len(samples) ** 0.5
    assert (np.abs(samples.mean(axis=0) - expected) <= 4.5 * error).all()
