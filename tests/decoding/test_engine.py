"""The host side: buckets, compiles, streaming, fillers and what it refuses."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from tests.decoding.conftest import VOCAB, prompts_of
from tiger_jax.decoding import engine as engines
from tiger_jax.decoding.drafters.protocol import PromptArrays
from tiger_jax.decoding.drafters.vlm import VLMDrafter
from tiger_jax.decoding.engine import Engine, Options
from tiger_jax.errors import UserError
from tiger_jax.ops.sampling import SamplingMode


def spell(ids):
    return " ".join(map(str, ids))


@pytest.fixture(scope="module")
def plain(runner):
    return Engine(runner.model, runner.params, np.arange(VOCAB) < VOCAB - 2, spell)


@pytest.fixture(scope="module")
def fast(plain, small):
    return dataclasses.replace(plain, drafter=VLMDrafter(small[0], 3), drafter_params=small[1])


def test_fifty_requests_compile_once_a_bucket(fast):
    """Prompt lengths, budgets, seeds, temperatures and numbers of requests vary; shapes do not."""
    rng = np.random.default_rng(0)
    buckets = set()
    before = engines.compiles()
    for _ in range(50):
        width = int(rng.choice([16, 32]))
        prompt = prompts_of(2, seed=int(rng.integers(1000)), length=width)
        options = [
            Options(
                max_new_tokens=int(rng.integers(1, 16)), seed=int(rng.integers(1000)),
                temperature=float(rng.choice([0.7, 1.0])), top_p=float(rng.choice([0.9, 0.8])),
            )
            for _ in range(int(rng.integers(1, 3)))
        ]  # fmt: skip
        buckets.add(width)
        outputs = fast.run(prompt, options).outputs
        assert [len(o.tokens) <= p.max_new_tokens for o, p in zip(outputs, options, strict=True)]
    # One prefill and one decode program for each bucket.
    assert engines.compiles() - before <= 2 * len(buckets)


def test_streaming_is_the_same_decoding(fast):
    prompt, options = prompts_of(2, seed=2), [Options(max_new_tokens=20)] * 2
    whole = fast.run(prompt, options)
    seen = {0: [], 1: []}
    streamed = fast.run(prompt, options, update=lambda row, tokens: seen[row].append(tokens))
    assert [o.tokens for o in streamed.outputs] == [o.tokens for o in whole.outputs]
    for row, output in enumerate(whole.outputs):
        assert seen[row][-1] == output.tokens
        assert len(seen[row][0]) == 1, "the first token is shown before any round"
        assert all(a == b[: len(a)] for a, b in zip(seen[row], seen[row][1:], strict=False))


def test_rows_that_fill_the_batch_get_no_answer_and_cost_no_round(fast):
    prompt = prompts_of(4, seed=3)
    alone = fast.run(prompt, [Options(max_new_tokens=10)])
    assert len(alone.outputs) == 1
    request, limits, room, mode = fast.prepare(prompt, [Options(max_new_tokens=10)])
    state = fast.decode(fast.start(prompt, request, limits, room, mode), request, limits, mode)
    assert np.asarray(state.counts).tolist() == [10, 0, 0, 0]
    assert np.asarray(state.rounds)[1:].tolist() == [0, 0, 0]


def test_a_sequence_never_outgrows_the_positions(plain):
    limit = plain.model.config.text.max_positions
    tokens = jnp.full((1, 512), 5, jnp.int32)
    prompt = PromptArrays(tokens, jnp.asarray([limit - 3], jnp.int32), None, None)
    output = plain.run(prompt, [Options(max_new_tokens=30)]).outputs[0]
    assert len(output.tokens) == 3
    assert output.finish_reason == "length"


def test_undrawable_ids_are_never_emitted(plain, fast):
    """Only three ids may be drawn: nothing else appears, with and without a drafter."""
    few = np.isin(np.arange(VOCAB), [10, 20, 30])
    prompt = prompts_of(2, seed=4)
    options = [Options(max_new_tokens=15, temperature=2.0, seed=s) for s in (1, 2)]
    for one in (plain, fast):
        outputs = dataclasses.replace(one, drawable=few).run(prompt, options).outputs
        assert {token for o in outputs for token in o.tokens} <= {10, 20, 30}


def test_the_least_arithmetic_is_chosen():
    assert engines._mode([Options(), Options()]) is SamplingMode.GREEDY
    assert engines._mode([Options(), Options(temperature=1.0)]) is SamplingMode.TEMPERATURE
    # A filter on a greedy row needs no sorting.
    assert engines._mode([Options(top_k=3)]) is SamplingMode.GREEDY
    assert engines._mode([Options(temperature=1.0, top_p=0.9)]) is SamplingMode.FILTERED


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens: expected a value in 1..8192, got 0"),
        ({"temperature": -0.5}, "temperature: expected a value 0, or in 0.001..1000, got -0.5"),
        (
            {"temperature": float("nan")},
            "temperature: expected a value 0, or in 0.001..1000, got nan",
        ),
        ({"top_p": 1.5}, "top_p: expected a value in 0..1, got 1.5"),
        ({"top_k": -1}, "top_k: expected a value in 0"),
        ({"seed": 2**32}, "seed: expected"),
    ],
)
def test_bad_options_are_named(settings, message):
    with pytest.raises(UserError, match=message):
        Options(**settings)
