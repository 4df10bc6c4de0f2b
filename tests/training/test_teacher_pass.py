"""The verifier's laws and attention against a forward pass in numpy, one prompt at a time.

S: tokens of a prompt with its response, D: width, H: heads, d: head dim.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from draft_cases import full_forward, make_items, prompt_until, response, visual_table, word_table

from tiger_jax.data.batches import batch_prompts
from tiger_jax.data.packing import pack_texts
from tiger_jax.testing.tiny import tiny_model
from tiger_jax.training.block_layout import Prefixes, TextRows
from tiger_jax.training.teacher_pass import TeacherSettings, teacher_pass

SETTINGS = TeacherSettings(kept_tokens=6, kept_rows=40, window=3, power=3.0)


@pytest.fixture(scope="module")
def asked():
    """(model, params, items, packed texts, what was said, of what)."""
    model, params = tiny_model(0)
    items = make_items(model.config)
    texts = [
        [(question, response(item, n)) for n, question in enumerate(item.example.questions)]
        for item in items
    ]
    packed = pack_texts(texts, 8)
    prefixes = [item.example.prefix for item in items]
    tiles = sum(len(prefix.tiles) for prefix in prefixes)
    batch = batch_prompts(prefixes, model.config, 40, tiles)
    prefix = Prefixes(**{name: jnp.asarray(value) for name, value in batch._asdict().items()})
    rows = TextRows(packed.tokens, packed.segments, batch.lengths[:, None] + packed.offsets)
    said = teacher_pass(model, SETTINGS, params, prefix, rows)
    return model, params, items, packed, said, (prefix, rows)


def norm(x, scale, eps):
    return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + eps) * scale


def rotate(x, theta):
    """x: [S, H, d], halves rotated as in Llama."""
    half = x.shape[-1] // 2
    angles = np.arange(len(x))[:, None] * theta ** (-np.arange(half) / half)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    first, second = x[..., :half], x[..., half:]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def forward(config, params, x):
    """(logits [S, V], attention [S, S], mean over heads and layers) of one prompt."""
    text, tree = config.text, jax.tree.map(np.asarray, params["language_model"])
    size, looks = len(x), []
    for number in range(text.num_layers):
        layer = tree[f"layers_{number}"]
        heads = layer["attention"]
        y = norm(x, layer["input_norm"]["scale"], text.rms_norm_eps)
        q, k, v = (
            (y @ heads[name]["kernel"]).reshape(size, -1, text.head_dim)
            for name in ("query", "key", "value")
        )
        q, k = rotate(q, text.rope_theta), rotate(k, text.rope_theta)
        group = text.num_heads // text.num_kv_heads
        k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
        scores = np.einsum("shd,thd->hst", q, k) / np.sqrt(text.head_dim)
        scores = np.where(np.tri(size, dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        looks.append(weights.mean(0))
        x = x + np.einsum("hst,thd->shd", weights, v).reshape(size, -1) @ heads["out"]["kernel"]
        y = norm(x, layer["post_attention_norm"]["scale"], text.rms_norm_eps)
        mlp = {name: y @ layer["mlp"][name]["kernel"] for name in ("gate", "up")}
        gate = mlp["gate"] / (1 + np.exp(-mlp["gate"]))
        x = x + (gate * mlp["up"]) @ layer["mlp"]["down"]["kernel"]
    hidden = norm(x, tree["final_norm"]["scale"], text.rms_norm_eps)
    return hidden @ tree["lm_head"]["kernel"], np.mean(looks, axis=0)


def oracle(model, params, item, question):
    """Of one question alone: (log-probabilities [S, V], attention [S, S], prompt length)."""
    prompt = prompt_until(item, question, len(response(item, question)))
    x = word_table(model, params)[prompt.tokens]
    visual = prompt.image_ids >= 0
    x[visual] = visual_table(model, params, prompt)[prompt.image_rows[visual]]
    logits, attention = forward(model.config, params, x.astype(np.float64))
    logs = logits - logits.max(-1, keepdims=True)
    logs = logs - np.log(np.exp(logs).sum(-1, keepdims=True))
    return logs, attention, len(item.example.prompt(question).tokens)


def questions_of(items):
    return [(b, n) for b, item in enumerate(items) for n in range(len(item.example.questions))]


def test_laws_are_the_models_own(asked):
    """At every response token, the law of it: its likeliest tokens, and its own probability."""
    model, params, items, packed, said, _ = asked
    for b, n in questions_of(items):
        logs, _, start = oracle(model, params, items[b], n)
        tokens = response(items[b], n)
        for i, place in enumerate(packed.responses(b, n)):
            want = logs[start + i - 1]
            best = np.argsort(-want)[: SETTINGS.kept_tokens]
            ids = np.asarray(said.law_ids)[b, place - 1]
            assert ids.tolist() == best.tolist()
            np.testing.assert_allclose(said.law_logprobs[b, place - 1], want[best], atol=2e-5)
            np.testing.assert_allclose(said.next_logprobs[b, place - 1], want[tokens[i]], atol=2e-5)


def test_attention_of_the_tokens_to_come(asked):
    """Root y_i: mean attention of y_i .. y_{i+2} onto the picture, without the response's last
    token, which predicts nothing; cubed and made a law."""
    model, params, items, packed, said, _ = asked
    for b, n in questions_of(items):
        _, attention, start = oracle(model, params, items[b], n)
        count, visual = len(response(items[b], n)), items[b].example.prefix.image_ids >= 0
        size = len(visual)
        for i, place in enumerate(packed.responses(b, n)[:-1]):
            last = min(i + SETTINGS.window, count - 1)
            mean = attention[start + i : start + last, :size].mean(0) * visual
            want = mean**3 / max((mean**3).sum(), 1e-30)
            got = np.zeros(40)
            got[np.asarray(said.route_ids)[b, place]] = np.asarray(said.route_weights)[b, place]
            np.testing.assert_allclose(got[:size], want, atol=2e-5)
            assert not got[size:].any()


def test_what_is_not_there_is_padding(asked):
    """More entries than the vocabulary and the prefix have: text alone and long prompts mix."""
    model, params, *_, said, inputs = asked
    vocab = model.config.text.vocab_size
    more = dataclasses.replace(SETTINGS, kept_tokens=vocab + 3, kept_rows=45)
    padded = teacher_pass(model, more, params, *inputs)
    assert padded.law_ids.shape == padded.law_logprobs.shape == (*said.law_ids.shape[:2], vocab + 3)
    assert padded.route_ids.shape == padded.route_weights.shape == (*said.law_ids.shape[:2], 45)
    np.testing.assert_array_equal(padded.law_ids[..., :6], said.law_ids)
    assert (np.asarray(padded.law_ids)[..., vocab:] == -1).all()
    assert np.isneginf(padded.law_logprobs[..., vocab:]).all()
    np.testing.assert_allclose(padded.route_weights[..., :40], said.route_weights, atol=1e-6)
    assert (np.asarray(padded.route_ids)[..., 40:] == -1).all()
    assert (np.asarray(padded.route_weights)[..., 40:] == 0).all()


def test_the_oracle_is_the_models_prefill(asked):
    """What the numpy pass says of one prompt, prefill says too."""
    model, params, items, *_ = asked
    prompt = prompt_until(items[0], 0, 5)
    logits = full_forward(model, params, [prompt])[0, : len(prompt.tokens)]
    logs = jax.nn.log_softmax(jnp.asarray(logits))
    np.testing.assert_allclose(logs, oracle(model, params, items[0], 0)[0], atol=3e-5)
