"""Plain greedy decoding through the engine equals transformers' generate, token for token.

transformers pads a batch on the left, the engine on the right. Neither may draw ids without text.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from pairs import Pair, picture, prompt_text
from stages import make_prompts, reference_inputs

from tiger_jax.data.batches import batch_prompts
from tiger_jax.decoding.drafters.protocol import prompt_arrays
from tiger_jax.decoding.engine import Engine, Options
from tiger_jax.models.interface import build_model

NEW = 24
CASES = [
    (prompt_text(1, 7), [picture(60, 100)]),
    (prompt_text(3, 4), [picture(56, 56), picture(130, 45, 1), picture(20, 300, 2)]),
    (prompt_text(0, 15), []),
    (prompt_text(2, 5, seed=3), [picture(200, 41), picture(57, 111, 1)]),
]


@torch.no_grad()
def generate(pair: Pair, cases, eos: list[int] | None) -> tuple[np.ndarray, np.ndarray]:
    """transformers' new tokens [B, NEW] and the raw logits they were chosen from [B, NEW, V]."""
    texts = [text for text, _ in cases]
    images = [image for _, pictures in cases for image in pictures]
    inputs = reference_inputs(pair, texts if len(texts) > 1 else texts[0], images)
    out = pair.reference.generate(
        **inputs, do_sample=False, max_new_tokens=NEW, eos_token_id=eos, pad_token_id=3,
        suppress_tokens=np.flatnonzero(~pair.processor.drawable).tolist(),
        return_dict_in_generate=True, output_logits=True,
    )  # fmt: skip
    tokens = out.sequences[:, inputs["input_ids"].shape[1] :].numpy()
    return tokens, torch.stack(out.logits, dim=1).numpy()


def decode(pair: Pair, cases, eos: tuple[int, ...]):
    config = dataclasses.replace(pair.config, eos_token_ids=eos)
    engine = Engine(build_model(config), pair.params, pair.processor.drawable, detokenize=str)
    prompts = make_prompts(pair, cases)
    some = any(len(prompt.tiles) for prompt in prompts)
    batch = batch_prompts(prompts, config, seq_bucket=256, tile_bucket=32 if some else 0)
    prompt = prompt_arrays(batch, jnp.float32)
    return engine.run(prompt, [Options(max_new_tokens=NEW)] * len(cases)).outputs


def logprobs(logits: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    laws = torch.tensor(logits).double().log_softmax(dim=-1)
    return laws.gather(-1, torch.tensor(tokens)[..., None])[..., 0].numpy()


@pytest.fixture(scope="module")
def free_run(pair):
    """transformers' tokens and logits of the whole batch, without any end token."""
    return generate(pair, CASES, eos=None)


def test_the_choice_is_clear(pair, free_run):
    """No near tie, where rounding alone could pick the other token."""
    tokens, logits = free_run
    logits = np.where(pair.processor.drawable, logits, -np.inf)
    best = np.sort(logits, axis=-1)[..., -2:]
    assert np.diff(best).min() > 1e-3
    assert np.array_equal(logits.argmax(-1), tokens)
    assert all(len(set(row)) > NEW // 3 for row in tokens.tolist())  # no loop on one token


@pytest.mark.parametrize("row", range(len(CASES)))
def test_one_prompt(pair, row):
    tokens, logits = generate(pair, CASES[row : row + 1], eos=None)
    (output,) = decode(pair, CASES[row : row + 1], eos=())
    assert output.tokens == tokens[0].tolist()
    assert output.finish_reason == "length"
    np.testing.assert_allclose(output.logprobs, logprobs(logits, tokens)[0], atol=1e-5, rtol=0)


def test_a_batch_against_left_padding(pair, free_run):
    tokens, logits = free_run
    wanted = logprobs(logits, tokens)
    for b, output in enumerate(decode(pair, CASES, eos=())):
        assert output.tokens == tokens[b].tolist(), b
        np.testing.assert_allclose(output.logprobs, wanted[b], atol=1e-5, rtol=0)


def end_tokens(rows: list[list[int]]) -> list[int]:
    """The first of row 0's tokens and of row 1's that the last row lacks, not their very first."""
    return [next(t for t in row[2:] if t not in {*rows[-1], *row[:2]}) for row in rows[:2]]


def test_end_tokens(pair, free_run):
    """Two end tokens; the last row meets none, the others do at different times."""
    free = free_run[0].tolist()
    eos = end_tokens(free)
    ends = [next((i for i, token in enumerate(row) if token in eos), NEW) for row in free]
    assert ends[-1] == NEW
    assert len(set(ends)) >= 3
    tokens, logits = generate(pair, CASES, eos=eos)
    wanted = logprobs(logits, tokens)
    for b, output in enumerate(decode(pair, CASES, eos=tuple(eos))):
        count = min(ends[b] + 1, NEW)  # the end token itself is emitted
        assert output.tokens == tokens[b, :count].tolist() == free[b][:count]
        assert (tokens[b, count:] == 3).all()
        assert output.finish_reason == ("stop" if ends[b] < NEW else "length")
        np.testing.assert_allclose(output.logprobs, wanted[b, :count], atol=1e-5, rtol=0)
