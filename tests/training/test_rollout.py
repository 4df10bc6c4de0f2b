"""Sampled blocks: the logits they claim, the law they follow, the ids they leave out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from draft_cases import drafter_parts, make_case, make_items

from tiger_jax.ops.sampling import NEVER, mask_undrawable
from tiger_jax.routing.router import RouterConfig
from tiger_jax.training import rollout
from tiger_jax.training.align_step import sampled_logits
from tiger_jax.training.draft_blocks import BlockDrafter

VOCAB, K, G = 12, 600, 3
ROUTER = RouterConfig("tiger", routed_tokens=3)
SHAPES = (((0,), (4, 3), (3, 4)), ((), (3,), (2,)))
TEMPERATURE = 0.7


@pytest.fixture(scope="module")
def setting():
    """(drafter, params, batch, drawable) on a vocabulary of 12, two ids of it never drawn."""
    model, params = drafter_parts(vocab=VOCAB, hidden=16, layers=1)
    items = make_items(model.config, SHAPES, g=G)
    batch = make_case(model.config, ROUTER, items, g=G).batch
    return BlockDrafter(model, ROUTER), params, batch, jnp.arange(VOCAB) < VOCAB - 2


def sample(setting, samples, temperature, seed=0):
    drafter, params, batch, drawable = setting
    keys = jax.random.split(jax.random.key(seed))
    return rollout.sample_blocks(drafter, samples, temperature, params, batch, drawable, *keys)


@pytest.fixture(scope="module")
def drawn(setting):
    return sample(setting, K, TEMPERATURE)


def test_claimed_logits_are_those_of_the_training_pass(setting, drawn):
    drafter, params, batch, drawable = setting
    tokens, logits = drawn

    @jax.jit
    def again(params, batch, tokens):
        opened = drafter.open(
            params, batch.stream, batch.tiles, batch.text, batch.anchors, jax.random.key(0)
        )
        return mask_undrawable(sampled_logits(drafter, params, opened, tokens), drawable)

    want = again(params, batch, tokens[:, :, :4])
    assert tokens.shape == (*batch.anchors.shape, K, G)
    np.testing.assert_allclose(logits[:, :, :4], want, atol=1e-5)


def test_undrawable_ids_are_never_drawn(drawn):
    tokens, logits = drawn
    assert int(tokens.max()) < VOCAB - 2
    assert (np.asarray(logits)[..., VOCAB - 2 :] == NEVER).all()
    assert len(np.unique(tokens)) == VOCAB - 2


def test_draws_follow_the_law(setting, drawn):
    """Pearson's chi square at each prefix and place. Nine degrees of freedom: a right sampler
    exceeds 35 once in 17000 times; one at temperature 1 does so at nearly every place."""
    tokens, logits = (np.asarray(part) for part in drawn)
    laws = np.exp(logits / TEMPERATURE - np.max(logits / TEMPERATURE, axis=-1, keepdims=True))
    laws = laws / laws.sum(axis=-1, keepdims=True)
    live = np.asarray(setting[2].anchors) >= 0
    for place in range(G):
        # given the tokens before it each draw has its own law: counts are compared with their sum
        expected = laws[live][:, :, place].sum(axis=1)[:, : VOCAB - 2]
        counts = (tokens[live][:, :, place, None] == np.arange(VOCAB - 2)).sum(axis=1)
        statistic = (np.square(counts - expected) / np.maximum(expected, 1e-9)).sum(axis=1)
        assert (statistic < 35).all(), (place, statistic)


def test_temperature_zero_takes_the_argmax(setting):
    tokens, logits = sample(setting, 2, 0.0)
    np.testing.assert_array_equal(tokens, jnp.argmax(logits, axis=-1))
    np.testing.assert_array_equal(tokens[:, :, 0], tokens[:, :, 1])
