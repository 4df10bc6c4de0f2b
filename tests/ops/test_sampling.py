"""The law of the next token against transformers' warpers, and what is drawn from it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers.generation.logits_process import (
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from tiger_jax.ops import sampling
from tiger_jax.ops.sampling import Purpose, Sampling, SamplingMode, mask_undrawable

next_token_law = jax.jit(sampling.next_token_law, static_argnums=2)
draw = jax.jit(sampling.draw, static_argnums=2)
draw_keys = jax.jit(sampling.draw_keys, static_argnums=2)
VOCABULARY = 50
SETTINGS = [  # temperature, top_k, top_p
    (1.0, 0, 1.0), (0.3, 0, 1.0), (2.5, 0, 1.0),
    (1.0, 1, 1.0), (0.7, 5, 1.0), (1.0, VOCABULARY + 7, 1.0),
    (1.0, 0, 0.9), (1.5, 0, 0.3), (1.0, 0, 1e-6),
    (0.7, 10, 0.8), (1.3, 3, 0.99),
]  # fmt: skip


def options(rows: list[tuple[float, int, float]], seeds: list[int] | None = None) -> Sampling:
    temperature, top_k, top_p = zip(*rows, strict=True)
    return Sampling(
        temperature=jnp.asarray(temperature, jnp.float32),
        top_k=jnp.asarray(top_k, jnp.int32),
        top_p=jnp.asarray(top_p, jnp.float32),
        seeds=jnp.asarray(seeds or range(len(rows)), jnp.uint32),
    )


def random_logits(*shape: int, seed: int = 0) -> np.ndarray:
    """No two alike: ties are broken in other ways by each library."""
    rng = np.random.default_rng(seed)
    return (2 * rng.standard_normal((*shape, VOCABULARY))).astype(np.float32)


def transformers_law(logits: np.ndarray, temperature: float, top_k: int, top_p: float):
    scores = torch.tensor(logits)
    warpers = [TemperatureLogitsWarper(temperature)]
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        warpers.append(TopPLogitsWarper(top_p))
    for warper in warpers:
        scores = warper(None, scores)
    return scores.softmax(dim=-1).numpy()


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_law_equals_transformers(setting):
    logits = random_logits(4, 3)
    got = next_token_law(jnp.asarray(logits), options([setting] * 4), SamplingMode.FILTERED)
    wanted = transformers_law(logits.reshape(12, -1), *setting).reshape(got.shape)
    assert np.array_equal(np.asarray(got) > 0, wanted > 0)
    np.testing.assert_allclose(got, wanted, atol=1e-6, rtol=1e-5)


def test_each_row_has_its_own_setting():
    logits = random_logits(len(SETTINGS) + 1, 2, seed=1)
    rows = options([*SETTINGS, (0.0, 3, 0.5)])
    got = next_token_law(jnp.asarray(logits), rows, SamplingMode.FILTERED)
    for row, setting in enumerate(SETTINGS):
        np.testing.assert_allclose(got[row], transformers_law(logits[row], *setting), atol=1e-6)
    assert np.array_equal(got[-1].argmax(-1), logits[-1].argmax(-1))
    assert np.array_equal(np.sort(got[-1], axis=-1)[:, -2:], [[0, 1]] * 2)


@pytest.mark.parametrize("mode", SamplingMode)
def test_temperature_zero_is_one_hot(mode):
    logits = random_logits(2, 3)
    law = next_token_law(jnp.asarray(logits), options([(0.0, 0, 1.0)] * 2), mode)
    assert np.array_equal(law, np.eye(VOCABULARY, dtype=np.float32)[logits.argmax(-1)])
    keys = draw_keys(jnp.arange(2, dtype=jnp.uint32), jnp.zeros((2, 3), jnp.int32), Purpose.EMIT)
    assert np.array_equal(draw(law, keys, mode), logits.argmax(-1))


def test_modes_agree_where_they_overlap():
    """top_p 1 keeps all, also tokens too unlikely for a float32 sum: a request's law must not
    depend on whether its neighbours filter."""
    logits = jnp.asarray(random_logits(4, 20))
    rows = options([(0.0, 0, 1.0), (0.7, 0, 1.0), (1.4, 0, 1.0), (0.1, 0, 1.0)])
    plain = next_token_law(logits, rows, SamplingMode.TEMPERATURE)
    filtered = next_token_law(logits, rows, SamplingMode.FILTERED)
    np.testing.assert_allclose(filtered, plain, rtol=1e-4, atol=0)


def test_ties_with_the_last_kept_token_stay():
    logits = jnp.asarray([[[3.0, 1.0, 1.0, 1.0, 0.0]]])
    law = next_token_law(logits, options([(1.0, 2, 1.0)]), SamplingMode.FILTERED)
    assert np.array_equal(law[0, 0] > 0, [True, True, True, True, False])


def test_the_most_likely_token_survives_top_p_zero():
    logits = random_logits(1, 4)
    law = next_token_law(jnp.asarray(logits), options([(1.0, 0, 0.0)]), SamplingMode.FILTERED)
    assert np.array_equal(law, np.eye(VOCABULARY, dtype=np.float32)[logits.argmax(-1)])


@pytest.mark.parametrize("temperature", [0.0, 0.05, 1.0, 50.0])
def test_undrawable_ids_are_never_drawn(temperature):
    """Also at a temperature that makes everything else alike, and where such an id leads."""
    drawable = np.arange(VOCABULARY) % 3 == 0
    logits = random_logits(2, 500)
    logits[..., 1] = 40.0
    masked = mask_undrawable(jnp.asarray(logits), jnp.asarray(drawable))
    law = next_token_law(masked, options([(temperature, 0, 0.999)] * 2), SamplingMode.FILTERED)
    assert not law[..., ~drawable].any()
    np.testing.assert_allclose(law.sum(-1), 1, atol=1e-5)
    positions = jnp.broadcast_to(jnp.arange(500)[None], (2, 500))
    keys = draw_keys(jnp.asarray([3, 4], jnp.uint32), positions, Purpose.EMIT)
    assert drawable[np.asarray(draw(law, keys, SamplingMode.FILTERED))].all()


def test_draws_follow_the_law():
    logits = jnp.broadcast_to(jnp.asarray(random_logits(1, 1)), (1, 20000, VOCABULARY))
    law = next_token_law(logits, options([(1.0, 8, 1.0)]), SamplingMode.FILTERED)
    keys = draw_keys(jnp.asarray([11], jnp.uint32), jnp.arange(20000)[None], Purpose.EMIT)
    drawn = np.bincount(np.asarray(draw(law, keys, SamplingMode.FILTERED))[0], minlength=VOCABULARY)
    expected = np.asarray(law[0, 0]) * 20000
    possible = expected > 0
    assert drawn[~possible].sum() == 0
    chi_squared = ((drawn - expected)[possible] ** 2 / expected[possible]).sum()
    assert chi_squared < 24.3  # 7 degrees of freedom, one in a thousand


def test_keys_differ_by_seed_position_and_purpose_only():
    positions = jnp.asarray([[4, 5], [4, 9]])

    def bits(seeds, purpose) -> np.ndarray:
        keys = draw_keys(jnp.asarray(seeds, jnp.uint32), positions, purpose)
        return np.asarray(jax.random.key_data(keys))

    emit = bits([1, 1], Purpose.EMIT)
    assert np.array_equal(emit[0, 0], emit[1, 0])  # the row in the batch does not count
    assert not np.array_equal(emit[0, 1], emit[1, 1])
    assert not np.array_equal(emit[0], bits([2, 1], Purpose.EMIT)[0])
    all_purposes = [bits([1, 1], purpose)[0, 0].tobytes() for purpose in Purpose]
    assert len(set(all_purposes)) == len(Purpose)
