"""What Qwen3-VL's processor reads in a folder's settings, and what it refuses there."""

import json
import shutil

import numpy as np
import pytest

from tests.qwen3_folder import IMAGE, VIDEO, write_qwen3_folder
from tiger_jax.data.processor import Processor
from tiger_jax.data.videos import VideoSampling
from tiger_jax.errors import UserError

QUESTION = "<|im_start|>user\n{}What?<|im_end|>\n<|im_start|>assistant\n"
MARKED = "<|vision_start|><|video_pad|><|vision_end|>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_qwen3_folder(tmp_path_factory.mktemp("qwen") / "tiny")


def rewrite(folder, name, **changes):
    path = folder / f"{name}.json"
    raw = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in raw.items() if v is not None}))


def test_settings_are_read_and_never_defaults(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    rewrite(copy, "preprocessor_config", size={"shortest_edge": 1024, "longest_edge": 9216},
            image_mean=[0.1, 0.2, 0.3])  # fmt: skip
    processor = Processor.from_folder(copy)
    assert processor.visual(np.zeros((640, 640, 3), np.uint8)).grids.tolist() == [[3, 3]]
    assert processor.image.mean == (0.1, 0.2, 0.3)
    assert processor.video.max_pixels == 25165824
    rewrite(copy, "preprocessor_config", max_pixels=4096)
    assert Processor.from_folder(copy).image.max_pixels == 4096

    (copy / "video_preprocessor_config.json").unlink()
    video = Processor.from_folder(copy).video
    assert (video.min_pixels, video.max_pixels) == (4096, 25165824)
    assert video.mean == (0.1, 0.2, 0.3)


def test_settings_inside_processor_config(folder, tmp_path):
    """As transformers 5 saves them."""
    copy = shutil.copytree(folder, tmp_path / "copy")
    for name in ("preprocessor_config", "video_preprocessor_config"):
        (copy / f"{name}.json").unlink()
    with pytest.raises(UserError, match=r"preprocessor_config\.json: file not found"):
        Processor.from_folder(copy)
    own = {"shortest_edge": 1, "longest_edge": 2}
    nested = {"image_processor": IMAGE, "video_processor": VIDEO | {"size": own}}
    (copy / "processor_config.json").write_text(json.dumps(nested))
    processor = Processor.from_folder(copy)
    assert processor.image.max_pixels == 16777216
    assert processor.video.max_pixels == 2


def test_sampling_of_the_folder(folder, tmp_path, qwen_processor):
    """Where it says nothing, what is published: 2 a second, 4 to 768 of them."""
    assert Processor.from_folder(folder).video_sampling == VideoSampling(2.0, 768, 4)
    assert qwen_processor.video_sampling == VideoSampling(2.0, 64, 4)
    copy = shutil.copytree(folder, tmp_path / "copy")
    rewrite(copy, "video_preprocessor_config", fps=1, max_frames=32)
    assert Processor.from_folder(copy).video_sampling == VideoSampling(1.0, 32, 4)
    rewrite(copy, "video_preprocessor_config", fps=None, min_frames=8)
    assert Processor.from_folder(copy).video_sampling == VideoSampling(2.0, 32, 8)
    for name, value, message in [
        ("fps", 0, "fps: expected a number in 1e-06..1000000, got 0"),
        ("max_frames", 0, "max_frames: expected a whole number in 1..1536, got 0"),
        ("min_frames", "few", "min_frames: expected a whole number in 1..1536, got 'few'"),
        ("num_frames", 8, "expected fps, got num_frames=8"),
    ]:
        rewrite(copy, "video_preprocessor_config", **{"fps": 1, "max_frames": 9, name: value})
        with pytest.raises(UserError, match=rf"video_preprocessor_config\.json: {message}"):
            Processor.from_folder(copy)


def test_video_prompt_of_the_folder(folder):
    """4.57 has the marks around each frame only."""
    five, four = (Processor.from_folder(folder, video_prompt=v) for v in ("v5", "4.57"))
    assert five.prompt("What?", 0, 1) == QUESTION.format(MARKED)
    assert four.prompt("What?", 0, 1) == QUESTION.format("<|video_pad|>")
    with pytest.raises(UserError, match=r"video_prompt: expected v5 or 4\.57, got '5'"):
        Processor.from_folder(folder, video_prompt="5")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"patch_size": 14}, "expected patch_size 16"),
        ({"merge_size": None}, "expected merge_size 2 as in config.json, got None"),
        ({"size": {"height": 5}}, "shortest_edge"),
        ({"image_mean": None}, "image_mean"),
        ({"image_mean": [0.5]}, "image_mean"),
        ({"size": {"shortest_edge": "a", "longest_edge": 5}}, "got TypeError"),
        ({"size": {"shortest_edge": 0, "longest_edge": 5}}, "expected 0 < shortest_edge"),
        ({"size": {"shortest_edge": 6, "longest_edge": 5}}, "<= longest_edge, got 6 and 5"),
        ({"image_std": [0.5, 0.0, 0.5]}, "image_std above 0"),
        ({"size": 224}, "shortest_edge"),
        ({"resample": 99}, "got ValueError"),
        ({"rescale_factor": 1.0}, "expected rescale_factor 1/255, got 1.0"),
        ({"do_rescale": False}, "do_rescale=false"),
    ],
)
def test_settings_that_do_not_fit(folder, tmp_path, changes, message):
    for name in ("preprocessor_config", "video_preprocessor_config"):
        copy = shutil.copytree(folder, tmp_path / name)
        rewrite(copy, name, **changes)
        with pytest.raises(UserError, match=message) as caught:
            Processor.from_folder(copy)
        assert f"{name}.json" in str(caught.value)


def test_tokenizer_without_vision_tokens(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    rewrite(copy, "config", video_token_id=290)
    with pytest.raises(UserError, match="expected the vision tokens"):
        Processor.from_folder(copy)
