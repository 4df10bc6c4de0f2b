"""Heads on a verifier of Qwen3-VL, chains and trees: a head counts tokens, the verifier has fewer
rotary positions behind a picture, and no token changes."""

import numpy as np
import pytest

from tests.decoding import test_head_drafters as heads
from tests.decoding.conftest import accepted, emitted, limits_of, sampling_of
from tests.decoding.test_routed import Wide
from tests.pictured import framed_prompt, prompt_arrays
from tiger_jax.decoding.drafters.head import HeadDrafter
from tiger_jax.decoding.drafters.tree import DynamicTree
from tiger_jax.ops.sampling import SamplingMode
from tiger_jax.routing.router import RouterConfig
from tiger_jax.testing.tiny import tiny_model

SHOWN = (((2, 5), (2, 2, 2)), (), ((4, 6),))
"""A picture and a video, nothing, a picture."""
TREE = DynamicTree(nodes=8, depth=2, width=3)
SIZES = {"vocab_size": 97, "num_layers": 3}


def tiger(tree=None):
    head = heads.head_of("tiger", "routed", features=(1, 2, 3), **SIZES)
    router = RouterConfig("tiger", 4, query="text_only")
    return HeadDrafter(head, 3, tree, router, route_every="round" if tree else "step")


def eagle(tree=None):
    return HeadDrafter(heads.head_of(visual="full", **SIZES), 3, tree)


DRAFTERS = {
    "tiger": tiger(), "tiger-tree": tiger(TREE), "eagle": eagle(), "eagle-tree": eagle(TREE),
}  # fmt: skip


@pytest.fixture(scope="module")
def verifier():
    return Wide(*tiny_model(0, "qwen3_vl"))


@pytest.fixture(scope="module")
def prompts(verifier):
    config = verifier.model.config
    return [framed_prompt(config, shown, range(3, 8 + row), row) for row, shown in enumerate(SHOWN)]


@pytest.fixture(scope="module")
def asked():
    """Sampling and limits: few ids, so that random heads agree with a random verifier at times."""
    return sampling_of(3), limits_of(3, (24, 23, 22), undrawable=91)


@pytest.fixture(scope="module")
def plain(verifier, prompts, asked):
    prompt = prompt_arrays(verifier.model.config, prompts, width=64).replace(stream=None)
    assert prompt.rope_deltas.tolist() == [-9, 0, -18]
    return verifier.run(prompt, *asked)


@pytest.mark.parametrize("name", DRAFTERS)
def test_no_head_changes_a_token(verifier, prompts, asked, plain, name, monkeypatch):
    drafter = DRAFTERS[name]
    monkeypatch.setattr(heads, "verifier", lambda: (verifier.model, verifier.params))
    params = heads.random_params(drafter)
    query = getattr(drafter, "stream_query", "text_only")
    prompt = prompt_arrays(verifier.model.config, prompts, query=query, width=64)
    state = verifier.run(prompt, *asked, SamplingMode.GREEDY, drafter, params)
    assert emitted(state) == emitted(plain)
    for row, tokens in enumerate(emitted(plain)):  # of so few ids, a wrong position may keep all
        np.testing.assert_allclose(
            state.logprobs[row, : len(tokens)], plain.logprobs[row, : len(tokens)], atol=2e-5
        )
    hits = [length for row in accepted(state) for length in row]
    assert 0 < max(hits) <= drafter.spec.depth
