"""The scripts of convert/, run as a person runs them (in this process, to spare the start)."""

import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
import safetensors.torch
import torch
from PIL import Image

from tiger_jax.data.scene_folder import write_tiny_folder
from tiger_jax.models.config_reader import read_config
from tiger_jax.models.interface import build_model
from tiger_jax.weights.export import save_hf_folder

CONVERT = Path(__file__).parents[2] / "convert"


def script(name: str):
    spec = importlib.util.spec_from_file_location(name, CONVERT / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_hf_to_orbax_and_back_gives_the_same_bytes(tmp_path, layout_a):
    orbax, back = str(tmp_path / "orbax"), str(tmp_path / "back")
    (layout_a / "tokenizer.json").write_text("{}")
    assert script("hf_to_orbax").main([str(layout_a), orbax]) == 0
    assert script("orbax_to_hf").main([orbax, back, "--max-shard-gb", "1e-4"]) == 0
    before = safetensors.torch.load_file(layout_a / "model.safetensors")
    after = {}
    for file in (tmp_path / "back").glob("*.safetensors"):
        after |= safetensors.torch.load_file(file)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    for name in ("config.json", "tokenizer.json"):
        assert (tmp_path / "back" / name).read_bytes() == (layout_a / name).read_bytes()


def test_an_original_folder_converts_with_a_cast(tmp_path, write_layout):
    source = write_layout(tmp_path / "source", "O")
    orbax, back = str(tmp_path / "orbax"), str(tmp_path / "back")
    assert script("hf_to_orbax").main([str(source), orbax, "--dtype", "bfloat16"]) == 0
    assert script("orbax_to_hf").main([orbax, back]) == 0
    tensors = safetensors.torch.load_file(tmp_path / "back" / "model.safetensors")
    assert {weight.dtype for weight in tensors.values()} == {torch.bfloat16}


@pytest.fixture
def complete_folder(layout_a, processor):
    processor.save_pretrained(layout_a)
    processor.image_processor.save_pretrained(layout_a)
    return layout_a


def test_parity_holds_at_text_and_image_positions(complete_folder, capsys):
    """Also the proof of the whole table: an exchanged pair of weights would change the logits."""
    assert script("check_parity").main([str(complete_folder)]) == 0
    table = capsys.readouterr().out.splitlines()
    counts = {line.split()[0]: int(line.split()[1]) for line in table[1:4]}
    # 36x53 pixels in the 56x56 canvas: 2x2 base rows, 2 of 4 lines of 4 rows, a newline each
    assert counts["image"] == 4 + 2 * (4 + 1)
    assert counts["text"] + counts["image"] == counts["all"]
    assert table[-1].startswith("equal within 5e-06")


def test_parity_with_two_pictures_in_bfloat16(tmp_path, complete_folder, capsys):
    for name, size in (("wide", (90, 20)), ("small", (9, 13))):
        Image.new("RGB", size, "red").save(tmp_path / f"{name}.png")
    images = ["--image", str(tmp_path / "wide.png"), str(tmp_path / "small.png")]
    options = ["--dtype", "bfloat16", "--tolerance", "3e-2", "--prompt", "word1 word2"]
    assert script("check_parity").main([str(complete_folder), *images, *options]) == 0
    assert "equal within 0.03" in capsys.readouterr().out


def test_parity_of_the_other_family(tmp_path, capsys):
    """Its pictures through either side's own processor."""
    source = write_tiny_folder(tmp_path / "files", role="drafter", pair="tiny_qwen3_vl")
    params = build_model(read_config(source)).init_params(jax.random.key(0), jnp.float32)
    save_hf_folder(params, source, tmp_path / "model")
    for name, size in (("wide", (90, 20)), ("tall", (50, 130))):
        Image.new("RGB", size, "red").save(tmp_path / f"{name}.png")
    images = ["--image", str(tmp_path / "wide.png"), str(tmp_path / "tall.png")]
    assert script("check_parity").main([str(tmp_path / "model"), *images]) == 0
    table = capsys.readouterr().out.splitlines()
    counts = {line.split()[0]: int(line.split()[1]) for line in table[1:4]}
    assert counts["text"] + counts["image"] == counts["all"]
    assert counts["image"] > 8
    assert table[-1].startswith("equal within 5e-06")


def test_parity_that_fails_exits_with_one(complete_folder, capsys):
    assert script("check_parity").main([str(complete_folder), "--tolerance", "1e-12"]) == 1
    assert "NOT equal within 1e-12" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["hf_to_orbax", "orbax_to_hf"])
def test_bad_input_is_one_line_and_exit_code_two(tmp_path, capsys, name):
    absent = tmp_path / "absent"
    assert script(name).main([str(absent), str(tmp_path / "out")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith(f"{name}: {absent}: expected a checkpoint folder")


def test_parity_on_bad_input_is_one_line_and_exit_code_two(complete_folder, capsys):
    absent = str(complete_folder / "no.png")
    assert script("check_parity").main([str(complete_folder), "--image", absent]) == 2
    assert capsys.readouterr().err.count("\n") == 1
