"""Which visual row stands where, alone and in a padded batch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiger_jax.data.batches import (
    SEQ_BUCKETS,
    TEXT,
    TILE_BUCKETS,
    PromptInputs,
    batch_prompts,
    make_prompt,
    round_tiles,
    round_up,
    round_width,
)
from tiger_jax.data.prompts import build_prompt
from tiger_jax.errors import UserError

ROWS = 64  # visual rows of one tile of the tiny pair


def prompt(processor, *sizes: tuple[int, int]) -> PromptInputs:
    images = [np.zeros((*size, 3), np.uint8) for size in sizes]
    return make_prompt(
        processor, processor.config, build_prompt(processor, "Hi?", len(images)), images
    )


def table_of(tiles: int) -> np.ndarray:
    """A stand-in for the projected rows: row number as value, newline last."""
    return np.arange(tiles * ROWS + 1)


@pytest.mark.parametrize(
    ("tokens", "width"), [(1, 16), (16, 16), (17, 32), (250, 256), (257, 384), (2900, 3072)]
)
def test_widths_in_training(tokens, width):
    assert round_width(tokens) == width


@pytest.mark.parametrize(
    ("tiles", "rows", "rounded"), [(0, 3, 0), (5, 3, 6), (7, 1, 8), (13, 2, 16), (300, 24, 384)]
)
def test_tiles_in_training_are_a_usual_number_for_each_row(tiles, rows, rounded):
    assert round_tiles(tiles, rows) == rounded


def test_one_picture(processor):
    tokens, rows, tiles, *_ = prompt(processor, (112, 112))
    assert tiles.shape == (2, 112, 112, 3)
    assert len(tokens) == len(rows)
    assert np.array_equal(rows >= 0, tokens == processor.config.image_token_id)
    picture = rows[rows >= 0]
    assert len(picture) == 136
    assert (picture == 2 * ROWS).sum() == 8  # one newline a line
    assert tokens[0] == processor.config.bos_token_id


def test_second_picture_points_at_its_own_tiles(processor):
    _, rows, tiles, *_ = prompt(processor, (112, 112), (112, 224))
    assert len(tiles) == 5
    picture = rows[rows >= 0]
    assert picture[:ROWS].tolist() == list(range(ROWS))
    assert picture[136 : 136 + ROWS].tolist() == list(range(2 * ROWS, 3 * ROWS))
    assert (picture == 5 * ROWS).sum() == 16


def test_text_only(processor):
    single = prompt(processor)
    assert (single.image_rows == TEXT).all()
    batch = batch_prompts([single], processor.config)
    assert batch.tiles.shape == (0, 112, 112, 3)
    assert (batch.image_rows == TEXT).all()


def test_batch_keeps_every_prompt(processor):
    """The batch's table gives what each prompt's own table gives, moved to its tiles."""
    sizes = [[(112, 112)], [], [(300, 90), (112, 224)], [(224, 224)]]
    prompts = [prompt(processor, *size) for size in sizes]
    batch = batch_prompts(prompts, processor.config)
    assert batch.tokens.shape[1] in SEQ_BUCKETS
    assert len(batch.tiles) in TILE_BUCKETS
    newline, first = len(batch.tiles) * ROWS, 0
    for b, single in enumerate(prompts):
        length, own_newline = batch.lengths[b], len(single.tiles) * ROWS
        assert length == len(single.tokens)
        assert np.array_equal(batch.tokens[b, :length], single.tokens)
        assert (batch.tokens[b, length:] == processor.config.pad_token_id).all()
        assert (batch.image_rows[b, length:] == TEXT).all()
        for own, shared in zip(single.image_rows, batch.image_rows[b, :length], strict=True):
            expected = (
                TEXT if own == TEXT else newline if own == own_newline else own + first * ROWS
            )
            assert shared == expected
        first += len(single.tiles)
    assert not batch.tiles[first:].any()


def test_buckets_do_not_change_a_prompt(processor):
    single = prompt(processor, (112, 112))
    small = batch_prompts([single], processor.config)
    large = batch_prompts([single], processor.config, seq_bucket=512, tile_bucket=8)
    assert large.tokens.shape == (1, 512)
    assert large.tiles.shape[0] == 8
    n = len(single.tokens)
    assert np.array_equal(small.tokens[:, :n], large.tokens[:, :n])
    newline = small.image_rows == len(small.tiles) * ROWS
    assert (large.image_rows[:, : newline.shape[1]][newline] == 8 * ROWS).all()
    assert table_of(8)[large.image_rows.max()] == table_of(8)[-1]


def test_too_small_bucket_names_the_numbers(processor):
    single = prompt(processor, (112, 112))
    with pytest.raises(UserError, match="at most 64 tokens"):
        batch_prompts([single], processor.config, seq_bucket=64)
    with pytest.raises(UserError, match="at most 1 tiles"):
        batch_prompts([single], processor.config, tile_bucket=1)


@settings(deadline=None)
@given(st.integers(0, SEQ_BUCKETS[-1]))
def test_round_up(n):
    bucket = round_up(n, SEQ_BUCKETS)
    assert bucket >= n
    assert not any(n <= smaller < bucket for smaller in SEQ_BUCKETS)


def test_round_up_beyond_the_last():
    with pytest.raises(UserError, match=f"at most {TILE_BUCKETS[-1]}"):
        round_up(TILE_BUCKETS[-1] + 1, TILE_BUCKETS)
