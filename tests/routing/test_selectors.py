"""Selectors that look once, against slow forms written out with loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.pictured import mixed_prompts, prompt_arrays
from tiger_jax.ops.sampling import NEVER
from tiger_jax.routing import selectors
from tiger_jax.routing.router import choose
from tiger_jax.testing.tiny import tiny_model


@pytest.fixture(scope="module")
def model():
    return tiny_model(3, layers=3)


@pytest.fixture(scope="module")
def prompt(model):
    return prompt_arrays(model[0].config, mixed_prompts(model[0].config), width=64)


def slow_diverse(features, order, count):
    """VisPruner's own loop over one line of tokens (baselines.md 5.2)."""
    line = list(order)
    while len(line) > count:
        a, b = line[::2], line[1::2]
        drop = min(8, len(line) - count, len(a))
        best = [max((features[i] @ features[j] for j in b), default=-np.inf) for i in a]
        falling = sorted(range(len(a)), key=lambda i: -best[i])
        line = [a[i] for i in falling[drop:]] + b
    return set(line)


@pytest.mark.parametrize(("tokens", "count"), [(30, 4), (29, 3), (5, 5), (3, 4), (40, 1), (9, 0)])
def test_diversity_is_the_papers_loop(tokens, count):
    rng = np.random.default_rng(tokens)
    features = rng.normal(size=(48, 6)).astype(np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    score = rng.normal(size=48).astype(np.float32)
    out = rng.permutation(48)[: 48 - tokens]
    score[out] = NEVER
    kept = jax.jit(selectors.diverse, static_argnums=2)(features, score, count)
    order = [i for i in np.argsort(-score) if score[i] > NEVER]
    assert set(np.flatnonzero(kept)) == slow_diverse(features, order, count)


def class_attention(model, params, tiles):
    """The class row of the whole attention matrix at block -2, written out."""
    tower = params["vision_tower"]
    x = model.module.apply(
        {"params": params}, tiles, method=lambda m, t: m.vision_tower.layers[0](
            m.vision_tower.embed(t)
        ),
    )  # fmt: skip
    layer = tower["layers_1"]
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    x = (x - mean) / np.sqrt(var + 1e-5) * layer["norm1"]["scale"][None, None]
    x = x + layer["norm1"]["bias"][None, None]

    def heads(name):
        part = layer["attention"][name]
        return (x @ part["kernel"] + part["bias"][None, None]).reshape(*x.shape[:2], 2, 8)

    scores = jnp.einsum("nqhd,nkhd->nhqk", heads("query"), heads("key")) / np.sqrt(8)
    return jax.nn.softmax(scores, axis=-1)[:, :, 0, 1:].mean(axis=1)


def test_importance_is_the_class_tokens_look(model, prompt):
    looks = model[0].vision_saliency(model[1], prompt.tiles)
    assert looks.shape == (len(prompt.tiles), 4)
    np.testing.assert_allclose(looks, class_attention(*model, prompt.tiles), atol=1e-5)
    assert (np.asarray(looks.sum(axis=1)) < 1).all()  # the class row's own share is left out


@pytest.mark.parametrize("k", [1, 5, 8])
def test_vispruner_keeps_half_by_importance(model, prompt, k):
    layout = prompt.stream.bank
    scores = selectors.vispruner(*model, prompt.tiles, layout, k)
    routed = choose(scores[:, None], k)
    looks = np.asarray(model[0].vision_saliency(model[1], prompt.tiles)).ravel()
    features = np.asarray(model[0].vision_features(model[1], prompt.tiles)).reshape(len(looks), -1)
    features = features / np.linalg.norm(features, axis=1, keepdims=True)
    for row, rows in enumerate(np.asarray(layout.rows)):
        towers = [i for i in range(len(rows)) if 0 <= rows[i] < len(looks)]
        order = sorted(towers, key=lambda i: -looks[rows[i]])
        half = (k + 1) // 2
        want = set(order[:half])
        want |= {
            order[half:][i]
            for i in slow_diverse(features[rows[order[half:]]], range(len(order[half:])), k // 2)
        }
        got = np.asarray(routed.indices[row, 0])[np.asarray(routed.valid[row, 0])]
        assert set(got.tolist()) == want
        assert len(want) == min(k, len(towers))
    newline = np.asarray(layout.rows) == len(looks)
    assert newline.any()
    assert (np.asarray(scores)[newline] == np.float32(NEVER)).all()


def test_raters_are_the_relevant_text():
    """Two visual tokens, three words: words 0 and 2 fit them, word 1 does not, word 3 is none."""
    text = jnp.asarray([[[4.0, 0.0], [-4.0, -4.0], [0.0, 4.0], [9.0, 9.0]]])
    visual = jnp.asarray([[[1.0, 0.0], [0.0, 1.0], [-50.0, -50.0]]])
    is_text = jnp.asarray([[True, True, True, False]])
    is_visual = jnp.asarray([[True, True, False]])
    raters = selectors.relevant_text(text, visual, is_text, is_visual)
    assert raters.tolist() == [[True, False, True, False]]


def test_sparsevlm_is_the_raters_attention(model, prompt):
    """Against the whole L x L attention of layer 2, one prompt at a time."""
    vlm, params = model
    table = vlm.encode_images(params, prompt.tiles)
    x = vlm.embed(params, prompt.tokens, prompt.image_rows, table)
    scores = np.asarray(selectors.sparsevlm(vlm, params, x, prompt.stream, prompt.positions))
    cache = vlm.init_cache(x.shape[0], x.shape[1] + 1)
    _, cache, states = vlm.prefill(params, x, cache, (2,))
    places = jnp.broadcast_to(jnp.arange(x.shape[1])[None], x.shape[:2])
    causal = jnp.broadcast_to(places[:, None] <= places[..., None], (4, x.shape[1], x.shape[1]))
    keys = cache.keys[2][:, :, :-1]
    looks = np.asarray(vlm.attention_weights(params, 2, states, places, keys, causal))
    np.testing.assert_allclose(looks.sum(axis=-1), 1, atol=1e-5)
    for row, length in enumerate(np.asarray(prompt.lengths)):
        visual = np.flatnonzero(np.asarray(prompt.image_rows[row]) >= 0)
        if not len(visual):
            continue
        words = np.array([i for i in range(visual[0] + 1, length) if i not in visual])
        fit = np.asarray(x[row])[visual] @ np.asarray(x[row])[words].T
        share = np.asarray(jax.nn.softmax(fit, axis=-1)).mean(axis=0)
        raters = words[share >= share.mean()]
        assert 0 < len(raters) < len(words)
        want = looks[row][raters][:, visual].mean(axis=0)
        np.testing.assert_allclose(scores[row, : len(visual)], want, atol=1e-5)
