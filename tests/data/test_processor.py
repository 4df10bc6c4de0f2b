"""Tokens and pixels against transformers' own processor on the same folder, and without torch."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from tiger_jax.data.processor import Processor, _family_of
from tiger_jax.data.videos import VideoSampling
from tiger_jax.errors import UserError
from tiger_jax.models.image_geometry import count_image_tokens, count_tiles

SIZES = [(112, 112), (112, 224), (224, 112), (50, 60), (3, 50), (1, 1), (400, 37), (131, 97)]


def noise(height: int, width: int) -> Image.Image:
    rng = np.random.default_rng(height * 1000 + width)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.fixture(scope="module")
def reference(tiny_folder):
    from transformers import LlavaNextProcessor

    return LlavaNextProcessor.from_pretrained(tiny_folder)


@pytest.mark.parametrize("size", SIZES)
def test_tiles_equal_transformers(processor, reference, size):
    image = noise(*size)
    expected = reference.image_processor(
        [np.asarray(image)], input_data_format="channels_last", return_tensors="np"
    )
    tiles, (height, width) = processor.tiles(image)
    assert (height, width) == size == tuple(expected["image_sizes"][0])
    assert tiles.shape == (count_tiles(*size, processor.config), 112, 112, 3)
    np.testing.assert_allclose(
        tiles.transpose(0, 3, 1, 2), expected["pixel_values"][0], rtol=0, atol=1e-6
    )


def test_token_ids_equal_transformers(processor, reference):
    image = noise(100, 60)
    text = "USER: <image>\nWhat color is the star? ASSISTANT:"
    expected = reference(images=[image], text=text, return_tensors="np")["input_ids"][0]
    ids = processor.encode(text)
    at = ids.index(processor.config.image_token_id)
    count = count_image_tokens(100, 60, processor.config)
    assert [*ids[:at], *[ids[at]] * count, *ids[at + 1 :]] == expected.tolist()


def test_counts_equal_transformers_on_200_sizes(processor, reference):
    rng = np.random.default_rng(1)
    sizes = [tuple(map(int, size)) for size in np.exp(rng.uniform(0, 8, (200, 2))).astype(int)]
    expected = reference._get_num_multimodal_tokens(image_sizes=sizes)["num_image_tokens"]
    assert [count_image_tokens(*size, processor.config) for size in sizes] == expected


def test_fitted_tile_has_black_borders_and_squashed_base_has_none(processor):
    """White 56x112 (h x w): it fills the 112x112 grid's middle half, rows 28..83."""
    tiles, _ = processor.tiles(Image.new("RGB", (300, 100), "white"))
    black = [-1.7923, -1.7521, -1.4802]
    assert tiles.shape[0] == 4  # base and the 112x336 grid
    np.testing.assert_allclose(
        tiles[1, 0, 0], processor.normalise(np.full((1, 1, 3), 255, np.uint8))[0, 0]
    )
    tiles, _ = processor.tiles(Image.new("RGB", (112, 56), "white"))
    np.testing.assert_allclose(tiles[1, 0, 0], black, atol=1e-4)
    assert (tiles[1, 28:84] > 1.9).all()
    assert (tiles[0] > 1.9).all()


def test_normalise_equals_the_base_tile(processor):
    image = noise(112, 112)
    tiles, _ = processor.tiles(image)
    np.testing.assert_allclose(processor.normalise(np.asarray(image)), tiles[0], atol=1e-6)


def test_wrong_pixels_are_refused(processor):
    with pytest.raises(UserError, match="expected uint8"):
        processor.tiles(np.zeros((4, 4, 3), np.float32))


@pytest.mark.parametrize(
    "text",
    ["a red star", "héllo wörld 你好 😀", "tab\t  two  spaces\n", "\x00\x7f USER: 12345 ?!{}"],
)
def test_any_text_survives_the_tokenizer(processor, text):
    assert processor.decode(processor.encode(text)) == text


def test_bos_is_never_doubled(processor):
    ids = processor.encode("a star")
    assert ids[0] == processor.config.bos_token_id
    assert processor.encode("<s>a star") == ids
    assert processor.encode_piece("a star") == ids[1:]


def test_filler_rows_and_placeholders_are_never_drawn(processor):
    config, drawable = processor.config, processor.drawable
    assert drawable.shape == (config.text.vocab_size,)
    assert not drawable[processor.vocab_limit :].any()
    assert not drawable[[config.image_token_id, config.pad_token_id]].any()
    assert drawable[list(config.eos_token_ids)].all()
    assert processor.decode([config.text.vocab_size - 1]) == ""


def test_each_configuration_has_its_processor(processor, qwen_processor):
    assert _family_of(processor.config) is type(processor)
    assert _family_of(qwen_processor.config) is type(qwen_processor)
    with pytest.raises(TypeError, match="expected LlavaNextConfig or Qwen3VLConfig, got Vision"):
        _family_of(processor.config.vision)


def test_how_videos_stand_in_a_prompt(processor, tiny_folder):
    assert processor.video_sampling == VideoSampling(2.0, 768, 4)
    with pytest.raises(UserError, match=r"expected v5 for a LLaVA model, .*, got 4\.57"):
        Processor.from_folder(tiny_folder, video_prompt="4.57")
    with pytest.raises(UserError, match=r"video_prompt: expected v5 or 4\.57, got 'v4'"):
        Processor.from_folder(tiny_folder, video_prompt="v4")


def test_folder_faults(tiny_folder, tmp_path):
    config = Processor.from_folder(tiny_folder).config
    broken = shutil.copytree(tiny_folder, tmp_path / "broken")
    settings = json.loads((broken / "preprocessor_config.json").read_text())
    settings["crop_size"] = {"height": 336, "width": 336}
    (broken / "preprocessor_config.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match="tiles of 112"):
        Processor.from_folder(broken)
    (broken / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match="unreadable tokenizer"):
        Processor.from_folder(broken)
    (broken / "tokenizer.json").unlink()
    with pytest.raises(UserError, match="found neither"):
        Processor.from_folder(broken, config)


def test_works_without_torch_and_starts_fast(tiny_folder):
    """A None in sys.modules is how Python says that a package is not installed."""
    code = """
import sys, time
sys.modules.update(torch=None, torchvision=None)
from tiger_jax.data.processor import Processor
from tiger_jax.data.prompts import build_prompt
assert "transformers" not in sys.modules  # imported only when a folder is read
start = time.process_time()
from PIL import Image
processor = Processor.from_folder(sys.argv[1])
seconds = time.process_time() - start
assert processor.tiles(Image.new("RGB", (112, 112)))[0].shape == (2, 112, 112, 3)
assert "USER:" in build_prompt(processor, "hi", 1)
print(seconds)
"""
    result = subprocess.run(
        [sys.executable, "-c", code, str(tiny_folder)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert float(result.stdout) < 6  # CPU seconds; about 2 alone on the machine
