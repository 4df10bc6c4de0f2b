"""Pooled rows against torch's avg_pool2d over the rows that transformers' LLaVA projects."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from pairs import picture
from stages import relative_l2

from tiger_jax.data.batches import batch_prompts, make_prompt
from tiger_jax.data.videos import Video
from tiger_jax.models import llava_next

GATE = 1e-5
SIDE = 4
"""Rows of patches on one side of a tile."""


@pytest.fixture(scope="module")
def encode(pair):
    return jax.jit(pair.model.encode_images)


def film(count):
    pictures = [np.asarray(picture(60, 100, seed)) for seed in range(count)]
    return Video(np.stack(pictures), tuple(map(float, range(count))))


@torch.no_grad()
def reference_rows(pair, video, stride):
    """[f, k * k, D]: transformers' base tiles, its tower and its projector, then torch's pool."""
    base = pair.reference_processor.image_processor(
        list(video.pictures), input_data_format="channels_last", return_tensors="pt"
    )["pixel_values"][:, 0]
    core = pair.reference.model
    states = core.vision_tower(base, output_hidden_states=True).hidden_states
    rows = core.multi_modal_projector(states[pair.reference.config.vision_feature_layer][:, 1:])
    square = rows.transpose(1, 2).unflatten(2, (SIDE, SIDE))
    pooled = torch.nn.functional.avg_pool2d(
        square, stride, stride, ceil_mode=True, count_include_pad=False
    )
    return pooled.flatten(2).transpose(1, 2).numpy()


def shown_rows(pair, encode, prompt):
    """Rows of the prompt's visual tokens, from the table of its padded batch."""
    batch = batch_prompts([prompt], pair.config)
    table = np.asarray(encode(pair.params, jax.tree.map(jnp.asarray, batch.tiles)))
    rows = batch.image_rows[0]
    return table[rows[rows >= 0]]


@pytest.mark.parametrize(("budget", "stride"), [(112, 1), (28, 2), (27, 4)])
def test_rows_of_a_video(pair, encode, budget, stride):
    video = film(7)
    processor = pair.processor.with_budget(budget)
    text = "USER: word1 <video> word2 ASSISTANT:"
    prompt = make_prompt(processor, pair.config, text, videos=[video])
    wanted = reference_rows(pair, video, stride)
    got = shown_rows(pair, encode, prompt).reshape(wanted.shape)
    assert relative_l2(got, wanted) <= GATE
    np.testing.assert_allclose(got, wanted, atol=GATE)


def test_squares_that_do_not_divide_a_tile(pair, encode):
    """4 lines in squares of 3: the last ones are single lines, and no zero is averaged in."""
    video = film(3)
    prompt = make_prompt(pair.processor.with_budget(12), pair.config, "<video>", videos=[video])
    strides = np.full(3, 3, np.int32)
    prompt.tiles.strides[:] = strides
    wanted = reference_rows(pair, video, 3)
    np.testing.assert_allclose(shown_rows(pair, encode, prompt), wanted.reshape(12, -1), atol=GATE)


def test_parts_are_the_whole(pair, encode, monkeypatch):
    """More frames than the tower takes at once; the newline's row stays the last."""
    processor = pair.processor.with_budget(40)
    prompt = make_prompt(processor, pair.config, "<video>", videos=[film(10)])
    tiles = jax.tree.map(jnp.asarray, prompt.tiles)
    whole = encode(pair.params, tiles)
    assert len(whole) == 10 * SIDE**2 + 1
    monkeypatch.setattr(llava_next, "TILES_AT_ONCE", 4)
    parts = jax.jit(lambda *given: pair.model.encode_images(*given))  # 2 at once: 4 is no divisor
    np.testing.assert_allclose(parts(pair.params, tiles), whole, atol=1e-5)


@pytest.mark.parametrize("name", ["vision_features", "vision_saliency"])
def test_features_and_saliency_are_means_too(pair, name):
    """Of the tower's rows before the projector, and of where its class token looks."""
    prompt = make_prompt(pair.processor.with_budget(12), pair.config, "<video>", videos=[film(3)])
    tiles = jax.tree.map(jnp.asarray, prompt.tiles)
    run = jax.jit(getattr(pair.model, name))
    every = np.asarray(run(pair.params, tiles.pixels)).reshape(3, 2, 2, 2, 2, -1)
    pooled = np.asarray(run(pair.params, tiles)).reshape(3, SIDE, SIDE, -1)[:, :2, :2]
    np.testing.assert_allclose(pooled, every.mean(axis=(2, 4)), atol=1e-5)
