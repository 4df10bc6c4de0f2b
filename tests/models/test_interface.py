"""The model's ways through one set of weights agree with each other: packed texts, taps, padding.

That they are right is for tests/parity to say; here nothing but this package is needed.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tiger_jax.models.interface import build_model
from tiger_jax.testing.tiny import tiny_config, tiny_model


@pytest.fixture(scope="module")
def tiny():
    return tiny_model()


def tokens(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).integers(3, 90, shape), jnp.int32)


@pytest.fixture(scope="module")
def full_pass(tiny):
    """hidden states of whole sequences, right-padded where they end early; and the cache."""
    model, params = tiny

    @jax.jit
    def run(ids):
        x = model.embed(params, ids)
        return model.prefill(params, x, model.init_cache(*ids.shape), taps=(0, 1, 2))

    return run


def test_abstract_parameters_are_those_of_init(tiny):
    model, params = tiny
    drawn = jax.jit(model.init_params, static_argnums=1)(jax.random.key(0), jnp.bfloat16)
    assert jax.tree.structure(drawn) == jax.tree.structure(params)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), drawn) == jax.tree.map(
        lambda x: (x.shape, x.dtype), model.abstract_params(jnp.bfloat16)
    )
    vision = drawn["vision_tower"]
    assert "post_norm" in vision  # carried for the round trip, though it never runs
    assert "layers_2" in vision
    assert ("lm_head" in drawn["language_model"]) == (not model.config.text.tie_embeddings)


def test_models_of_equal_configuration_share_programs():
    """B25: the model is a static argument, so equal ones must not compile again."""
    first, second = build_model(tiny_config()), build_model(tiny_config())
    assert first == second
    assert hash(first) == hash(second)
    assert first != build_model(tiny_config(), jnp.bfloat16)


def test_no_picture_leaks_into_the_next_call(tiny):
    """B25: two pictures through one jitted function, no second compilation, nothing kept."""
    model, params = tiny
    encode = jax.jit(model.encode_images)
    rng = np.random.default_rng(0)
    one, other = (jnp.asarray(rng.standard_normal((2, 28, 28, 3)), jnp.float32) for _ in range(2))
    first, second = encode(params, one), encode(params, other)
    assert not np.array_equal(first[:-1], second[:-1])
    assert np.array_equal(first[-1], params["image_newline"])
    assert np.array_equal(encode(params, one), first)
    assert encode._cache_size() == 1


def test_tiles_do_not_see_each_other(tiny):
    model, params = tiny
    tiles = jnp.asarray(np.random.default_rng(0).standard_normal((3, 28, 28, 3)), jnp.float32)
    encode = jax.jit(model.encode_images)
    together, alone = encode(params, tiles), encode(params, tiles[1:2])
    np.testing.assert_allclose(together[4:8], alone[:4], atol=2e-6)


def test_embed_places_rows_of_the_table(tiny):
    model, params = tiny
    ids = tokens(2, 4)
    table = jnp.asarray(np.random.default_rng(1).standard_normal((5, 32)), jnp.float32)
    rows = jnp.asarray([[-1, 4, 0, -1], [2, -1, -1, 2]])
    out = model.embed(params, ids, rows, table)
    words = params["language_model"]["embed_tokens"]["embedding"][ids]
    assert np.array_equal(out, jnp.where((rows >= 0)[..., None], table[rows], words))
    assert np.array_equal(model.embed(params, ids), words)


def test_taps_are_the_hidden_states_before_the_final_norm(tiny, full_pass):
    model, params = tiny
    ids = tokens(1, 12)
    _, _, taps = full_pass(ids)
    assert taps.shape == (1, 12, 3 * 32)
    assert np.array_equal(taps[..., :32], model.embed(params, ids))
    assert not np.allclose(taps[..., 32:64], taps[..., 64:])
    x = model.embed(params, ids)
    without = jax.jit(lambda x: model.prefill(params, x, model.init_cache(1, 12))[2])
    assert without(x).shape == (1, 12, 0)


def test_padding_on_the_right_changes_nothing(tiny, full_pass):
    ids = tokens(1, 12)
    hidden, _, _ = full_pass(ids)
    padded, _, _ = full_pass(ids.at[:, 7:].set(96))
    assert np.array_equal(hidden[:, :7], padded[:, :7])


def test_packed_texts_equal_whole_sequences(tiny, full_pass):
    """Training's pass: each packed text as if the prefix and it were one sequence.

    Prefixes of other lengths share a batch; what stands behind them is padding.
    """
    model, params = tiny
    lengths, texts, size = np.array([7, 4, 1]), 3, 5
    prefix, tails = tokens(3, 7), tokens(3, texts * size, seed=1)
    places = np.tile(np.arange(size), texts)
    positions = jnp.asarray(lengths[:, None] + places[None], jnp.int32)
    owner = np.repeat(np.arange(texts), size)
    own = (owner[:, None] == owner[None]) & (places[:, None] >= places[None])
    real = np.arange(7)[None] < lengths[:, None]
    mask = np.concatenate(
        [np.repeat(real[:, None], len(places), axis=1), np.repeat(own[None], 3, axis=0)], axis=2
    )
    mask = jnp.asarray(mask)[:, None]

    def packed(tails, prefix):
        before = jnp.broadcast_to(jnp.arange(7, dtype=jnp.int32)[None], prefix.shape)
        causal = jnp.tril(jnp.ones((7, 7), bool))[None]
        _, context, _ = model.context(params, model.embed(params, prefix), before, causal)
        x = model.embed(params, tails)[:, None]
        return model.branch(
            params, x, positions[:, None], context, mask[..., :7], mask[..., 7:]
        )[0][:, 0]  # fmt: skip

    hidden = jax.jit(packed)(tails, prefix)
    for b, length in enumerate(lengths):
        for n in range(texts):
            part = slice(n * size, (n + 1) * size)
            whole = np.concatenate([prefix[b, :length], tails[b, part]])
            padded = np.pad(whole, (0, 12 - len(whole)))
            wanted, _, _ = full_pass(jnp.asarray(padded[None], jnp.int32))
            np.testing.assert_allclose(
                hidden[b, part], wanted[0, length : length + size], atol=5e-6, rtol=0
            )
