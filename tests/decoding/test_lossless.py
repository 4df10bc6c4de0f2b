"""Whatever the drafter does, the output is plain decoding's."""

import numpy as np
import pytest

from tests.decoding.conftest import (
    accepted,
    assert_plain,
    emitted,
    limits_of,
    prompts_of,
    rows_of,
    run_poisoned,
    sampling_of,
)
from tiger_jax.decoding.drafters.vlm import VLMDrafter
from tiger_jax.ops.sampling import SamplingMode

GREEDY = SamplingMode.GREEDY


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("draft_length", range(1, 9))
def test_random_drafter_changes_no_token(runner, small, batch, draft_length):
    prompt, sampling = prompts_of(batch), sampling_of(batch)
    limits = limits_of(batch, max_new=np.arange(24, 24 - batch, -1), stop_ids=(7,))
    plain = runner.run(prompt, sampling, limits)
    drafter = VLMDrafter(small[0], draft_length)
    state = runner.run(prompt, sampling, limits, GREEDY, drafter, small[1])
    assert_plain(state, plain)


@pytest.mark.parametrize("draft_length", [1, 3, 8])
def test_oracle_drafter_is_always_right(runner, draft_length):
    """The verifier as its own drafter accepts every block; a bug in positions, masks or in the
    cache of either model would break the chain."""
    prompt, sampling, limits = prompts_of(4), sampling_of(4), limits_of(4, max_new=25)
    drafter = VLMDrafter(runner.model, draft_length)
    state = runner.run(prompt, sampling, limits, GREEDY, drafter, runner.params)
    for lengths in accepted(state):
        assert lengths[:-1] == [draft_length] * (len(lengths) - 1)
    # 24 tokens after the first, draft_length + 1 a round.
    assert np.asarray(state.rounds).tolist() == [-(-24 // (draft_length + 1))] * 4


def test_counts_agree(runner, small):
    """1 + sum A + rounds = tokens, where no block was cut on a drafted token."""
    prompt, sampling, limits = prompts_of(4), sampling_of(4), limits_of(4, max_new=25)
    for drafter, params in ((small[0], small[1]), (runner.model, runner.params)):
        state = runner.run(prompt, sampling, limits, GREEDY, VLMDrafter(drafter, 3), params)
        for lengths, tokens in zip(accepted(state), emitted(state), strict=True):
            assert all(0 <= length <= 3 for length in lengths)
            assert len(tokens) - 1 in (sum(lengths) + len(lengths), sum(lengths) + len(lengths) - 1)
        assert (np.asarray(state.drafted) == 3 * np.asarray(state.rounds)).all()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_does_not_depend_on_its_batch(runner, small, temperature):
    mode = SamplingMode.TEMPERATURE
    prompt, limits = prompts_of(4, seed=3), limits_of(4)
    drafter = VLMDrafter(small[0], 4)
    together = runner.run(
        prompt, sampling_of(4, temperature, seeds=[11, 12, 13, 14]), limits, mode, drafter, small[1]
    )
    for row in range(4):
        alone = runner.run(
            rows_of(prompt, [row]), sampling_of(1, temperature, seeds=[11 + row]), limits_of(1),
            mode, drafter, small[1],
        )  # fmt: skip
        assert emitted(alone)[0] == emitted(together)[row]


def test_rejected_rows_are_never_read(runner, small):
    """Rows behind the committed ones are overwritten with 1e9 between rounds."""
    prompt, sampling, limits = prompts_of(4), sampling_of(4), limits_of(4)
    drafter = VLMDrafter(small[0], 4)
    want = emitted(runner.run(prompt, sampling, limits))

    state = run_poisoned(runner, drafter, small[1], prompt, sampling, limits)
    assert emitted(state) == want


def test_confidence_shortens_drafts_and_changes_nothing(runner, small):
    prompt, sampling, limits = prompts_of(4), sampling_of(4), limits_of(4)
    plain = runner.run(prompt, sampling, limits)
    drafted = []
    for confidence in (0.0, 0.1, 0.9):
        drafter = VLMDrafter(small[0], 5, confidence)
        state = runner.run(prompt, sampling, limits, GREEDY, drafter, small[1])
        assert emitted(state) == emitted(plain)
        drafted.append(int(np.asarray(state.drafted).sum()))
    assert drafted[0] > drafted[1] > drafted[2]
