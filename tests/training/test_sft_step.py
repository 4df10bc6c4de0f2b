"""The supervised loss against prompts alone, against numbers by hand, and against leaks."""

import jax
import jax.numpy as jnp
import numpy as np
from sft_batches import ROWS, TILES, raw_batch, sft_batch

from tiger_jax.training import sft_step

LENGTHS = [[5, 9, 4], [7, 3, 6]]


def alone(model, params, raw, picture: int, question: int) -> float:
    """Summed loss of one prompt with its answer, run through prefill without any packing."""
    size, length = raw["prefix_lengths"][picture], raw["branch_lengths"][picture, question]
    rows = raw["prefix_image_rows"][picture, :size]
    tokens = np.concatenate(
        [raw["prefix_tokens"][picture, :size], raw["branch_tokens"][picture, question, :length]]
    )
    rows = np.concatenate([rows, np.full(length, -1)]).astype(np.int32)
    table = model.encode_images(params, jnp.asarray(raw["tiles"]))
    x = model.embed(params, jnp.asarray(tokens)[None], jnp.asarray(rows)[None], table)
    hidden, *_ = model.prefill(params, x, model.init_cache(1, x.shape[1]))
    scores = jax.nn.log_softmax(model.logits(params, hidden)[0])
    counted = np.flatnonzero(raw["loss_mask"][picture, question, :length]) + size
    return -sum(float(scores[place - 1, tokens[place]]) for place in counted)


def test_packed_loss_is_the_sum_of_the_prompts_alone(tiny):
    model, params = tiny
    raw = raw_batch(0, LENGTHS)
    sums = sft_step.make_sft_loss(model)(params, sft_batch(0, LENGTHS), jax.random.key(0))
    expected = sum(alone(model, params, raw, b, n) for b in range(2) for n in range(3))
    np.testing.assert_allclose(float(sums.loss), expected, rtol=2e-5)
    assert float(sums.weight) == sum(length - 2 for row in LENGTHS for length in row)


def test_questions_do_not_see_each_other(tiny):
    model, params = tiny
    batch = sft_batch(0, LENGTHS)
    other = batch.replace(tokens=jnp.where(batch.segments == 2, 50, batch.tokens))
    before, after = (sft_step.segment_hidden(model, params, b) for b in (batch, other))
    same = np.isclose(before, after, atol=1e-6).all(axis=-1)
    segments = np.asarray(batch.segments)
    np.testing.assert_array_equal(same[segments > 0], segments[segments > 0] != 2)


def test_padding_of_the_prefix_is_not_seen(tiny):
    model, params = tiny
    batch = sft_batch(3, LENGTHS)
    assert (batch.prefix_lengths < batch.prefix_tokens.shape[1]).any()
    behind = jnp.arange(batch.prefix_tokens.shape[1])[None] >= batch.prefix_lengths[:, None]
    other = batch.replace(prefix_tokens=jnp.where(behind, 50, batch.prefix_tokens))
    real = batch.segments > 0
    before, after = (sft_step.segment_hidden(model, params, b)[real] for b in (batch, other))
    np.testing.assert_allclose(before, after, atol=1e-6)


def test_each_picture_sees_its_own_tiles(tiny):
    model, params = tiny
    batch = sft_batch(0, LENGTHS)
    tiles = batch.tiles.at[TILES:].add(1.0)  # the tiles of picture 1
    before = sft_step.segment_hidden(model, params, batch)
    after = sft_step.segment_hidden(model, params, batch.replace(tiles=tiles))
    np.testing.assert_allclose(before[0], after[0], atol=1e-6)
    assert float(jnp.abs(before[1] - after[1]).max()) > 1e-3
    assert batch.prefix_image_rows.max() == len(tiles) * ROWS  # the newline row is used


def test_answer_sums_by_hand():
    """Vocabulary 2, scores (0, ln 3): p = (1/4, 3/4), so the losses are ln 4 and ln 4/3."""
    logits = jnp.tile(jnp.log(jnp.array([1.0, 3.0])), (1, 3, 1))
    sums = sft_step.answer_sums(logits, jnp.array([[0, 1, 0]]), jnp.array([[1.0, 0.5, 0.0]]))
    np.testing.assert_allclose(float(sums.loss), np.log(4) + 0.5 * np.log(4 / 3), rtol=1e-6)
    assert float(sums.weight) == 1.5
    assert [float(x) for x in sums.metrics["token_accuracy"]] == [1.0, 2.0]
    nats, count = map(float, sums.metrics["nats_per_token"])
    np.testing.assert_allclose([nats, count], [np.log(4) + np.log(4 / 3), 2.0], rtol=1e-6)


def test_balance_weighs_short_answers_up():
    """Questions of 2 tokens, answers of 1 and 4: weights 1 and 1/2 at balance 1/2."""
    packed = sft_step.pack_batch(**raw_batch(0, [[3, 6]]), balance=0.5)
    np.testing.assert_allclose(packed.weights[0, :9], [0, 0, 1, 0, 0, 0.5, 0.5, 0.5, 0.5])
    assert (packed.weights[0, 9:] == 0).all()


def test_a_question_is_not_asked_to_predict_the_next_one(tiny):
    """Token 0 of a segment must never be a target, even if a weight says so."""
    model, params = tiny
    batch = sft_batch(0, LENGTHS)
    loss = sft_step.make_sft_loss(model)
    everything = batch.replace(weights=(batch.segments > 0).astype(jnp.float32))
    tokens = sum(length for row in LENGTHS for length in row)
    assert float(loss(params, everything, jax.random.key(0)).weight) == tokens - 6
