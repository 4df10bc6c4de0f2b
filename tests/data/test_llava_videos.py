"""Videos and many pictures of LLaVA as arrays: rows, places, tiles, and the prompts they stand in.

The tiny pair has tiles of 8 x 8 patches of 14 pixels and a budget of 1,536 tokens.
"""

import dataclasses

import numpy as np
import pytest
from PIL import Image

from tests.assets import TINY_LLAVA
from tests.data.test_processor import noise
from tiger_jax.data.batches import TEXT, batch_prompts, make_prompt
from tiger_jax.data.draft_examples import make_example
from tiger_jax.data.examples import DroppedExample, Example, PrepareExample
from tiger_jax.data.prompts import build_prompt
from tiger_jax.data.videos import Video, load_video
from tiger_jax.data.visual_stream import FIRST_POOLED, batch_streams, stream_inputs
from tiger_jax.errors import UserError
from tiger_jax.models import image_geometry as geometry
from tiger_jax.models.frames import PooledTiles, join_tiles

PATCHES = 64


def film(count, size=(112, 112)):
    """Frame k is grey k: told apart after any pooling."""
    greys = np.arange(count, dtype=np.uint8)[:, None, None, None]
    pictures = np.broadcast_to(greys, (count, *size, 3)).copy()
    return Video(pictures, tuple(k / 2 for k in range(count)))


def ask(processor, images=(), videos=(), question="Hi?", **settings):
    text = build_prompt(processor, question, len(images), len(videos))
    return make_prompt(processor, processor.config, text, images, videos=videos, **settings)


@pytest.mark.parametrize(
    ("frames", "stride", "side"), [(8, 1, 8), (24, 1, 8), (64, 2, 4), (1000, 8, 1)]
)
def test_frames_of_a_video(processor, frames, stride, side):
    """One placeholder; row by row of frame after frame, as many as the budget lets be."""
    prompt = ask(processor, videos=[film(frames)])
    assert prompt.tokens_per_frame == (side**2,) * frames
    shown = prompt.image_rows >= 0
    assert np.all(prompt.tokens[shown] == processor.config.image_token_id)
    assert np.diff(np.flatnonzero(shown)).max() == 1  # no text between the frames
    rows = prompt.image_rows[shown].reshape(frames, side, side)
    f, y, x = np.indices(rows.shape)
    np.testing.assert_array_equal(rows, f * PATCHES + y * 8 + x)
    np.testing.assert_array_equal(prompt.image_ids[shown], np.repeat(np.arange(frames), side**2))
    np.testing.assert_array_equal(prompt.positions, np.arange(len(prompt.tokens)))
    tiles, strides = prompt.tiles, np.full(frames, stride)
    if stride == 1:
        assert isinstance(tiles, np.ndarray)
    else:
        np.testing.assert_array_equal(tiles.strides, strides)
        tiles = tiles.pixels
    wanted = processor.normalise(film(frames).pictures[:, :1, :1])
    np.testing.assert_array_equal(tiles, np.broadcast_to(wanted, tiles.shape))


def test_places_are_the_centres_of_the_squares(processor):
    """8 patches in squares of 3: lines 0-2, 3-5 and 6-7."""
    places = geometry.pooled_token_places(3, processor.config)
    centres = np.array([1.5, 4.5, 7.0]) / 8
    np.testing.assert_allclose(places[:, 0], np.repeat(centres, 3))
    np.testing.assert_allclose(places[:, 1], np.tile(centres, 3))
    rows = geometry.pooled_token_rows(3, processor.config)
    assert rows.tolist() == [0, 1, 2, 8, 9, 10, 16, 17, 18]
    full = dataclasses.replace(processor.config, select_strategy="full")
    with pytest.raises(UserError, match="vision_feature_select_strategy: expected 'default'"):
        geometry.pooled_token_rows(1, full)


@pytest.mark.parametrize("size", [(112, 112), (50, 60), (131, 97), (3, 200)])
def test_a_frame_is_the_base_tile_of_anyres(processor, size):
    """Squashed as transformers squashes it, once: what is fitted while reading stays as it is."""
    picture = np.asarray(noise(*size))
    tile = processor.fit(picture, 1)
    np.testing.assert_allclose(processor.normalise(tile), processor.tiles(picture)[0][0], atol=1e-6)
    np.testing.assert_array_equal(processor.fit(tile, 1), tile)


def test_many_pictures(processor):
    """Of 128 rows each: twelve have grids (with a newline a line), 24 their base tile of 64 rows,
    25 are pooled; the rows of each stand in their own place."""
    pictures = [np.full((112, 112, 3), k, np.uint8) for k in range(25)]
    sizes = {}
    for count in (1, 12, 13, 20, 24, 25):
        prompt = ask(processor, pictures[:count])
        (sizes[count],) = set(prompt.tokens_per_frame)
        assert len(prompt.tokens_per_frame) == count
    assert sizes == {1: 136, 12: 136, 13: 64, 20: 64, 24: 64, 25: 16}
    np.testing.assert_array_equal(
        prompt.tiles.pixels[:, :1, :1], processor.normalise(np.stack(pictures)[:, :1, :1])
    )


def test_one_stride_for_a_picture_and_videos(processor):
    """25 frames and a picture: 26 x 16; in the order of their placeholders."""
    bright = np.full((112, 224, 3), 255, np.uint8)
    prompt = ask(processor, [bright], [film(20), film(5)], "<video>A<image>B<video>C")
    assert prompt.tokens_per_frame == (16,) * 26
    np.testing.assert_array_equal(prompt.tiles.strides, np.full(26, 2))
    np.testing.assert_array_equal(
        prompt.tiles.pixels[20, :1, :1], processor.normalise(bright[:1, :1])
    )
    text = prompt.tokens[prompt.image_rows == TEXT]
    assert processor.decode(text).replace(" ", "").endswith("USER:ABCASSISTANT:")


def test_another_budget(processor):
    """Also of a single picture; 1 token is the least."""
    sizes = {
        budget: set(ask(processor.with_budget(budget), [noise(112, 112)]).tokens_per_frame)
        for budget in (128, 127, 64, 63, 16, 15, 9, 1)
    }
    assert sizes == {128: {136}, 127: {64}, 64: {64}, 63: {16}, 16: {16}, 15: {9}, 9: {9}, 1: {1}}
    assert processor.visual_budget == 1536
    with pytest.raises(UserError, match="visual budget: expected at least 1 token, got 0"):
        processor.with_budget(0)


def test_refusals(processor, qwen_processor, monkeypatch):
    with pytest.raises(UserError, match=r"at most 63 pictures and frames of videos .*, got 64"):
        ask(processor.with_budget(63), videos=[film(64)])
    with pytest.raises(UserError, match=r"\(1536 of them for images and videos\), the limit is"):
        ask(processor, videos=[film(24)], question="Hi? " * 300)
    with pytest.raises(UserError, match="visual budget: expected a LLaVA model"):
        qwen_processor.with_budget(100)
    assert processor.most_tiles == 1536
    monkeypatch.setattr(type(processor), "most_tiles", 5)
    with pytest.raises(UserError, match=r"needs 6 tiles .* the limit is 5: give fewer"):
        ask(processor, videos=[film(4), film(2)])


def test_a_batch_of_pooled_and_other_prompts(processor):
    """Tiles beside pooled ones have a stride of 1, padding has none; rows move as ever."""
    prompts = [
        ask(processor, [noise(112, 112)]), ask(processor, videos=[film(64)]), ask(processor),
    ]  # fmt: skip
    batch = batch_prompts(prompts, processor.config, tile_bucket=70)
    assert batch.tiles.strides.tolist() == [1] * 2 + [2] * 64 + [0] * 4
    np.testing.assert_array_equal(batch.tiles.pixels[:2], prompts[0].tiles)
    first, second, _ = batch.image_rows
    shown = prompts[1].image_rows >= 0
    np.testing.assert_array_equal(
        second[: len(shown)][shown], prompts[1].image_rows[shown] + 2 * PATCHES
    )
    newlines = prompts[0].image_rows == 2 * PATCHES
    assert np.all(first[: len(newlines)][newlines] == 70 * PATCHES)
    plain = batch_prompts(prompts[::2], processor.config)
    assert isinstance(plain.tiles, np.ndarray)  # nothing pooled: the programs of ever


def test_joined_tiles_slice_and_convert():
    tiles = PooledTiles(np.ones((2, 4, 4, 3), np.float32), np.array([2, 3], np.int32))
    joined = join_tiles([tiles[:1], np.zeros((1, 4, 4, 3), np.float32)], 3)
    assert (len(joined), joined.strides.tolist()) == (3, [2, 1, 0])
    half = joined.astype(np.float16)
    assert (half.pixels.dtype, half.strides.dtype) == (np.float16, np.int32)


def test_the_stream_of_a_video(processor):
    """Each frame is a picture of the bank: its rows, their places, its own pooled tokens."""
    prompt = ask(processor, videos=[film(64)])
    stream = stream_inputs(prompt, 4, "visual")
    assert len(stream.bank_sources) == 64 * 16
    np.testing.assert_array_equal(stream.bank_images, np.repeat(np.arange(64), 16))
    quarter = np.kron([[0, 1], [2, 3]], np.ones((2, 2), int)).ravel()
    np.testing.assert_array_equal(
        stream.bank_regions, stream.bank_images * 4 + np.tile(quarter, 64)
    )
    pooled = stream.visual[stream.visual <= FIRST_POOLED]
    np.testing.assert_array_equal(pooled, FIRST_POOLED - np.arange(256))
    batch = batch_streams([prompt], processor.config, 4, "visual")
    np.testing.assert_array_equal(batch.bank_rows[0, :1024], prompt.image_rows[stream.bank_sources])
    assert batch.region_sizes[0, :256].tolist() == [4.0] * 256
    single = stream_inputs(ask(processor, videos=[film(1000)]), 4, "visual")
    assert (single.visual <= FIRST_POOLED).sum() == 1000  # a frame's one row is in one region


def test_training_reads_the_same(processor, tmp_path):
    """A file's example, cut behind its video for several questions."""
    stills = [Image.fromarray(np.full((20, 30, 3), 10 * k, np.uint8)) for k in range(12)]
    path = tmp_path / "film.gif"
    stills[0].save(path, save_all=True, append_images=stills[1:], duration=250)
    example = Example("a", "Hi?", (), "films", "Grey.", videos=(str(path),))
    prepared = PrepareExample(processor)(example)
    video = load_video(path, fit=processor.fit)
    prompt = ask(processor, videos=[video])
    assert prompt.tokens_per_frame == (64,) * 6
    np.testing.assert_array_equal(prepared.prompt.image_rows, prompt.image_rows)
    np.testing.assert_array_equal(prepared.prompt.tiles, prompt.tiles)
    texts = [build_prompt(processor, question, 0, 1) for question in ("Hi?", "What is it?")]
    cut = make_example(processor, texts, videos=[video])
    assert cut.prefix.image_rows[-1] == 5 * PATCHES + 63
    assert processor.decode(cut.questions[1]).strip() == "What is it? ASSISTANT:"
    dropped = PrepareExample(processor.with_budget(3))(example)
    assert isinstance(dropped, DroppedExample)
    assert "visual budget of 3), got 6" in dropped.message


def test_the_folder_of_the_embedded_pair_reads_videos():
    from tiger_jax.data.processor import Processor

    processor = Processor.from_folder(TINY_LLAVA / "verifier")
    assert ask(processor, videos=[film(6)]).tokens_per_frame == (64,) * 6
