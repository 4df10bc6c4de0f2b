"""Where each visual token looked, and what a routed drafter reads, on pictures drawn by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiger_jax.data.batches import SEQ_BUCKETS, PromptInputs, batch_prompts, make_prompt
from tiger_jax.data.prompts import build_prompt
from tiger_jax.data.visual_stream import QUERIES, batch_streams, stream_inputs
from tiger_jax.errors import UserError
from tiger_jax.models.image_geometry import image_token_places, image_token_rows
from tiger_jax.testing.tiny import tiny_config

CONFIG = tiny_config()  # 2x2 rows a tile of 28 pixels
IMAGE, PAD = CONFIG.image_token_id, CONFIG.pad_token_id
SQUARE = [(0.25, 0.25), (0.25, 0.75), (0.75, 0.25), (0.75, 0.75)]
LINES = [(0.25, 0.25), (0.25, 0.75), (0.25, 1), (0.75, 0.25), (0.75, 0.75), (0.75, 1)]


def prompt_of(*parts: int | tuple[int, int]) -> PromptInputs:
    """Text tokens (their ids) and pictures (their height and width) in the order given."""
    tokens, rows, places, ids, tiles, seen = [], [], [], [], 0, 0
    for part in parts:
        if isinstance(part, int):
            tokens.append([part])
            rows.append(np.array([-1]))
            places.append(np.full((1, 2), -1.0))
            ids.append([-1])
            continue
        own = image_token_rows(*part, CONFIG)
        tokens.append([IMAGE] * len(own))
        rows.append(np.where(own < 0, 10**6, own + tiles * 4))
        places.append(image_token_places(*part, CONFIG))
        ids.append([seen] * len(own))
        tiles += 1 + own.max() // 4 - (own.max() < 4)
        seen += 1
    rows = np.minimum(np.concatenate(rows), tiles * 4)
    return PromptInputs(
        tokens=np.concatenate(tokens).astype(np.int32),
        image_rows=rows.astype(np.int32),
        tiles=np.zeros((tiles, 28, 28, 3), np.float32),
        places=np.concatenate(places).astype(np.float32),
        image_ids=np.concatenate(ids).astype(np.int32),
        positions=np.arange(len(rows), dtype=np.int32),
        tile_rows=4,
    )


def lists(stream) -> dict[str, list]:
    return {name: value.tolist() for name, value in stream._asdict().items()}


def test_places_of_one_tile():
    places = image_token_places(28, 28, CONFIG)
    assert places.dtype == np.float32
    assert places.tolist() == [list(map(float, place)) for place in SQUARE + LINES]


def test_places_leave_the_padding_out():
    """28x42 in one line of two tiles, 2x4 patches: 3 patches wide, and half a patch of padding on
    each side; the crop keeps all four columns, whose outer centres are on the picture's edge."""
    places = image_token_places(28, 42, CONFIG)
    assert places[:4].tolist() == [list(place) for place in SQUARE]
    assert len(places) == len(image_token_rows(28, 42, CONFIG)) == 4 + 2 * 5
    np.testing.assert_allclose(places[4:9, 1], [0, 1 / 3, 2 / 3, 1, 1], atol=1e-6)
    # a crop taken as the whole picture would give 1/8, 3/8, 5/8, 7/8
    assert places[4:9, 0].tolist() == [0.25] * 5


def test_places_of_a_cropped_picture():
    """56x28: a column of two tiles that the picture fills; 28x14 in them as well."""
    places = image_token_places(56, 28, CONFIG)
    assert places[4::3, 0].tolist() == [0.125, 0.375, 0.625, 0.875]
    assert places[4:7, 1].tolist() == [0.25, 0.75, 1]


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 200), st.integers(1, 200))
def test_places_follow_the_rows(height, width):
    rows, places = (f(height, width, CONFIG) for f in (image_token_rows, image_token_places))
    assert len(rows) == len(places)
    assert places.min(initial=0) >= 0
    assert places.max(initial=0) <= 1
    assert (places[rows < 0, 1] == 1).all()
    lines = places[4:].reshape(-1, 1 + np.argmax(rows[4:] < 0), 2) if len(rows) > 4 else []
    for line in lines:
        assert len(set(line[:, 0])) == 1
        assert (np.diff(line[:, 1]) >= 0).all()


def test_one_picture_all_queries():
    prompt = prompt_of(1, 7, (28, 28), 8, 9)
    bank = {
        "bank_sources": list(range(2, 12)),
        "bank_positions": list(range(2, 12)),
        "bank_images": [0] * 10,
    }
    one = lists(stream_inputs(prompt, 1, "visual"))
    assert one == bank | {
        "tokens": [1, 7, IMAGE, 8, 9],
        "sources": [0, 1, 2, 12, 13],
        "positions": [0, 1, 7, 12, 13],  # the mean of 2..11 is 6.5
        "visual": [-1, -1, -2, -1, -1],
        "bank_regions": [0] * 10,
    }
    regions = [0, 1, 2, 3, 0, 1, 1, 2, 3, 3]
    four = lists(stream_inputs(prompt, 4, "visual"))
    assert four == bank | {
        "tokens": [1, 7, IMAGE, IMAGE, IMAGE, IMAGE, 8, 9],
        "sources": [0, 1, 2, 2, 2, 2, 12, 13],
        # (2+6)/2, (3+7+8)/3, (4+9)/2 up, (5+10+11)/3 = 8.67 up
        "positions": [0, 1, 4, 6, 7, 9, 12, 13],
        "visual": [-1, -1, -2, -3, -4, -5, -1, -1],
        "bank_regions": regions,
    }
    text = lists(stream_inputs(prompt, 4, "text_only"))
    assert text == bank | {
        "tokens": [1, 7, 8, 9],
        "sources": [0, 1, 12, 13],
        "positions": [0, 1, 12, 13],
        "visual": [-1] * 4,
        "bank_regions": regions,
    }
    full = lists(stream_inputs(prompt, 4, "full"))
    assert full == bank | {
        "tokens": prompt.tokens.tolist(),
        "sources": list(range(14)),
        "positions": list(range(14)),
        "visual": [-1, -1, *range(10), -1, -1],
        "bank_regions": regions,
    }


def test_region_without_members_has_no_token():
    """Sixteen regions for four places: a 2x2 picture fills rows and columns 1 and 3 of 4x4."""
    prompt = prompt_of(1, (28, 28))
    stream = stream_inputs(prompt, 16, "visual")
    assert stream.bank_regions.tolist() == [5, 7, 13, 15, 5, 7, 7, 13, 15, 15]
    assert stream.visual.tolist() == [-1, -2 - 5, -2 - 7, -2 - 13, -2 - 15]
    sizes = batch_streams([prompt], CONFIG, 16, "visual").region_sizes
    assert sizes.shape == (1, 16)
    assert {i: n for i, n in enumerate(sizes[0].tolist()) if n} == {5: 2, 7: 3, 13: 2, 15: 3}


def test_two_pictures_side_by_side():
    """No text between them: each still has its own pooled tokens, in order."""
    prompt = prompt_of(1, (28, 28), (28, 28), 8)
    stream = stream_inputs(prompt, 1, "visual")
    assert stream.tokens.tolist() == [1, IMAGE, IMAGE, 8]
    assert stream.visual.tolist() == [-1, -2, -3, -1]
    assert stream.positions.tolist() == [0, 6, 16, 21]  # means 5.5 and 15.5
    assert stream.bank_images.tolist() == stream.bank_regions.tolist() == [0] * 10 + [1] * 10
    four = stream_inputs(prompt, 4, "visual")
    assert four.visual.tolist() == [-1, -2, -3, -4, -5, -6, -7, -8, -9, -1]
    assert four.bank_regions[10:].tolist() == [4, 5, 6, 7, 4, 5, 5, 6, 7, 7]


@pytest.mark.parametrize("query", QUERIES)
def test_no_picture(query):
    prompt = prompt_of(1, 7, 8)
    stream = stream_inputs(prompt, 4, query)
    assert stream.tokens.tolist() == [1, 7, 8]
    assert stream.positions.tolist() == [0, 1, 2]
    assert stream.visual.tolist() == [-1] * 3
    assert len(stream.bank_sources) == len(stream.bank_regions) == 0
    batch = batch_streams([prompt], CONFIG, 4, query)
    assert batch.region_sizes.tolist() == [[0.0]]
    assert (batch.bank_rows == -1).all()
    assert {array.dtype.name for array in batch} == {"int32", "float32"}


def test_batch_shifts_rows_as_batch_prompts_does():
    prompts = [prompt_of(1, (28, 28), 8), prompt_of(1, 7), prompt_of(1, (28, 28), (28, 56), 9)]
    flat = batch_prompts(prompts, CONFIG, tile_bucket=12)
    batch = batch_streams(prompts, CONFIG, 4, "visual", tile_bucket=12)
    assert batch.lengths.tolist() == [6, 2, 10]
    assert batch.tokens.shape == (3, 64) == batch.bank_rows.shape
    for b in range(3):
        rows = flat.image_rows[b][flat.image_rows[b] >= 0]
        length, members = batch.lengths[b], len(rows)
        assert batch.bank_rows[b, :members].tolist() == rows.tolist()
        where = np.flatnonzero(prompts[b].image_ids >= 0)
        assert batch.bank_sources[b, :members].tolist() == where.tolist()
        assert batch.sources[b, :length].max(initial=0) < len(prompts[b].tokens)
        for padding in (batch.bank_sources, batch.bank_positions):
            assert (padding[b, members:] == 0).all()
        assert (batch.sources[b, length:] == 0).all()
        assert (batch.bank_rows[b, members:] == -1).all()
        assert (batch.bank_images[b, members:] == -1).all()
        assert (batch.bank_regions[b, members:] == -1).all()
        assert (batch.tokens[b, length:] == PAD).all()
        assert (batch.visual[b, length:] == -1).all()
        assert batch.region_sizes[b].sum() == members
    assert batch.bank_rows[2, :4].tolist() == [8, 9, 10, 11]  # two tiles of the first prompt on
    assert 48 in batch.bank_rows[0]  # its newline is the last row of the batch's table
    assert batch.region_sizes.tolist() == [
        [2, 3, 2, 3, 0, 0, 0, 0],
        [0] * 8,
        [2, 3, 2, 3, 3, 4, 3, 4],
    ]


def test_made_prompt_says_where_its_tokens_looked(processor):
    config = processor.config
    images = [np.zeros((*size, 3), np.uint8) for size in [(112, 112), (300, 90)]]
    prompt = make_prompt(processor, config, build_prompt(processor, "Hi?", 2), images)
    assert np.array_equal(prompt.image_ids >= 0, prompt.tokens == config.image_token_id)
    assert np.array_equal(prompt.image_ids < 0, (prompt.places == -1).all(-1))
    for i, image in enumerate(images):
        own = image_token_places(*image.shape[:2], config)
        assert np.array_equal(prompt.places[prompt.image_ids == i], own)
    assert prompt.places.dtype == np.float32
    assert prompt.image_ids.dtype == prompt.image_rows.dtype == np.int32


PARTS = st.lists(
    st.one_of(st.integers(3, 90), st.tuples(st.integers(1, 90), st.integers(1, 90))),
    min_size=1, max_size=6,
)  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(PARTS, st.sampled_from([1, 4, 9, 16]))
def test_every_prompt(parts, pooled):
    """Bank and text together are the prompt; pooled tokens stand for every member once."""
    prompt = prompt_of(*parts)
    text = prompt.image_ids < 0
    streams = {query: stream_inputs(prompt, pooled, query) for query in QUERIES}
    for stream in streams.values():
        kept = stream.visual == -1
        assert np.array_equal(stream.positions[kept], np.flatnonzero(text))
        assert np.array_equal(stream.tokens[kept], prompt.tokens[text])
        assert np.array_equal(stream.bank_sources, np.flatnonzero(~text))
        assert np.array_equal(stream.tokens, prompt.tokens[stream.sources])
    n_pooled = len(set(streams["visual"].bank_regions.tolist()))
    assert len(streams["visual"].tokens) == text.sum() + n_pooled
    assert len(streams["text_only"].tokens) == text.sum()
    assert len(streams["full"].tokens) == len(text)
    if len(text) <= SEQ_BUCKETS[-1] and len(streams["text_only"].tokens):
        batch = batch_streams([prompt, prompt], CONFIG, pooled, "visual")
        assert np.array_equal(batch.region_sizes[0], batch.region_sizes[1])
        assert batch.region_sizes[0].sum() == (~text).sum()


@pytest.mark.parametrize(("pooled", "query"), [(2, "visual"), (0, "full"), (4, "text")])
def test_unknown_settings(pooled, query):
    with pytest.raises(UserError, match=r"expected one of .*, got"):
        stream_inputs(prompt_of(1), pooled, query)


def test_too_small_buckets():
    prompts = [prompt_of(1, (28, 28), 8)]
    with pytest.raises(UserError, match="at most 5 tokens"):
        batch_streams(prompts, CONFIG, 4, "visual", seq_bucket=5)
    with pytest.raises(UserError, match="at most 9 visual tokens"):
        batch_streams(prompts, CONFIG, 4, "visual", bank_bucket=9)
    with pytest.raises(UserError, match="at most 1 tiles"):
        batch_streams(prompts, CONFIG, 4, "visual", tile_bucket=1)
