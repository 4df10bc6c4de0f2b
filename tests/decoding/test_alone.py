"""A drafter that answers by itself: its model's own words, and the geometry of its routes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.assets import TINY_LLAVA
from tests.decoding.test_engine import spell
from tests.decoding.test_routed import lively_router, spread, whole
from tests.pictured import mixed_prompts, prompt_arrays
from tiger_jax.data.records import Request
from tiger_jax.decoding.drafters.routed import RoutedDrafter
from tiger_jax.decoding.drafters.vlm import VLMDrafter
from tiger_jax.decoding.engine import Engine, Options
from tiger_jax.errors import UserError
from tiger_jax.models.interface import build_model
from tiger_jax.pipeline import Pipeline
from tiger_jax.routing.bank import embed_stream, gather_rows
from tiger_jax.routing.router import RouterConfig
from tiger_jax.testing.tiny import lively_params, tiny_qwen3_vl_config

STOPS = (2, 7, 13, 19)
G, K = 2, 6


@pytest.fixture(scope="module")
def config():
    """The family with positions on axes and tokens for several layers; the embedded pair below is
    of the other. Many ids end an answer, so that answers end within blocks."""
    return dataclasses.replace(tiny_qwen3_vl_config(layers=2), eos_token_ids=STOPS)


@pytest.fixture(scope="module")
def pair(config):
    """A drafter, and a verifier without any weights: nothing may ask it."""
    model = build_model(config)
    drafter, drawable = VLMDrafter(model, G), np.arange(97) < 60
    return Engine(model, {}, drawable, spell, drafter, lively_params(model, 1))


@pytest.fixture(scope="module")
def prompt(config):
    return prompt_arrays(config, mixed_prompts(config), pooled_tokens=4)


@pytest.fixture(scope="module")
def routed(pair):
    """The same drafter behind routes."""
    model = pair.drafter.model
    params = pair.drafter_params | {"router": lively_router(32, 5)}
    router = RouterConfig(routed_tokens=K, pooled_tokens=4)
    return dataclasses.replace(pair, drafter=RoutedDrafter(model, G, router), drafter_params=params)


def test_a_full_visual_drafter_says_what_its_model_says_as_a_verifier(pair, prompt):
    """Greedy and sampled rows in one batch; tokens, ends and log-probabilities."""
    asked = [Options(24), *(Options(24 - seed, 1.0, seed=seed) for seed in (1, 3, 4))]
    model = Engine(pair.drafter.model, pair.drafter_params, pair.drawable, spell)
    alone, plain = pair.run_alone(prompt, asked).outputs, model.run(prompt, asked).outputs
    for own, other in zip(alone, plain, strict=True):
        assert (own.tokens, own.text) == (other.tokens, other.text)
        assert own.finish_reason == other.finish_reason
        np.testing.assert_allclose(own.logprobs, other.logprobs, atol=2e-5)
    assert any(o.finish_reason == "stop" and len(o.tokens) % G != 1 for o in alone), "within blocks"
    assert max(len(o.tokens) for o in alone) > 2 * G


def test_a_routed_answer_is_the_whole_text_run_at_once(routed, prompt):
    """Every token equals one pass without any cache over [stream | routed | root | block so far],
    where the route is that of the block's root; the first token has its own, at the prompt's end.
    """
    outputs = routed.run_alone(prompt, [Options(6)] * 3).outputs  # the last row is a filler
    assert len(outputs) == 3
    said = uncached(routed, prompt, 6)
    for row in (0, 1):
        assert outputs[row].tokens == said(row, len(outputs[row].tokens))
        assert (outputs[row].rounds, outputs[row].accepted_lengths) == (0, []), "not verified"
    assert len(outputs[0].tokens) > 1 + G


def uncached(engine, prompt, room):
    """(row, count) -> `count` greedy tokens of it, and what they are routed from, spelt out."""
    model, params = engine.drafter.model, engine.drafter_params
    run, head = jax.jit(model.context), jax.jit(model.logits)
    read = jax.jit(lambda params, text: model.widen(model.embed(params, text)))

    @jax.jit
    def pictures(params):
        bank = gather_rows(model.encode_images(params, prompt.tiles), prompt.stream.bank)
        return bank, embed_stream(model, params, prompt.stream, bank)

    bank, streams = map(np.asarray, pictures(params))
    router = {name: np.asarray(params["router"][name]["kernel"]) for name in ("query", "key")}

    def embed(words):
        padded = jnp.asarray([[*words, *[0] * (room - len(words))]], jnp.int32)
        return np.asarray(read(params, padded))[0, : len(words)]

    def say(row, count):
        size, seen = int(prompt.stream.lengths[row]), bank[row]
        stream, before = streams[row, :size], np.asarray(prompt.stream.positions[row, :size])
        real = int((np.asarray(prompt.stream.bank.rows[row]) >= 0).sum())
        first = int(prompt.lengths[row]) + int(prompt.rope_deltas[row])  # position of token 0
        said, last = [], int(prompt.tokens[row, prompt.lengths[row] - 1])
        for number in range(count):
            # Token 0 alone, then blocks of G; a block's root is the last token before it.
            begin = 0 if number == 0 else 1 + (number - 1) // G * G
            x = np.concatenate([stream, embed(said[:begin])])
            places = np.concatenate([before, spread(first + np.arange(begin), before)])
            query = whole(run, params, x, places) @ router["query"]
            scores = seen[:, : len(router["key"])] @ router["key"] @ query
            best = sorted(np.argsort(-scores[:real], kind="stable")[:K].tolist())
            block = [[last, *said][begin], *said[begin:]]
            own = np.asarray(prompt.stream.bank.positions[row])[best]
            tail = spread(first + begin - 1 + np.arange(len(block)), before)
            x = np.concatenate([x, seen[best], embed(block)])
            hidden = whole(run, params, x, np.concatenate([places, own, tail]))
            logits = head(params, jnp.asarray(hidden))
            said.append(int(np.argmax(np.where(engine.drawable, logits, -1e9))))
        return said

    return say


def test_stop_strings_and_streaming_go_block_by_block(routed, prompt):
    asked = [Options(10)] * 4
    whole_answer = routed.run_alone(prompt, asked).outputs
    seen = {row: [] for row in range(4)}
    streamed = routed.run_alone(prompt, asked, lambda row, words: seen[row].append(words)).outputs
    assert [o.tokens for o in streamed] == [o.tokens for o in whole_answer]
    row = max(range(4), key=lambda row: len(whole_answer[row].tokens))
    tokens = whole_answer[row].tokens
    assert [len(words) for words in seen[row]][:3] == [1, 1 + G, 1 + 2 * G]
    word = f" {tokens[3]} "  # the first of a block
    asked[row] = Options(10, stop=(word,))
    stopped = routed.run_alone(prompt, asked).outputs[row]
    assert stopped.finish_reason == "stop_string"
    assert stopped.text == spell(tokens).partition(word)[0]
    assert stopped.accepted_lengths == []


@pytest.fixture(scope="module")
def prepared():
    request = Request(
        id="1", prompt="Describe the picture.", images=(str(TINY_LLAVA / "demo.png"),)
    )
    solo = Pipeline.load(TINY_LLAVA / "drafter")
    return solo, [solo.prepare(request, Options(max_new_tokens=40))]


def test_the_embedded_drafter_answers_as_its_folder_does(prepared):
    solo, asked = prepared
    pair = Pipeline.load(TINY_LLAVA / "verifier", TINY_LLAVA / "drafter")
    (own,), (plain,) = pair.run_alone(asked, 1).outputs, solo.run(asked, 1).outputs
    assert (own.tokens, own.finish_reason) == (plain.tokens, plain.finish_reason)
    assert own.finish_reason == "stop"


@pytest.mark.parametrize(
    ("drafter", "got"), [(None, "none"), (TINY_LLAVA / "heads" / "tiger_head", "a head")]
)
def test_only_a_model_answers_alone(prepared, drafter, got):
    pair = Pipeline.load(TINY_LLAVA / "verifier", drafter)
    with pytest.raises(UserError) as caught:
        pair.run_alone(prepared[1], 1)
    message = f"answers alone: expected a small model as drafter, got {got}"
    assert str(caught.value) == message
