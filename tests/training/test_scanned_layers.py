"""Training passes as a loop over stacked layers: the numbers of unrolled ones, kept small."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tiger_jax.models.interface import build_model
from tiger_jax.testing.tiny import tiny_config
from tiger_jax.training import block_layout

B, P, L = 2, 5, 4


@pytest.fixture(scope="module")
def models():
    config = tiny_config()
    return build_model(config), build_model(config, remat=True)


@pytest.fixture(scope="module")
def inputs(models):
    params = models[0].init_params(jax.random.key(0))
    keys = jax.random.split(jax.random.key(1), 2)
    tokens = [jax.random.randint(key, (B, n), 0, 50) for key, n in zip(keys, (P, L), strict=True)]
    return params, *tokens


def run(model, params, prefix, text):
    """A packed pass with taps, and a branch that continues it."""
    lengths = jnp.array([P, P - 1], jnp.int32)
    segments = jnp.array([[1, 1, 2, 2], [1, 1, 1, 0]], jnp.int32)
    positions = P + jnp.broadcast_to(jnp.arange(L, dtype=jnp.int32)[None], (B, L))
    before = jnp.broadcast_to(jnp.arange(P, dtype=jnp.int32)[None], (B, P))
    packed = block_layout.run_packed(
        model, params, model.embed(params, text), positions, segments,
        model.embed(params, prefix), lengths, before, (0, 1, model.config.text.num_layers),
    )  # fmt: skip
    anchors = jnp.array([[1, 3], [2, -1]], jnp.int32)
    visible = block_layout.visible_before(anchors, segments, lengths, P, inclusive=True)
    drafts = model.embed(params, text[:, :2])[:, None].repeat(2, axis=1)
    places = jnp.broadcast_to(jnp.arange(2, dtype=jnp.int32)[None, None] + 9, (B, 2, 2))
    own = jnp.tril(jnp.ones((2, 2), bool))[None, None]
    branch = model.branch(
        params, drafts, places, packed.context, visible[:, :, None], own
    )  # fmt: skip
    first = model.branch(
        params, drafts[:, :, :1], places[:, :, :1], packed.context, visible[:, :, None],
        own[:, :, :1, :1],
    )  # fmt: skip
    second = model.branch(
        params, drafts[:, :, 1:], places[:, :, 1:], packed.context, visible[:, :, None],
        own[:, :, 1:], first[1].pad(1), 1,
    )  # fmt: skip
    states = packed.hidden, packed.attention, packed.prefix_tapped, packed.tapped
    return (*states, branch[0], branch[2], second[0], second[2])


def test_a_scan_changes_no_number(models, inputs):
    plain, scanned = (jax.jit(run, static_argnums=0)(model, *inputs) for model in models)
    for expected, got in zip(plain, scanned, strict=True):
        assert expected.shape == got.shape
        np.testing.assert_allclose(got, expected, atol=2e-6)
    assert plain[2].shape[-1] == 3 * models[0].config.text.hidden_size


def test_a_branch_token_by_token_is_the_branch(models, inputs):
    """Rows kept of a scan are stacked; the second token finds the first one in them."""
    whole, stepped = jax.jit(run, static_argnums=0)(models[1], *inputs)[4::2]
    np.testing.assert_allclose(stepped[:, :, 0], whole[:, :, 1], atol=2e-6)


def test_gradients_agree(models, inputs):
    def loss(model, params, *tokens):
        return sum((x**2).mean() for x in run(model, params, *tokens))

    plain, scanned = (jax.jit(jax.grad(loss, 1), static_argnums=0)(m, *inputs) for m in models)
    for path, expected in jax.tree_util.tree_leaves_with_path(plain):
        got = scanned
        for entry in path:
            got = got[entry.key]
        np.testing.assert_allclose(got, expected, atol=2e-6, err_msg=str(path))


def test_a_scan_keeps_no_activations(models, inputs):
    """What the backward pass holds grows by what goes from layer to layer alone."""

    def residuals(remat, layers):
        model = build_model(tiny_config(layers=layers), remat=remat)
        params = model.abstract_params()
        x = jax.ShapeDtypeStruct((1, 64, model.config.text.hidden_size), jnp.float32)

        def loss(params, x):
            mask = jnp.tril(jnp.ones((64, 64), bool))[None]
            places = jnp.arange(64, dtype=jnp.int32)[None]
            return model.context(params, x, places, mask)[0].sum()

        compiled = jax.jit(jax.grad(loss)).lower(params, x).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    grown = [residuals(remat, 6) - residuals(remat, 2) for remat in (True, False)]
    assert grown[0] < 0.6 * grown[1]


def test_decoding_never_scans(models):
    assert not models[1].unrolled().module.remat
    assert models[1].unrolled() == models[0]
