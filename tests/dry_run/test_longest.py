"""Shapes of the longest examples: by hand for both families, and those that host batches have."""

import jax
import numpy as np
import pytest

from configs import presets
from tests import pictured
from tests.pictured import framed_prompt, pictured_prompt
from tiger_jax.data.batches import batch_prompts, round_tiles, round_width
from tiger_jax.data.visual_stream import batch_streams
from tiger_jax.dry_run import abstract_batches as batches
from tiger_jax.dry_run.abstract_batches import Longest
from tiger_jax.dry_run.pictures import largest_picture
from tiger_jax.dry_run.published import model_config
from tiger_jax.models.config_reader import make_config
from tiger_jax.models.frames import Frames, arrays_of
from tiger_jax.models.published import NAMES, PAIRS
from tiger_jax.routing.bank import make_stream
from tiger_jax.routing.router import RouterConfig
from tiger_jax.testing.qwen3_vl_configs import tiny_config_json

pytestmark = pytest.mark.usefixtures("shapes")

ROUTER = RouterConfig()
LEADING = 40


def longest(pair, **router):
    config = model_config(PAIRS[pair][1])
    return config, Longest.of(config, RouterConfig(**router), max_length=2048, response=512)


def shape(leaf):
    return (*leaf.shape,), np.dtype(leaf.dtype)


def test_sizes_of_a_llava_example_by_hand():
    _, found = longest("llava_next")
    # base tile and 2 x 2 ones: 5 x 576 rows, and a newline behind each of 48
    assert (found.visual, found.picture.tiles, found.axes) == (2928, 5, ())
    assert (found.prompt, found.prefix, found.stream) == (4096, 3072, 48)
    assert (found.text, found.response) == (2048, 512)
    assert shape(found.tiles(4)) == ((20, 336, 336, 3), np.float32)


def test_sizes_of_a_qwen_example_by_hand():
    _, found = longest("qwen3_vl")
    # 1,024 pixels are 64 patches of 16, or 32 tokens: 3,071 tokens with their text
    assert (found.visual, found.picture.tiles, found.axes) == (1024, 1, (3,))
    assert (found.prompt, found.prefix, found.stream) == (3072, 1536, 48)
    frames = found.tiles(4)
    assert isinstance(frames, Frames)
    assert shape(frames.patches) == ((4, 4096, 2 * 3 * 16 * 16), np.float32)
    assert [shape(leaf)[0] for leaf in arrays_of(frames)[1:]] == [
        (4,), (4, 4096, 2), (4, 4096, 4), (4, 4096, 4)
    ]  # fmt: skip
    _, full = longest("qwen3_vl", selector="full")
    assert full.stream == 1536


def test_positions_of_prompts_have_three_axes_and_those_of_texts_one():
    _, found = longest("qwen3_vl")
    batch = batches.draft_batch(found, 4, 8, 32, (32, 32), pooled=1)
    assert batch.prefix_positions.shape == (4, 1536, 3)
    assert batch.stream.positions.shape == (4, 48, 3)
    assert batch.stream.bank.positions.shape == (4, 1024, 3)
    assert batch.stream.bank.sources.shape == (4, 1024)
    assert batch.positions.shape == batch.tokens.shape == (4, 2048)
    prefixes, text = batches.teacher_batch(found, 2)
    assert prefixes.positions.shape == (2, 1536, 3)
    assert text.positions.shape == (2, 2048)
    assert batches.prompts(found, 8, "bfloat16").positions.shape == (8, 3072, 3)


def test_only_patches_have_the_compute_dtype():
    _, found = longest("qwen3_vl")
    frames = batches.prompts(found, 1, "bfloat16").tiles
    kinds = [str(leaf.dtype) for leaf in arrays_of(frames)]
    assert kinds == ["bfloat16", "int32", "int32", "int32", "float32"]


@pytest.mark.parametrize("pair", PAIRS)
def test_a_host_batch_of_the_largest_picture_has_these_shapes(pair, monkeypatch):
    config, found = longest(pair)
    monkeypatch.setattr(pictured, "SIZES", ((672, 672),))
    text = list(range(3, 3 + LEADING - 2))  # two tokens stand around a Qwen picture
    prompt = (
        framed_prompt(config, [(32, 32)], text)
        if pair == "qwen3_vl" else pictured_prompt(config, [0], text)
    )  # fmt: skip
    assert int((prompt.image_ids >= 0).sum()) == found.visual
    tiles = round_tiles(len(prompt.tiles), 1)
    host = batch_prompts([prompt], config, round_width(len(prompt.tokens)), tiles)
    stream = batch_streams(
        [prompt], config, ROUTER.pooled_tokens, ROUTER.query, tile_bucket=tiles,
        seq_bucket=found.stream, bank_bucket=round_width(found.visual),
    )  # fmt: skip
    batch = batches.draft_batch(found, 1, 8, 32, (32, 32), ROUTER.pooled_tokens)
    for name in ("tokens", "image_rows", "positions", "lengths"):
        assert shape(getattr(host, name)) == shape(getattr(batch, f"prefix_{name}")), name
    for made, own in zip(arrays_of(host.tiles), arrays_of(batch.tiles), strict=True):
        assert shape(made) == shape(own)
    assert jax.tree.map(shape, make_stream(stream._asdict())) == jax.tree.map(shape, batch.stream)


def test_a_small_model_gets_a_picture_that_leaves_half_its_positions():
    config = make_config(tiny_config_json())  # 2,048 positions
    assert largest_picture(config).visual == 32 * 32
    assert largest_picture(config).shapes(1, "float32").patches.shape[1] == 64 * 64
    raw = tiny_config_json()
    raw["text_config"]["max_position_embeddings"] = 256
    assert largest_picture(make_config(raw)).visual == 11 * 11


def test_the_pairs_of_the_configs_are_the_published_ones():
    for name, (verifier, drafter) in PAIRS.items():
        assert presets.pair(name) == {"verifier": verifier, "drafter": drafter}
        assert {verifier, drafter} <= set(NAMES)
