"""Tiles and token rows of pictures of random sizes, as transformers has them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from pairs import picture, prompt_text
from stages import GATE, reference_inputs, relative_l2

from tiger_jax.data.batches import make_prompt
from tiger_jax.models.image_geometry import NEWLINE, count_tiles, image_token_rows

TEXT = prompt_text(1)


def random_sizes(count: int, largest: int, seed: int = 0) -> list[tuple[int, int]]:
    """(height, width), as likely small as large."""
    rng = np.random.default_rng(seed)
    sizes = np.exp(rng.uniform(0, np.log(largest), size=(count, 2))).astype(int)
    return [(int(h), int(w)) for h, w in np.maximum(sizes, 1)]


def test_tokens_and_tiles_of_200_random_sizes(pair):
    """The whole processor: sizes, number of tokens, number of tiles, and every pixel."""
    for height, width in random_sizes(200, 400):
        image = picture(height, width)
        inputs = reference_inputs(pair, TEXT, [image])
        prompt = make_prompt(pair.processor, pair.config, TEXT, [image])
        assert np.array_equal(prompt.tokens, inputs["input_ids"][0]), (height, width)
        wanted = inputs["pixel_values"][0].permute(0, 2, 3, 1).numpy()
        assert prompt.tiles.shape == wanted.shape, (height, width)
        assert np.abs(prompt.tiles - wanted).max() <= 1e-6, (height, width)


def test_packing_of_200_random_sizes(pair):
    """transformers' own packing of rows that carry their tile and number."""
    config, core = pair.config, pair.reference.model
    newline = torch.full((2,), float(NEWLINE))
    for height, width in random_sizes(200, 4000, seed=1):
        tiles = count_tiles(height, width, config)
        numbered = torch.stack(
            torch.meshgrid(torch.arange(tiles), torch.arange(16), indexing="ij"), dim=-1
        ).float()
        (packed,), counts = core.pack_image_features(
            [numbered], torch.tensor([[height, width]]), "default", newline
        )
        rows = image_token_rows(height, width, config)
        assert len(rows) == int(counts[0]), (height, width)
        got = np.stack([rows // 16, rows % 16], axis=-1)
        got[rows == NEWLINE] = NEWLINE
        assert np.array_equal(got, packed.int().numpy()), (height, width)


@pytest.fixture(scope="module")
def encode(pair):
    return jax.jit(pair.model.encode_images)


@torch.no_grad()
@pytest.mark.parametrize("size", [(400, 900), (900, 400), *random_sizes(8, 600, seed=2)])
def test_tower_and_packing_of_distinguishable_tiles(pair, size, encode):
    """B14, B16, B22: the rows that reach the decoder, tower and projector included."""
    image = picture(*size)
    inputs = reference_inputs(pair, TEXT, [image])
    wanted = pair.reference.model.get_image_features(
        inputs["pixel_values"], inputs["image_sizes"]
    ).pooler_output[0]
    prompt = make_prompt(pair.processor, pair.config, TEXT, [image])
    tiles = np.zeros((6, *prompt.tiles.shape[1:]), np.float32)  # one shape, one compilation
    tiles[: len(prompt.tiles)] = prompt.tiles
    table = np.asarray(encode(pair.params, jnp.asarray(tiles)))
    own = prompt.image_rows[prompt.image_rows >= 0]
    packed = table[np.where(own == len(prompt.tiles) * 16, len(table) - 1, own)]
    assert relative_l2(packed, wanted.numpy()) <= GATE


def test_height_and_width_are_told_apart(pair):
    """B14: an exchange would give the other picture's number of tokens."""
    wide, tall = (image_token_rows(h, w, pair.config) for h, w in [(400, 900), (900, 400)])
    assert len(wide) != len(tall)
