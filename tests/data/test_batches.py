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
from tiger_jax.data.videos import Video
from tiger_jax.errors import UserError
from tiger_jax.models.frames import Frames, join_tiles

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


def test_tiles_are_joined_and_filled_up():
    """Pictures of LLaVA have one size, so only their number grows."""
    parts = [np.full((n, 2, 3, 3), n, np.float32) for n in (1, 0, 2)]
    joined = join_tiles(parts, 5)
    assert joined.shape == (5, 2, 3, 3)
    assert joined.dtype == np.float32
    assert joined[:, 0, 0, 0].tolist() == [1, 2, 2, 0, 0]


def frame(n: int, padded: int, value: float) -> Frames:
    """n patches of 2 numbers in `padded` rows."""
    inside = (np.arange(padded) < n)[None, :, None]
    return Frames(
        patches=np.where(inside, np.full(2, value), 0).astype(np.float32),
        counts=np.array([n], np.int32),
        places=np.where(inside, np.full(2, value), 0).astype(np.int32),
        taps=np.where(inside, np.full(4, value), 0).astype(np.int32),
        weights=np.where(inside, np.full(4, value), 0).astype(np.float32),
    )


def test_frames_are_padded_to_the_largest():
    joined = join_tiles([frame(4, 4, 1), frame(12, 16, 2), frame(8, 8, 3)], 5)
    assert len(joined) == 5
    assert joined.counts.tolist() == [4, 12, 8, 0, 0]
    for name, value in vars(joined).items():
        if name == "counts":
            continue
        assert value.shape[:2] == (5, 16)
        first = value[..., 0]
        for row, (count, number) in enumerate([(4, 1), (12, 2), (8, 3), (0, 0), (0, 0)]):
            assert first[row].tolist() == [number] * count + [0] * (16 - count), name
    assert joined.patches.dtype == joined.weights.dtype == np.float32
    assert joined.counts.dtype == joined.places.dtype == joined.taps.dtype == np.int32
    middle = joined[1:3]
    assert (len(middle), middle.counts.tolist()) == (2, [12, 8])


def qwen_prompt(processor, question: str, images=(), videos=()) -> PromptInputs:
    text = build_prompt(processor, question, len(images), len(videos))
    return make_prompt(processor, processor.config, text, images, videos=videos)


@pytest.fixture(scope="module")
def pictures():
    """A picture of 8 x 8 tokens, one of 8 x 16, and a video of 2 frames of 4 x 8."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.integers(0, 256, (*shape, 3), dtype=np.uint8)  # noqa: E731
    video = Video(draw(4, 56, 112), (0.0, 0.5, 1.0, 1.5))
    return draw(112, 112), draw(112, 224), video


def test_images_and_videos_of_one_prompt(qwen_processor, pictures):
    """Frames are numbered in the order of the text, and each visual row finds its own frame, also
    where smaller ones share a tile."""
    small, large, video = pictures
    question = "<image> then <video> then <image>?"
    prompt = qwen_prompt(qwen_processor, question, [small, large], [video])
    assert prompt.tiles.counts.tolist() == [256 + 128 + 128, 512]
    assert prompt.tile_rows == 512 // 4  # a tile's rows in the table are those of the largest
    config, visual = qwen_processor.config, prompt.image_ids >= 0
    assert np.bincount(prompt.image_ids[visual]).tolist() == [64, 32, 32, 128]
    for i, (part, begin) in enumerate([(small, 0), (video, 64), (video, 96), (large, 128)]):
        rows = prompt.image_rows[prompt.image_ids == i]
        assert rows.tolist() == list(range(begin, begin + len(rows)))
        kind = config.video_token_id if part is video else config.image_token_id
        assert (prompt.tokens[prompt.image_ids == i] == kind).all()
    wholes = {"small": (0, 0, small), "video": (0, 256, video), "large": (1, 0, large)}
    for tile, begin, picture in wholes.values():
        own = qwen_processor.visual(picture)
        patches = np.concatenate([own.tiles.patches[f, :n] for f, n in enumerate(own.tiles.counts)])
        found = prompt.tiles.patches[tile, begin : begin + len(patches)]
        np.testing.assert_array_equal(found, patches)
    np.testing.assert_array_equal(
        prompt.places[prompt.image_ids == 3], qwen_processor.visual(large).places
    )
    assert prompt.tiles.places[0, [0, 256, 384]].tolist() == [[0, 0]] * 3
    assert (prompt.image_rows[~visual] == TEXT).all()
    # <|vision_start|> is the fourth id; the first picture spans 8, and text goes on at 4 + 8
    start = int(np.flatnonzero(visual)[0])
    assert prompt.positions[:start].tolist() == [[n] * 3 for n in range(start)]
    assert prompt.positions[start].tolist() == [start] * 3
    assert prompt.positions[start + 63].tolist() == [start, start + 7, start + 7]
    assert prompt.positions[start + 64].tolist() == [start + 8] * 3
    text = (~visual).sum()
    assert prompt.next_position == text + 8 + 8 + 8 + 16


def test_batch_of_qwen_prompts(qwen_processor, pictures):
    """Row by row and patch by patch what each prompt has alone."""
    small, large, video = pictures
    config = qwen_processor.config
    prompts = [
        qwen_prompt(qwen_processor, "What?", [small]),
        qwen_prompt(qwen_processor, "Hi?"),
        qwen_prompt(qwen_processor, "What?", [large], [video]),
    ]
    batch = batch_prompts(prompts, config, tile_bucket=6)
    assert batch.tiles.counts.tolist() == [256, 512, 256, 0, 0, 0]
    assert batch.positions.shape == (*batch.tokens.shape, 3)
    per_tile, first = batch.tiles.patches.shape[1] // 4, 0
    for b, single in enumerate(prompts):
        n = len(single.tokens)
        assert np.array_equal(batch.positions[b, :n], single.positions)
        assert (batch.positions[b, n:] == 0).all()
        visual = single.image_rows >= 0
        assert np.array_equal(batch.image_rows[b, :n] >= 0, visual)
        own = np.divmod(single.image_rows[visual], max(single.tile_rows, 1))
        shared = np.divmod(batch.image_rows[b, :n][visual], per_tile)
        assert np.array_equal(own[0] + first, shared[0])
        assert np.array_equal(own[1], shared[1])
        size = single.tiles.patches.shape[1]
        np.testing.assert_array_equal(
            batch.tiles.patches[first : first + len(single.tiles), :size], single.tiles.patches
        )
        first += len(single.tiles)
    alone = batch_prompts(prompts[1:2], config)
    assert len(alone.tiles) == 0
    assert (alone.image_rows == TEXT).all()


def test_more_frames_than_a_batch_holds(qwen_processor):
    film = Video(np.zeros((2 * 769, 32, 32, 3), np.uint8), tuple(map(float, range(2 * 769))))
    message = r"needs 769 tiles .* the limit is 768: give fewer, .* \(a lower fps or max_frames\)"
    with pytest.raises(UserError, match=message):
        make_prompt(qwen_processor, qwen_processor.config,
                    build_prompt(qwen_processor, "Hi?", 0, 1), [], 10_000, [film])  # fmt: skip


def test_pictures_and_placeholders_of_each_kind_are_counted(qwen_processor, pictures):
    """A video does not stand in for an image, whatever the sum."""
    small, _, video = pictures
    both = "<image> and <video>?"
    own = "<image> and <|vision_start|><|video_pad|><|vision_end|>?"
    for text, images, videos, message in [
        (both, [small, small], [], "1 placeholders and 2 images"),
        (own, [small], [], "1 placeholders and 0 videos"),  # without a video "<video>" is text
        (both, [], [video, video], "1 placeholders and 0 images"),
        (both, [small], [video, video], "1 placeholders and 2 videos"),
    ]:
        with pytest.raises(UserError, match=message):
            qwen_prompt(qwen_processor, text, images, videos)
