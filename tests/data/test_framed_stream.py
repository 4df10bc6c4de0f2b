"""Streams and batches of prompts with positions on three axes and frames of several sizes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.framed import END, IMAGE, START, VIDEO, Shown, framed_prompt, values_at
from tiger_jax.data.batches import batch_prompts, table_rows
from tiger_jax.data.visual_stream import QUERIES, batch_streams, stream_inputs
from tiger_jax.models.frames import Frames
from tiger_jax.testing.tiny import tiny_config

CONFIG = tiny_config()  # only its padding id is read
PICTURE = framed_prompt(5, Shown(2, 3), 6, 7)
"""5 S I*6 E 6 7 with one picture of 2 x 3 tokens."""


def test_positions_of_a_picture():
    """Text is 0, 1 | 5, 6, 7: the picture spans max(2, 3), not its 6 tokens."""
    assert PICTURE.tokens.tolist() == [5, START, *[IMAGE] * 6, END, 6, 7]
    assert PICTURE.positions[:, 0].tolist() == [0, 1, *[2] * 6, 5, 6, 7]
    assert PICTURE.positions[2:8, 1:].tolist() == [[2, 2], [2, 3], [2, 4], [3, 2], [3, 3], [3, 4]]
    assert PICTURE.next_position == 8
    assert len(PICTURE.tokens) == 11


def test_videos_of_several_lengths_are_of_one_shape():
    """7 and 8 frames in one bucket of 8: else every length would be a program of its own."""
    streams = [
        batch_streams([framed_prompt(5, *[Shown(2, 2)] * frames, 6)], CONFIG, 4, "visual")
        for frames in (7, 8)
    ]
    shapes = [[array.shape for array in stream] for stream in streams]
    assert shapes[0] == shapes[1]
    assert streams[0].region_sizes.shape == (1, 32)
    assert (streams[0].region_sizes[0, 28:] == 0).all()


def test_pooled_tokens_stand_at_the_mean_of_each_axis():
    """One region: rows 2 2 2 3 3 3 have the mean 2.5, halves up; columns 3. Four regions: columns
    at 1/6, 1/2, 5/6 put the first one left, the other two right (means 3.5 -> 4)."""
    one = stream_inputs(PICTURE, 1, "visual")
    assert one.tokens.tolist() == [5, START, IMAGE, END, 6, 7]
    assert one.sources.tolist() == [0, 1, 2, 8, 9, 10]
    assert one.positions.tolist() == [
        [0, 0, 0], [1, 1, 1], [2, 3, 3], [5, 5, 5], [6, 6, 6], [7, 7, 7],
    ]  # fmt: skip
    assert one.bank_sources.tolist() == list(range(2, 8))
    assert one.bank_positions.tolist() == PICTURE.positions[2:8].tolist()
    four = stream_inputs(PICTURE, 4, "visual")
    assert four.bank_regions.tolist() == [0, 1, 1, 2, 3, 3]
    assert four.visual.tolist() == [-1, -1, -2, -3, -4, -5, -1, -1, -1]
    assert four.positions[2:6].tolist() == [[2, 2, 2], [2, 2, 4], [2, 3, 2], [2, 3, 4]]
    assert four.positions[6:].tolist() == [[5, 5, 5], [6, 6, 6], [7, 7, 7]]
    text = stream_inputs(PICTURE, 4, "text_only")
    assert text.positions.tolist() == [[n] * 3 for n in (0, 1, 5, 6, 7)]
    full = stream_inputs(PICTURE, 4, "full")
    assert full.positions.tolist() == PICTURE.positions.tolist()


def test_each_frame_of_a_video_has_its_own_pooled_tokens():
    """8 | time S V*4 E | time S V*4 E | 9: a frame of 2 x 2 spans 2, so the second one is at 8."""
    video = framed_prompt(8, Shown(2, 2, frames=2), 9)
    assert video.tokens.tolist() == [
        8,
        10,
        START,
        *[VIDEO] * 4,
        END,
        11,
        START,
        *[VIDEO] * 4,
        END,
        9,
    ]
    assert video.positions[:, 0].tolist() == [0, 1, 2, *[3] * 4, 5, 6, 7, *[8] * 4, 10, 11]
    stream = stream_inputs(video, 1, "visual")
    assert stream.tokens.tolist() == [8, 10, START, VIDEO, END, 11, START, VIDEO, END, 9]
    assert stream.visual.tolist() == [-1, -1, -1, -2, -1, -1, -1, -3, -1, -1]
    assert stream.sources.tolist() == [0, 1, 2, 3, 7, 8, 9, 10, 14, 15]
    # rows and columns 3 3 4 4 and 8 8 9 9: halves up
    assert stream.positions[[3, 7]].tolist() == [[3, 4, 4], [8, 9, 9]]
    assert stream.bank_images.tolist() == [0] * 4 + [1] * 4
    assert stream.bank_regions.tolist() == [0] * 4 + [1] * 4


def test_cut_and_followed_by():
    """Behind a picture text goes on at 8, not at 11 tokens."""
    longer = PICTURE.followed_by(np.array([3, 4], np.int32))
    assert longer.positions[-2:].tolist() == [[8, 8, 8], [9, 9, 9]]
    assert longer.next_position == 10
    assert longer.positions.dtype == np.int32
    assert (longer.image_rows[-2:] == -1).all()
    assert (longer.places[-2:] == -1).all()
    again = longer.cut(11)
    for name, value in PICTURE._asdict().items():
        if not isinstance(value, Frames):
            np.testing.assert_array_equal(getattr(again, name), value, err_msg=name)
    head = PICTURE.cut(8)  # behind the picture's last token: (2, 3, 4) is the largest
    assert head.next_position == 5
    assert head.followed_by(PICTURE.tokens[8:]).positions.tolist() == PICTURE.positions.tolist()
    nothing = PICTURE.cut(0)
    assert nothing.next_position == 0
    assert nothing.followed_by(np.array([1], np.int32)).positions.tolist() == [[0, 0, 0]]


def test_frames_of_two_buckets_are_padded_to_the_larger():
    """4 and 6 tokens are 16 and 32 patches: 4 and 8 rows a frame. In the batch each has 8, so row 2
    of the second prompt's frame is 2 * 8 + 2; with its own 4 rows a frame it would be 2 * 4 + 2."""
    small, large = framed_prompt(5, Shown(2, 2), 6), framed_prompt(Shown(2, 3), Shown(2, 2))
    assert (small.tile_rows, large.tile_rows) == (4, 8)
    assert small.image_rows[2:6].tolist() == [0, 1, 2, 3]
    assert large.image_rows[large.image_rows >= 0].tolist() == [*range(6), *range(8, 12)]
    first, second = table_rows([large, small], 4)
    assert first.tolist() == large.image_rows.tolist()
    assert second.tolist() == [-1, -1, 16, 17, 18, 19, -1, -1]
    first, second = table_rows([small, large], 4)
    assert first.tolist() == small.image_rows.tolist()
    assert second[second >= 0].tolist() == [*range(8, 14), *range(16, 20)]
    batch = batch_prompts([small, large], CONFIG)
    assert batch.tiles.patches.shape == (3, 32, 3)
    assert batch.tiles.counts.tolist() == [16, 24, 16]
    assert batch.positions.shape == (2, 64, 3)
    assert (batch.positions[0, len(small.tokens) :] == 0).all()
    streams = batch_streams([small, large], CONFIG, 1, "visual")
    assert streams.positions.shape == (2, 64, 3) == streams.bank_positions.shape
    assert streams.bank_rows[1, :10].tolist() == [*range(8, 14), *range(16, 20)]


PARTS = st.lists(
    st.one_of(
        st.integers(20, 60),
        st.builds(Shown, st.integers(1, 4), st.integers(1, 4), st.integers(0, 3)),
    ),
    min_size=1, max_size=5,
)  # fmt: skip


@settings(deadline=None, max_examples=40)
@given(st.lists(PARTS, min_size=1, max_size=3), st.sampled_from([1, 4]), st.integers(0, 5))
def test_pictures_and_videos_in_any_order(prompts, pooled, spare):
    """Every row of a batch finds its own frame; text stands where the prompt has it."""
    prompts = [framed_prompt(*parts) for parts in prompts]
    n_tiles = sum(len(prompt.tiles) for prompt in prompts)
    batch = batch_prompts(prompts, CONFIG, tile_bucket=n_tiles + spare)
    own = [values_at([p], [p.image_rows], p.tiles)[0] if len(p.tiles) else [-1] * len(p.tokens)
           for p in prompts]  # fmt: skip
    if n_tiles:
        assert values_at(prompts, batch.image_rows, batch.tiles) == own
        assert own == [[float(i + 1) if i >= 0 else -1 for i in p.image_ids] for p in prompts]
    streams = batch_streams(prompts, CONFIG, pooled, "visual", n_tiles + spare)
    for b, prompt in enumerate(prompts):
        text = prompt.image_ids < 0
        n, members = streams.lengths[b], (~text).sum()
        kept = streams.visual[b, :n] == -1
        assert np.array_equal(streams.positions[b, :n][kept], prompt.positions[text])
        assert np.array_equal(streams.tokens[b, :n], prompt.tokens[streams.sources[b, :n]])
        rows = batch.image_rows[b][batch.image_rows[b] >= 0]
        assert np.array_equal(streams.bank_rows[b, :members], rows)
        assert streams.region_sizes[b].sum() == members
        for region in np.flatnonzero(streams.region_sizes[b]):
            inside = streams.bank_positions[b][streams.bank_regions[b] == region]
            (place,) = np.flatnonzero(streams.visual[b] == -2 - region)
            assert np.array_equal(streams.positions[b, place], np.floor(inside.mean(0) + 0.5))


@pytest.mark.parametrize("query", QUERIES)
def test_text_alone_has_three_axes_too(query):
    prompt = framed_prompt(5, 6, 7)
    stream = stream_inputs(prompt, 4, query)
    assert stream.positions.tolist() == [[0] * 3, [1] * 3, [2] * 3]
    assert stream.bank_positions.shape == (0, 3)
    batch = batch_streams([prompt, PICTURE], CONFIG, 4, query)
    assert batch.positions.shape == (2, 64, 3)
    assert (batch.bank_rows[0] == -1).all()
