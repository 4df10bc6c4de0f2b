"""Pixels, grids, ids and places of Qwen3-VL's input against transformers and hand-made cases."""

import dataclasses
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.qwen3_folder import IMAGE, QWEN3_TOKENIZER, write_qwen3_folder
from tiger_jax.data.processor import Processor
from tiger_jax.data.qwen3_vl_processor import Qwen3VLProcessor
from tiger_jax.data.videos import Video
from tiger_jax.errors import UserError
from tiger_jax.models.frame_geometry import smart_resize, video_size
from tiger_jax.models.frames import PATCH_BUCKETS

QUESTION = "<|im_start|>user\n{}What?<|im_end|>\n<|im_start|>assistant\n"
MARKED = "<|vision_start|><|video_pad|><|vision_end|>"


def noise(height: int, width: int) -> np.ndarray:
    rng = np.random.default_rng(height * 1000 + width)
    return rng.integers(0, 256, (height, width, 3), dtype=np.uint8)


def film(n: int, height: int, width: int, fps: float = 2.0) -> Video:
    frames = np.stack([np.full((height, width, 3), 10 * k, np.uint8) for k in range(n)])
    return Video(frames, tuple(k / fps for k in range(n)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_qwen3_folder(tmp_path_factory.mktemp("qwen") / "tiny")


@pytest.fixture(scope="module")
def qwen(folder) -> Qwen3VLProcessor:
    return Processor.from_folder(folder)


@pytest.fixture(scope="module")
def small(qwen) -> Qwen3VLProcessor:
    """Bounds so low that pictures stay small."""
    bounds = {"min_pixels": 4096, "max_pixels": 65536}
    return dataclasses.replace(qwen, image=dataclasses.replace(qwen.image, **bounds))


@pytest.fixture(scope="module")
def real(tmp_path_factory) -> Qwen3VLProcessor:
    if not QWEN3_TOKENIZER.is_dir():
        pytest.skip("shared/data is not beside the repository")
    return Processor.from_folder(
        write_qwen3_folder(tmp_path_factory.mktemp("qwen") / "real", real=True)
    )


def published_images():
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    return Qwen2VLImageProcessorPil.from_dict(dict(IMAGE))


TABLE = [(224, 224), (1, 1), (100, 100), (272, 240), (480, 640), (768, 1024), (1, 200), (300, 400),
         (80, 1000)]  # fmt: skip


@pytest.mark.parametrize("size", [*TABLE, (333, 501), (61, 1030), (3, 50)])
def test_patches_equal_transformers(qwen, size):
    picture = noise(*size)
    expected = published_images()([picture], input_data_format="channels_last", return_tensors="np")
    found = qwen.visual(Image.fromarray(picture))
    n = found.tiles.counts[0]
    assert found.tiles.patches.shape == (1, found.tile_rows * 4, 1536)
    assert expected["image_grid_thw"].tolist() == [[1, *(2 * found.grids[0]).tolist()]]
    np.testing.assert_allclose(
        found.tiles.patches[0, :n], expected["pixel_values"], rtol=0, atol=1e-6
    )
    assert not found.tiles.patches[0, n:].any()


def test_counts_equal_transformers_on_200_sizes(qwen):
    rng = np.random.default_rng(1)
    published = published_images()
    tried = 0
    for height, width in np.exp(rng.uniform(0, 8.5, (200, 2))).astype(int).tolist():
        if max(height, width) > 200 * min(height, width):
            with pytest.raises(UserError, match="200 times"):
                smart_resize(height, width, 32, 65536, 16777216)
            continue
        new = smart_resize(height, width, 32, qwen.image.min_pixels, qwen.image.max_pixels)
        patches = published.get_number_of_image_patches(height, width)
        assert new[0] * new[1] // 256 == patches
        tried += 1
    assert tried > 150


def test_number_of_rows_is_the_smallest_bucket(qwen):
    found = qwen.visual(noise(300, 400))  # 288 x 384 pixels: 18 x 24 patches
    assert found.tiles.counts.tolist() == [432]
    assert found.tiles.patches.shape[1] == 512
    assert found.tile_rows == 128
    assert {*PATCH_BUCKETS} >= {512, 64}


def test_padding_weighs_nothing_and_points_at_row_zero(qwen):
    tiles = qwen.visual(noise(300, 400)).tiles
    np.testing.assert_allclose(tiles.weights[0, :432].sum(-1), 1, atol=1e-6)
    assert not tiles.weights[0, 432:].any()
    assert not tiles.taps[0, 432:].any()
    assert tiles.places[0, 431].tolist() == [17, 23]
    assert tiles.taps.max() == 63  # the last row of an 8 x 8 table


def test_picture_gives_rows_in_order_and_centres_of_its_tokens(small):
    found = small.visual(noise(64, 128))
    assert found.grids.tolist() == [[2, 4]]
    assert found.rows.tolist() == list(range(8))
    assert found.frames.tolist() == [0] * 8
    assert found.tokens.tolist() == [small.config.image_token_id] * 8
    assert found.places[0].tolist() == [0.25, 0.125]
    assert found.places[5].tolist() == [0.75, 0.375]  # row 1, column 1
    assert (small.base_tile(noise(64, 128)).patches == found.tiles.patches).all()


def test_values_of_a_patch_are_channel_then_picture_then_pixels(small):
    picture = np.zeros((64, 128, 3), np.uint8)
    picture[16:32, 32:48] = (255, 128, 0)  # patch (1, 2): block (0, 1), its third patch
    patch = small.visual(picture).tiles.patches[0, 6].reshape(3, 2, 16, 16)
    inner = patch[:, :, 4:12, 4:12]
    np.testing.assert_allclose(inner[0], 1, atol=1e-6)
    np.testing.assert_allclose(inner[1], 128 / 127.5 - 1, atol=1e-6)
    np.testing.assert_allclose(inner[2], -1, atol=1e-6)


def test_video_pairs_its_pictures_and_repeats_an_odd_last_one(small):
    found = small.visual(film(3, 64, 96))
    assert found.grids.tolist() == [[2, 3]] * 2
    assert len(found.tiles) == 2
    first, second = found.tiles.patches[:, 0].reshape(2, 3, 2, 256)[:, 0, :, 0]
    scaled = np.array([0, 10, 20]) / 127.5 - 1
    np.testing.assert_allclose(first, scaled[:2], atol=1e-6)
    np.testing.assert_allclose(second, scaled[[2, 2]], atol=1e-6)


def test_one_picture_is_a_video_of_one_frame(small):
    found = small.visual(film(1, 64, 96))
    assert len(found.tiles) == 1
    assert small.decode(found.tokens[:13]) == "<0.0 seconds>"


def test_video_rows_point_at_each_frames_part_of_the_table(small):
    """Frames of 6 tokens in a bucket of 64 patches: frame 1 starts at row 16."""
    found = small.visual(film(4, 64, 96))
    start, end = small.config.vision_start_token_id, small.config.vision_end_token_id
    head = small.encode_piece("<0.2 seconds>")
    assert found.tile_rows == 16
    one = [*head, start, *[small.config.video_token_id] * 6, end]
    assert found.tokens[: len(one)].tolist() == one
    text = [-1] * (len(head) + 1)
    assert found.rows.tolist() == [*text, *range(6), -1, *text, *range(16, 22), -1]
    assert found.frames.tolist() == [*text, *[0] * 6, -1, *text, *[1] * 6, -1]
    assert (found.places[found.rows < 0] == -1).all()
    assert found.places[len(text)].tolist() == [0.25, np.float32(0.5 / 3)]


@pytest.mark.parametrize(
    ("indices", "fps", "expected"),
    [
        ([0, 3, 6, 9], 5, ["0.3", "1.5"]),
        (range(10), 5, ["0.1", "0.5", "0.9", "1.3", "1.7"]),
        ([0, 14, 28], 25, ["0.3", "1.1"]),  # the last of an odd number stands twice
    ],
)
def test_times(small, indices, fps, expected):
    seconds = tuple(k / fps for k in indices)
    found = small.visual(Video(film(len(seconds), 64, 64).pictures, seconds))
    text = small.tokenizer.decode(found.tokens[found.rows < 0], skip_special_tokens=True)
    assert text == "".join(f"<{time} seconds>" for time in expected)


def published_video_text(processor, frames: int, rows: int, columns: int, indices, fps) -> str:
    """What transformers puts in the place of one <|video_pad|>."""
    from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor as Published

    published = object.__new__(Published)  # its __init__ asks for torchvision
    published.video_token, published.vision_start_token = "<|video_pad|>", "<|vision_start|>"
    published.vision_end_token = "<|vision_end|>"
    published.video_processor = SimpleNamespace(merge_size=2, temporal_patch_size=2)
    inputs = {
        "video_grid_thw": np.array([[frames, 2 * rows, 2 * columns]]),
        "video_metadata": [SimpleNamespace(fps=fps, frames_indices=list(indices))],
    }
    return Published.replace_video_token(published, inputs, 0)


@pytest.mark.parametrize("which", ["small", "real"])
@pytest.mark.parametrize(("indices", "fps"), [([0, 3, 6, 9], 5), ([0, 1, 2], 30), ([0, 9], 24)])
def test_video_ids_equal_transformers(request, which, indices, fps):
    """B1: the marks of the template stay around the whole video; 4.57 drops that pair."""
    processor = request.getfixturevalue(which)
    video = Video(film(len(indices), 64, 96).pictures, tuple(k / fps for k in indices))
    found = processor.visual(video)
    text = published_video_text(processor, len(found.tiles), 2, 3, indices, fps)
    lengths = []
    for version, around in (("v5", ("<|vision_start|>", "<|vision_end|>")), ("4.57", ("", ""))):
        ours = dataclasses.replace(processor, video_prompt=version)
        ids = ours.encode(ours.prompt("What?", 0, 1))
        at = ids.index(ours.placeholder("video"))
        expanded = [*ids[:at], *found.tokens.tolist(), *ids[at + 1 :]]
        assert expanded == ours.encode(QUESTION.format(text.join(around)))
        lengths.append(len(expanded))
    assert lengths[0] == lengths[1] + 2


def test_image_ids_equal_transformers(real):
    ids = real.encode(real.prompt("What?", 2))
    marked = "<|vision_start|><|image_pad|><|vision_end|>"
    assert ids == real.encode(QUESTION.format(marked * 2))
    assert ids[:3] == [151644, 872, 198]
    assert ids.count(151655) == 2
    assert ids[3:6] == [151652, 151655, 151653]


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 7), st.integers(1, 300), st.integers(1, 300))
def test_tokens_of_random_videos_are_those_that_are_packed(small, n, height, width):
    """Counter == packing: as many pads as patches / 4, and every row a real patch's."""
    video = Video(np.zeros((n, height, width, 3), np.uint8), tuple(map(float, range(n))))
    if max(height, width) > 200 * min(height, width):
        return
    found = small.visual(video)
    size = video_size(n, height, width, 32, 2, 4096, 25165824)
    frames = -(-n // 2)
    assert (found.tokens == small.config.video_token_id).sum() == (
        frames * size[0] * size[1] // 1024
    )
    assert len(found.grids) == len(found.tiles) == frames
    seen = found.rows[found.rows >= 0]
    assert len(seen) == found.grids.prod(1).sum() == found.tiles.counts.sum() // 4
    assert (seen % found.tile_rows < found.tiles.counts[seen // found.tile_rows] // 4).all()
    positions = small.positions(found.tokens, found.grids)
    assert positions.shape == (len(found.tokens), 3)


def test_positions_are_recomputed_from_the_ids(small):
    image, video = small.visual(noise(64, 96)), small.visual(film(3, 64, 64))
    text = np.array(small.encode_piece("ab"), np.int32)
    tokens = np.concatenate([text, image.tokens, text, video.tokens, text])
    found = small.positions(tokens, np.concatenate([image.grids, video.grids]))
    assert found[:2, 0].tolist() == [0, 1]
    assert found[2:8].tolist() == [[2, 2 + r, 2 + c] for r in range(2) for c in range(3)]
    assert found[8:10, 0].tolist() == [5, 6]
    n = (found[:, 0] != found[:, 2]).sum()  # columns 1, 2 of the picture and 1 of each frame
    assert n == 4 + 2 * 2


def test_answers_end_with_the_turn(small):
    ids = small.encode_answer("Two")
    assert small.decode(ids) == "Two"
    assert ids[-1] == small.config.eos_token_ids[0]


def test_filler_rows_and_vision_tokens_are_never_drawn(real, small):
    for processor in (real, small):
        config, drawable = processor.config, processor.drawable
        assert drawable.shape == (config.text.vocab_size,)
        assert not drawable[processor.vocab_limit :].any()
        names = ("vision_start", "vision_end", "vision_pad", "image_pad", "video_pad")
        marks = processor.tokenizer.convert_tokens_to_ids([f"<|{name}|>" for name in names])
        assert not drawable[marks].any()
        assert drawable[list(config.eos_token_ids)].all()
        assert drawable.sum() == processor.vocab_limit - 5
    assert real.vocab_limit == 151669


def test_empty_tiles_have_the_form_of_a_picture(small):
    empty, full = small.empty_tiles(), small.base_tile(noise(64, 64))
    assert len(empty) == 0
    for name, value in vars(full).items():
        assert getattr(empty, name).shape[1:] == value.shape[1:]
        assert getattr(empty, name).dtype == value.dtype


def test_refused_pictures(small):
    with pytest.raises(UserError, match="expected uint8"):
        small.visual(np.zeros((4, 4, 3), np.float32))
    with pytest.raises(UserError, match=r"got 1x201 \(h x w\)"):
        small.visual(np.zeros((1, 201, 3), np.uint8))
    wide = dataclasses.replace(small.image, max_pixels=10**9, min_pixels=18_000_000)
    with pytest.raises(UserError, match="at most 65536 patches"):
        dataclasses.replace(small, image=wide).visual(np.zeros((4, 4, 3), np.uint8))


def test_works_without_torch_and_video_decoder(folder):
    code = """
import sys
sys.modules.update(torch=None, torchvision=None, av=None)
import numpy as np
from tiger_jax.data.processor import Processor
from tiger_jax.data.videos import Video
processor = Processor.from_folder(sys.argv[1])
assert len(processor.visual(np.zeros((40, 50, 3), np.uint8)).tokens) == 72
processor.visual(Video(np.zeros((2, 40, 50, 3), np.uint8), (0.0, 0.5)))
"""
    command = [sys.executable, "-c", code, str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
