"""Pictures, several pictures and videos of Qwen3-VL through the engine: positions on three axes go
on where the prompt's end, and nothing of a request stays for the next."""

import numpy as np
import pytest

from tests.decoding.conftest import (
    accepted,
    assert_plain,
    emitted,
    limits_of,
    run_poisoned,
    sampling_of,
)
from tests.decoding.test_routed import Wide
from tests.pictured import framed_prompt, prompt_arrays
from tiger_jax.decoding.drafters.vlm import VLMDrafter
from tiger_jax.decoding.engine import Engine, Options
from tiger_jax.decoding.programs import compiles
from tiger_jax.ops.sampling import SamplingMode
from tiger_jax.testing.tiny import tiny_model

SHOWN = {
    "text": (), "picture": ((4, 6),), "two pictures": ((3, 2), (2, 4)), "video": ((3, 2, 3),),
    "picture and video": ((2, 5), (2, 2, 2)), "video and picture": ((2, 2, 2), (2, 5)),
}  # fmt: skip
GREEDY = SamplingMode.GREEDY


@pytest.fixture(scope="module")
def verifier():
    return Wide(*tiny_model(0, "qwen3_vl"))


@pytest.fixture(scope="module")
def everything(verifier):
    """One batch of all kinds of prompts."""
    prompts = [framed_prompt(verifier.model.config, shown) for shown in SHOWN.values()]
    return prompt_arrays(verifier.model.config, prompts)


def test_deltas_are_the_worked_ones(everything):
    """A picture of 4 x 6 tokens takes 6 positions (-18), one of 3 x 2 three (-3), of 2 x 4 four
    (-4), of 2 x 5 five (-5); a frame of 2 x 3 three (-3 each), of 2 x 2 two (-2 each)."""
    assert everything.rope_deltas.tolist() == [0, -18, -7, -9, -9, -9]


@pytest.fixture(scope="module")
def small():
    """A random drafter: another model, other weights."""
    return tiny_model(1, "qwen3_vl", hidden=16, layers=2)


@pytest.fixture(scope="module")
def alone(verifier):
    """A batch of one."""
    prompt = framed_prompt(verifier.model.config, SHOWN["video and picture"])
    return prompt_arrays(verifier.model.config, [prompt])


@pytest.fixture(scope="module")
def plain(verifier, everything, alone):
    """Number of prompts -> (prompts, sampling, limits, plain decoding)."""
    found = {}
    for prompt in (everything, alone):
        rows = len(prompt.lengths)
        # All ids but the special ones; so few that a random drafter is right now and then.
        limits = limits_of(rows, np.arange(24, 24 - rows, -1), stop_ids=(7,), undrawable=80)
        sampling = sampling_of(rows)
        found[rows] = prompt, sampling, limits, verifier.run(prompt, sampling, limits)
    return found


@pytest.mark.parametrize(
    ("batch", "draft_length"), [(6, 1), (6, 2), (6, 5), (6, 8), (1, 2), (1, 8)]
)
def test_random_drafter_changes_no_token(verifier, small, plain, batch, draft_length):
    prompt, sampling, limits, want = plain[batch]
    drafter = VLMDrafter(small[0], draft_length)
    state = verifier.run(prompt, sampling, limits, GREEDY, drafter, small[1])
    assert_plain(state, want)


def test_confidence_shortens_drafts_and_changes_nothing(verifier, small, plain):
    prompt, sampling, limits, want = plain[6]
    drafted = []
    for confidence in (0.0, 0.5):
        drafter = VLMDrafter(small[0], 5, confidence)
        state = verifier.run(prompt, sampling, limits, GREEDY, drafter, small[1])
        assert emitted(state) == emitted(want)
        drafted.append(int(np.asarray(state.drafted).sum()))
    assert drafted[0] > drafted[1]


def test_rejected_rows_are_never_read(verifier, small, plain):
    """Rows behind the committed ones are overwritten with 1e9 between rounds."""
    prompt, sampling, limits, want = plain[6]
    drafter = VLMDrafter(small[0], 5)
    state = run_poisoned(verifier, drafter, small[1], prompt, sampling, limits)
    assert emitted(state) == emitted(want)
    assert not state.active.any()


def test_the_verifier_as_its_own_drafter_is_always_right(verifier, everything):
    """Every block is accepted: drafter and verifier agree about every position behind a picture."""
    rows = len(SHOWN)
    sampling, limits = sampling_of(rows), limits_of(rows, max_new=25)
    plain = verifier.run(everything, sampling, limits)
    drafter = VLMDrafter(verifier.model, 3)
    state = verifier.run(everything, sampling, limits, GREEDY, drafter, verifier.params)
    assert emitted(state) == emitted(plain)
    assert accepted(state) == [[3] * 6] * rows  # 24 tokens after the first, 4 a round


def test_a_lost_delta_changes_the_text(verifier, everything):
    """So the equality above would not hold by chance."""
    rows = len(SHOWN)
    sampling, limits = sampling_of(rows), limits_of(rows)
    engine = Engine(verifier.model, verifier.params, np.asarray(limits.drawable), str)
    said = []
    for kept in (1, 0):
        state = verifier.start(everything, sampling, limits, GREEDY)
        state = state.replace(rope_deltas=kept * state.rope_deltas)
        said.append(emitted(engine.decode(state, sampling, limits, GREEDY)))
    assert said[0][0] == said[1][0]  # without a picture there is none to lose
    assert all(right != wrong for right, wrong in zip(said[0][1:], said[1][1:], strict=True))


def test_requests_share_a_program_and_nothing_else(verifier):
    """Pictures of different shapes in one bucket: the second compiles nothing, and answers stay the
    same in any order."""
    config = verifier.model.config
    shapes = (((4, 3),), ((2, 5),), ((3, 3),), ((4, 3),))
    prompts = [
        prompt_arrays(config, [framed_prompt(config, shown, seed=seed)], width=64)
        for seed, shown in enumerate(shapes)
    ]
    engine = Engine(verifier.model, verifier.params, np.ones(config.text.vocab_size, bool), str)
    options = [Options(max_new_tokens=12)]
    first = engine.run(prompts[0], options).outputs[0].tokens
    before = compiles()
    there = [engine.run(prompt, options).outputs[0].tokens for prompt in prompts]
    back = [engine.run(prompt, options).outputs[0].tokens for prompt in prompts[::-1]]
    assert compiles() == before
    assert there == back[::-1]
    assert there[0] == first
    assert there[0] != there[3]  # the same shape, other pixels
