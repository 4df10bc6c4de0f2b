"""Recorded rounds: the same decoding, the drafter's own draft and route, and trees made by hand."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from tests.decoding.test_head_drafters import (
    CONFIG,
    DRAFTERS,
    DRAWABLE,
    VOCAB,
    arrays,
    params_of,
    texts,
    verifier,
)
from tests.pictured import prompt_arrays
from tiger_jax.decoding import trace
from tiger_jax.decoding.bank_scores import ChosenRows, routes
from tiger_jax.decoding.drafters.protocol import RoundContext
from tiger_jax.decoding.drafters.routed import RoutedDrafter
from tiger_jax.decoding.drafters.vlm import VLMDrafter
from tiger_jax.decoding.engine import Engine, Options
from tiger_jax.decoding.trace import Look, Recorder, Round, RoutedRow, within
from tiger_jax.routing.router import RouterConfig, init_router


def spell(ids):
    return "".join(chr(97 + i) for i in ids)


@functools.cache
def engine_of(name):
    """An engine and its prompts: a head of the tests of heads, or a small model."""
    model, weights = verifier()
    drawable = np.arange(VOCAB) < DRAWABLE
    engine = Engine(model, weights, drawable, spell)
    if name in DRAFTERS:
        drafter = DRAFTERS[name]
        engine = dataclasses.replace(engine, drafter=drafter, drafter_params=params_of(name))
        return engine, arrays(drafter, texts())
    drafter = RoutedDrafter(model, 2, RouterConfig(routed_tokens=4))
    router = init_router(jax.random.key(0), CONFIG.text.hidden_size)
    router = jax.tree.map(lambda x: 20 * x, router)
    params = weights | {"router": router}
    engine = dataclasses.replace(engine, drafter=drafter, drafter_params=params)
    return engine, prompt_arrays(CONFIG, texts())


def options_of(temperature):
    return [
        Options(max_new_tokens=14 - row, temperature=temperature, seed=row) for row in range(3)
    ]  # the fourth prompt fills the batch


CASES = [("routed", 0.0), ("full-tree", 1.0), ("vlm-routed", 0.0)]


@pytest.mark.parametrize(("name", "temperature"), CASES)
def test_the_same_decoding_with_a_record_of_it(name, temperature):
    engine, prompt = engine_of(name)
    options = options_of(temperature)
    alone = engine.run(prompt, options).outputs
    recorder = Recorder(len(options))
    traced = engine.run(prompt, options, recorder=recorder).outputs
    chain = engine.drafter.spec.is_chain
    assert [out.tokens for out in traced] == [out.tokens for out in alone]
    assert [out.logprobs for out in traced] == [out.logprobs for out in alone]
    for row, (out, rounds) in enumerate(zip(traced, recorder.rounds, strict=True)):
        assert [len(made.accepted) for made in rounds] == out.accepted_lengths
        assert sum(made.nodes for made in rounds) == out.drafted
        said = out.tokens[:1]
        for made in rounds:
            assert made.start == len(said)
            assert made.agrees
            said += [*made.accepted, *([] if made.ended else [made.next_token])]
            path = (*made.accepted, *made.rejected)
            assert len(path) <= engine.drafter.spec.depth
            assert made.rejected[:1] != (made.next_token,), "what was drafted is not replaced"
            assert made.is_bonus == (not made.ended and not made.rejected)
            if chain:
                assert path == made.likeliest
                assert len(path) == made.nodes
            assert (made.routed is not None) == routes(engine.drafter)
            if made.routed is not None:
                assert (len(made.routed) > 0) == (row != 1), "the second prompt has no picture"
        assert said == out.tokens
        assert all(made.seconds > 0 for made in rounds)


def test_the_recorded_route_is_what_the_round_took():
    """The state after the round remembers its rows; the scores are those of the best k."""
    engine, prompt = engine_of("routed")
    options = options_of(0.0)
    request, limits, room, mode = engine.prepare(prompt, options)
    state = engine.start(prompt, request, limits, room, mode)
    recorder = Recorder(len(options))
    ask = jax.jit(engine.drafter.scores)
    for turn in range(3):
        context = RoundContext(
            pending=state.pending, previous=state.previous, lengths=state.lengths,
            rope_deltas=state.rope_deltas, active=state.active, sampling=request,
            drawable=limits.drawable,
        )  # fmt: skip
        scores = np.asarray(ask(engine.drafter_params, state.drafter, context))
        running = np.asarray(state.active)
        state = recorder.step(engine, state, request, limits, mode)
        taken, valid = np.asarray(state.drafter.indices), np.asarray(state.drafter.valid)
        for row in np.flatnonzero(running[: len(options)]):
            made = recorder.rounds[row][turn]
            assert [one.row for one in made.routed] == taken[row][valid[row]].tolist()
            best = np.sort(scores[row])[::-1][: len(made.routed)]
            found = sorted((one.score for one in made.routed), reverse=True)
            np.testing.assert_allclose(found, best, rtol=1e-4, atol=1e-5)


def test_a_row_that_is_done_records_nothing():
    engine, prompt = engine_of("vlm-routed")
    options = [Options(max_new_tokens=n) for n in (1, 2, 12)]
    recorder = Recorder(3)
    outputs = engine.run(prompt, options, recorder=recorder).outputs
    assert [len(rounds) for rounds in recorder.rounds] == [out.rounds for out in outputs]
    assert len(recorder.rounds[0]) == 0
    assert len(recorder.rounds[1]) == 1


def test_plain_decoding_has_rounds_without_a_draft():
    engine, prompt = engine_of("vlm-routed")
    recorder = Recorder(1)
    output = engine.plain().run(prompt, [Options(max_new_tokens=4)], recorder=recorder).outputs[0]
    assert [made.next_token for made in recorder.rounds[0]] == output.tokens[1:]
    assert {made.nodes for made in recorder.rounds[0]} == {0}


def test_a_stop_text_cuts_the_last_round():
    """The rounds of the answer are those of an answer that stops there."""
    engine, prompt = engine_of("vlm-routed")
    whole = engine.run(prompt, [Options(max_new_tokens=14)])
    stop = spell(whole.outputs[0].tokens)[7:9]
    recorder = Recorder(1)
    output = engine.run(prompt, [Options(max_new_tokens=14, stop=(stop,))], recorder=recorder)
    output = output.outputs[0]
    kept = within(recorder.rounds[0], len(output.tokens))
    assert [len(made.accepted) for made in kept] == output.accepted_lengths
    said = output.tokens[:1]
    for made in kept:
        said += [*made.accepted, *([] if made.ended else [made.next_token])]
    assert said == output.tokens


# By hand: rows of one state before and after a round.


def made_round(committed, accepted, tokens, parents, valid=None, chosen=None):
    """The record of a round that committed `committed` behind three tokens."""
    valid = [True] * len(tokens) if valid is None else valid
    seen = Look(
        tokens=np.array([tokens]), parents=np.array([parents]), valid=np.array([valid]),
        chosen=chosen,
    )  # fmt: skip
    said = np.zeros((1, 12), int)
    said[0, 3 : 3 + len(committed)] = committed
    before = {"tokens": said, "counts": np.array([3]), "rounds": np.array([1]),
              "accepted": np.array([[9, 0, 0]])}  # fmt: skip
    after = before | {"counts": np.array([3 + len(committed)]), "rounds": np.array([2]),
                      "accepted": np.array([[9, accepted, 0]])}  # fmt: skip
    return trace._round(seen, before, after, 0)


CHAIN = [5, 6, 7, 8], [-1, 0, 1, 2]
TREE = [5, 6, 7, 8, 9, 6], [-1, 0, 0, 1, 2, 4]
"""root - 6 - 8, and root - 7 - 9 - 6."""


@pytest.mark.parametrize(
    ("drawn", "committed", "accepted", "expected"),
    [
        (CHAIN, [6, 4], 1, ((6,), (7, 8), 4, False)),
        (CHAIN, [4], 0, ((), (6, 7, 8), 4, False)),
        (CHAIN, [6, 7, 8, 4], 3, ((6, 7, 8), (), 4, True)),
        (CHAIN, [6, 7], 2, ((6, 7), (8,), None, False)),  # the answer ended at the second draft
        (TREE, [7, 3], 1, ((7,), (9, 6), 3, False)),
        (TREE, [6, 8, 3], 2, ((6, 8), (), 3, True)),
        (TREE, [3], 0, ((), (6, 8), 3, False)),
    ],
)
def test_what_became_of_a_draft(drawn, committed, accepted, expected):
    made = made_round(committed, accepted, *drawn)
    assert (made.accepted, made.rejected, made.next_token, made.is_bonus) == expected
    assert made.likeliest == ((6, 7, 8) if drawn is CHAIN else (6, 8))
    assert made.nodes == len(drawn[0]) - 1
    assert made.start == 3
    assert made.agrees


def test_a_draft_that_stopped_early_is_shorter():
    """The third node was not proposed: two drafts, both accepted, and a bonus token."""
    made = made_round([6, 7, 4], 2, *CHAIN, valid=[True, True, True, False])
    assert (made.rejected, made.nodes, made.is_bonus) == ((), 2, True)


def test_a_draft_that_was_another_one_is_said_to_be():
    made = made_round([9, 4], 1, *CHAIN)
    assert not made.agrees
    assert made.accepted == (9,)
    assert not made.is_bonus


def test_places_of_a_bank_that_is_too_small_are_left_out():
    chosen = ChosenRows(
        indices=np.array([[2, 4, 9]]), scores=np.array([[0.5, 1.5, 0.0]]),
        valid=np.array([[True, True, False]]),
    )  # fmt: skip
    made = made_round([4], 0, *CHAIN, chosen=chosen)
    assert made.routed == (RoutedRow(2, 0.5), RoutedRow(4, 1.5))


def test_within_by_hand():
    """Three rounds commit 3 + 2 + 4 tokens behind the first one."""
    rounds = [
        Round(1, (1, 2), (3,), 4, (1, 2, 3), 3, None, 0.1, False),
        Round(4, (5,), (6,), 7, (5, 6), 2, None, 0.1, False),
        Round(6, (8, 9), (10,), 11, (8, 9, 10), 3, None, 0.1, False),
    ]
    assert within(rounds, 9) == rounds
    assert within(rounds, 6) == rounds[:2]
    cut = within(rounds, 5)
    assert cut[0] == rounds[0]
    assert (cut[1].accepted, cut[1].rejected, cut[1].next_token) == ((5,), (6,), None)
    cut = within(rounds, 7)[2]
    assert (cut.accepted, cut.rejected, cut.ended) == ((8,), (9, 10), True)
    assert within(rounds, 1) == []


def test_who_routes():
    assert [name for name in ("eagle2", "full-tree", "medusa", "routed", "routed-tree")
            if routes(DRAFTERS[name])] == ["routed", "routed-tree"]  # fmt: skip
    assert not routes(VLMDrafter(verifier()[0], 3))
