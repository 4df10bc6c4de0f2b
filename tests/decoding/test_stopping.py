"""Stop tokens, stop strings and limits at every place of a block give what plain decoding gives."""

import numpy as np
import pytest

from tests.decoding.conftest import emitted, limits_of, prompts_of, sampling_of
from tiger_jax.decoding import stopping
from tiger_jax.decoding.drafters.vlm import VLMDrafter
from tiger_jax.decoding.engine import Engine, Options
from tiger_jax.decoding.state import Finish
from tiger_jax.ops.sampling import SamplingMode

GREEDY = SamplingMode.GREEDY
LONG = 14


@pytest.fixture(scope="module")
def reference(runner):
    """A greedy run without any stop: [LONG] different-looking tokens of one row."""
    state = runner.run(prompts_of(1, seed=8), sampling_of(1), limits_of(1, LONG))
    tokens = emitted(state)[0]
    assert len(set(tokens)) > LONG // 2
    return tokens


@pytest.mark.parametrize("draft_length", range(1, 9))
def test_stop_token_and_limit_at_every_position(runner, reference, draft_length):
    """The verifier itself drafts, so that stops fall inside accepted blocks."""
    drafter = VLMDrafter(runner.model, draft_length)
    prompt, sampling = prompts_of(1, seed=8), sampling_of(1)
    for index, token in enumerate(reference):
        first = reference.index(token)
        for limit in {max(index - 1, 1), max(index, 1), index + 1, index + 2, LONG}:
            limits = limits_of(1, limit, stop_ids=(token,))
            state = runner.run(prompt, sampling, limits, GREEDY, drafter, runner.params)
            want = reference[: min(first + 1, limit)]
            assert emitted(state)[0] == want, (index, limit)
            stopped = first < limit
            assert int(state.finish[0]) == (Finish.STOP_TOKEN if stopped else Finish.LENGTH)


def spell(ids):
    """Each id as two letters, so that a stop string can straddle tokens."""
    return "".join(chr(97 + i // 26) + chr(97 + i % 26) for i in ids)


@pytest.fixture(scope="module")
def engine(runner):
    return Engine(
        model=runner.model, params=runner.params, drawable=np.arange(97) < 95, detokenize=spell
    )


@pytest.mark.parametrize("draft_length", [1, 3, 8])
def test_stop_string_at_every_position(engine, runner, reference, draft_length):
    fast = Engine(
        model=runner.model, params=runner.params, drawable=engine.drawable, detokenize=spell,
        drafter=VLMDrafter(runner.model, draft_length), drafter_params=runner.params,
    )  # fmt: skip
    prompt, text = prompts_of(1, seed=8), spell(reference)
    for start in range(2 * LONG - 3):
        # Two or three letters: inside a token, or across two of them.
        stop = text[start : start + 2 + start % 2]
        options = [Options(max_new_tokens=LONG, stop=(stop,))]
        plain = engine.run(prompt, options).outputs[0]
        output = fast.run(prompt, options).outputs[0]
        end = text.index(stop)
        assert output.tokens == plain.tokens == reference[: -(-(end + len(stop)) // 2)]
        assert output.text == plain.text == text[:end]
        assert output.finish_reason == plain.finish_reason == "stop_string"
        assert len(output.logprobs) == len(output.tokens)
        np.testing.assert_allclose(output.logprobs, plain.logprobs, atol=1e-5)
        assert 1 + sum(output.accepted_lengths) + output.rounds - len(output.tokens) in (0, 1)


def test_stop_string_of_one_row_leaves_the_others(engine, reference):
    prompt = prompts_of(3, seed=8)
    free = engine.run(prompt, [Options(max_new_tokens=LONG)] * 3).outputs
    stop = spell(free[1].tokens[4:6])
    options = [Options(max_new_tokens=LONG, stop=(stop,) if row == 1 else ()) for row in range(3)]
    stopped = engine.run(prompt, options).outputs
    assert [o.tokens for o in (stopped[0], stopped[2])] == [free[0].tokens, free[2].tokens]
    assert spell(stopped[1].tokens).endswith(stop)


def test_rounds_within_by_hand():
    # One token from prefill, then 3 + 1, then 1 + 1.
    assert stopping.rounds_within([3, 1], 7) == [3, 1]
    assert stopping.rounds_within([3, 1], 6) == [3, 1]  # only the verifier's last token goes
    assert stopping.rounds_within([3, 1], 5) == [3]
    assert stopping.rounds_within([3, 1], 4) == [3]
    assert stopping.rounds_within([3, 1], 3) == [2]
    assert stopping.rounds_within([3, 1], 1) == []


def test_find_stop_takes_the_earliest_token():
    assert stopping.find_stop([0, 1, 2], ("aa",), spell) == 1
    assert stopping.find_stop([0, 1, 2], ("bb",), spell) is None
    assert stopping.find_stop([0, 1, 2], ("c", "b"), spell) == 2
    assert stopping.find_stop([0, 1, 2], (), spell) is None
    assert stopping.cut_text("one two", ("two", "e t")) == "on"
