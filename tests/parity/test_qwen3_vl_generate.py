"""Plain greedy decoding of Qwen3-VL through the engine equals transformers' generate.

transformers pads a batch on the left, the engine on the right. Neither may draw ids without text.
"""

import dataclasses
from unittest import mock

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from qwen3_vl_pairs import WORDS, Image, Video, batch_prompts, make_prompt, reference_inputs
from qwen3_vl_stages import arrays

from tiger_jax.decoding.drafters.protocol import PromptArrays
from tiger_jax.decoding.engine import Engine, Options
from tiger_jax.models.interface import build_model

NEW, PAD, SEED = 24, 399, 5
CASES = {
    "picture": [3, Image(8, 12), 5],
    "video": [2, Video(3, 4, 6), 6],
    "video between pictures": [1, Image(4, 6), 2, Video(2, 4, 4), 2, Image(6, 4), 4],
    "text": [15],
}
DRAWABLE = np.arange(400) < WORDS


@torch.no_grad()
def generate(pair, prompts) -> tuple[np.ndarray, np.ndarray]:
    """transformers' new tokens [B, NEW] and the raw logits they were chosen from [B, NEW, V]."""
    pair.reference.model.rope_deltas = None
    inputs = reference_inputs(prompts)
    out = pair.reference.generate(
        **inputs, do_sample=False, max_new_tokens=NEW, eos_token_id=None, pad_token_id=PAD,
        suppress_tokens=np.flatnonzero(~DRAWABLE).tolist(), return_dict_in_generate=True,
        output_logits=True,
    )  # fmt: skip
    tokens = out.sequences[:, inputs["input_ids"].shape[1] :].numpy()
    return tokens, torch.stack(out.logits, dim=1).numpy()


@pytest.fixture(scope="module")
def engine(qwen3_vl):
    return make_engine(qwen3_vl, ())


def make_engine(qwen3_vl, eos: tuple[int, ...]):
    model = build_model(dataclasses.replace(qwen3_vl.config, eos_token_ids=eos))
    return Engine(model, qwen3_vl.params, DRAWABLE, detokenize=str)


def decode(engine, prompts):
    shown = any(len(prompt.frames) for prompt in prompts)
    batch = batch_prompts(prompts, length=64, frames=8 if shown else 0, patches=96)
    tokens, positions, image_rows, frames = arrays(batch)
    prompt = PromptArrays(
        tokens=tokens, lengths=jnp.asarray(batch.lengths), image_rows=image_rows, tiles=frames,
        positions=positions,
    )  # fmt: skip
    return engine.run(prompt, [Options(max_new_tokens=NEW)] * len(prompts)).outputs


def logprobs(logits: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    laws = torch.tensor(logits).double().log_softmax(dim=-1)
    return laws.gather(-1, torch.tensor(tokens)[..., None])[..., 0].numpy()


def assert_clear(logits, tokens):
    """No near tie, where rounding alone could pick the other token, and no loop on one."""
    logits = np.where(DRAWABLE, logits, -np.inf)
    assert np.diff(np.sort(logits, axis=-1)[..., -2:]).min() > 1e-3
    assert np.array_equal(logits.argmax(-1), tokens)
    assert all(len(set(row)) > NEW // 3 for row in tokens.tolist())


@pytest.mark.parametrize("name", CASES)
def test_one_prompt(qwen3_vl, engine, name):
    prompt = make_prompt(CASES[name], seed=SEED)
    tokens, logits = generate(qwen3_vl, [prompt])
    assert_clear(logits, tokens)
    (output,) = decode(engine, [prompt])
    assert output.tokens == tokens[0].tolist()
    np.testing.assert_allclose(output.logprobs, logprobs(logits, tokens)[0], atol=2e-5, rtol=0)


def test_a_batch_against_left_padding(qwen3_vl, engine):
    prompts = [make_prompt(case, seed=SEED) for case in CASES.values()]
    tokens, logits = generate(qwen3_vl, prompts)
    assert_clear(logits, tokens)
    wanted = logprobs(logits, tokens)
    for b, output in enumerate(decode(engine, prompts)):
        assert output.tokens == tokens[b].tolist(), b
        np.testing.assert_allclose(output.logprobs, wanted[b], atol=2e-5, rtol=0)


def test_the_delta_reaches_every_step(qwen3_vl, engine):
    """B2: without it the first token is right, which the prompt alone decides, others are not."""
    prompt = make_prompt(CASES["picture"], seed=SEED)
    (right,) = decode(engine, [prompt])
    none = property(lambda arrays: jnp.zeros_like(arrays.lengths))
    with mock.patch.object(PromptArrays, "rope_deltas", none):
        # another end token, which is never drawn: compiled programs are not shared
        (wrong,) = decode(make_engine(qwen3_vl, (PAD,)), [prompt])
    assert wrong.tokens[0] == right.tokens[0]
    assert wrong.tokens != right.tokens
