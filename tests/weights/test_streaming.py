"""Conversion both ways holds little of a checkpoint in memory, loses nothing, and can be repeated.

A synthetic checkpoint of four shards goes Hugging Face -> Orbax -> Hugging Face in processes of
their own, whose peak memory is compared with that of a process that only imports the script.
"""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util
from orbax.checkpoint import v1 as ocp

from tests.assets import TINY_LLAVA
from tests.weights.test_convert_scripts import script
from tiger_jax.errors import UserError
from tiger_jax.models.interface import build_model
from tiger_jax.routing.router import RouterConfig, init_router
from tiger_jax.weights import load, orbax_io, original_config, safetensors_io
from tiger_jax.weights.llava_next_names import LLAVA_NEXT
from tiger_jax.weights.name_table import natural_order
from tiger_jax.weights.router_io import CONFIG_FILE, WEIGHTS_FILE, read_router, write_router

ROOT = Path(__file__).parents[2]
SHARD = 72 * 10**6
CONFIG = {
    "model_type": "llava_next",
    "image_token_index": 1000,
    "vision_config": {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 2, "image_size": 28, "patch_size": 14,
    },
    "text_config": {
        "vocab_size": 4096, "hidden_size": 768, "intermediate_size": 3072,
        "num_hidden_layers": 14, "num_attention_heads": 12,
    },
}  # fmt: skip
CHILD = """
import runpy, sys
main = runpy.run_path(sys.argv[1])["main"]
code = main(sys.argv[2:]) if len(sys.argv) > 2 else 0
status = open("/proc/self/status").read()
print(status.split("VmHWM:")[1].split()[0])
sys.exit(code)
"""
# VmHWM and not ru_maxrss: Linux hands the latter down from the process that started this one.


def peak_bytes(name: str, *args: str | Path) -> int:
    """Peak memory of a process that imports a script of convert/, and runs it if given args."""
    path = str(ROOT / "convert" / f"{name}.py")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, path, *map(str, args)], env=environment,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return 1024 * int(done.stdout.split()[-1])


def write_source(folder: Path) -> None:
    """Four shards of random bfloat16 (which no compression makes small), one tensor at a time."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    shapes = build_model(original_config.read_config(folder)).abstract_params()
    headers = [
        safetensors_io.TensorHeader(name, folder, entry.hf_shape, "bfloat16")
        for name, entry in sorted(
            LLAVA_NEXT.entries(shapes).items(), key=lambda item: natural_order(item[0])
        )
    ]
    shape_of = {header.name: header.shape for header in headers}
    rng = np.random.default_rng(0)

    def fetch(name):
        count = int(np.prod(shape_of[name]))
        return np.frombuffer(rng.bytes(2 * count), jnp.bfloat16).reshape(shape_of[name])

    safetensors_io.write_folder(folder, headers, fetch, max_shard_bytes=SHARD)


def digests(folder: Path) -> dict[str, tuple[str, str]]:
    """name -> (dtype, digest) of every tensor."""
    places = [(header.file, header.name) for header in safetensors_io.read_headers(folder)]
    return {
        name: (str(value.dtype), hashlib.sha256(value.tobytes()).hexdigest())
        for _, name, value in safetensors_io.iterate_tensors(places)
    }


def test_four_shards_convert_both_ways_in_the_memory_of_two(tmp_path):
    source, orbax, back = (tmp_path / name for name in ("source", "orbax", "back"))
    write_source(source)
    shards = sorted(path.name for path in source.glob("*.safetensors"))
    assert len(shards) == 4
    largest = max((source / name).stat().st_size for name in shards)
    total = sum((source / name).stat().st_size for name in shards)
    assert total > 3.5 * largest  # holding all of it would show
    there = peak_bytes("hf_to_orbax", source, orbax) - peak_bytes("hf_to_orbax")
    assert there <= 2 * largest, f"{there / largest:.2f} shards"
    limit = ("--max-shard-gb", SHARD / 1e9)
    again = peak_bytes("orbax_to_hf", orbax, back, *limit) - peak_bytes("orbax_to_hf")
    assert again <= 2 * largest, f"{again / largest:.2f} shards"
    assert digests(back) == digests(source)
    assert sorted(path.name for path in back.glob("*.safetensors")) == shards
    index = safetensors_io.INDEX_FILE
    assert (back / index).read_bytes() == (source / index).read_bytes()


@pytest.mark.parametrize("looks", [0, 2])
def test_a_router_survives_hf_to_orbax_to_hf(tmp_path, layout_a, looks):
    orbax, back = tmp_path / "orbax", tmp_path / "back"
    config = RouterConfig("tiger", 3, pooled_tokens=4, query="text_only", looks=looks, width=16)
    write_router(layout_a, config, init_router(jax.random.key(0), 32, looks, inner=16))
    assert script("hf_to_orbax").main([str(layout_a), str(orbax)]) == 0
    assert read_router(orbax, 32)[0] == config
    assert script("orbax_to_hf").main([str(orbax), str(back)]) == 0
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        assert (back / name).read_bytes() == (layout_a / name).read_bytes()


def test_half_a_router_is_one_line(tmp_path, layout_a, capsys):
    (layout_a / CONFIG_FILE).write_text("{}")
    assert script("hf_to_orbax").main([str(layout_a), str(tmp_path / "orbax")]) == 2
    assert f"{WEIGHTS_FILE}: expected it beside {CONFIG_FILE}" in capsys.readouterr().err


def test_the_embedded_drafter_comes_back_byte_for_byte(tmp_path):
    source, orbax, back = TINY_LLAVA / "tiger_drafter", tmp_path / "orbax", tmp_path / "back"
    assert script("hf_to_orbax").main([str(source), str(orbax)]) == 0
    assert script("orbax_to_hf").main([str(orbax), str(back)]) == 0
    names = {path.name for path in source.iterdir()}
    assert {path.name for path in back.iterdir()} == names
    for name in names - {"model.safetensors"}:
        assert (back / name).read_bytes() == (source / name).read_bytes()
    assert digests(back) == digests(source)


def test_groups_make_one_checkpoint(tmp_path, monkeypatch):
    """Group borders leave no trace: 9 tensors of 8 bytes in groups of 16, one of 80 alone."""
    flat = {f"layers_{i}/kernel": np.full((2,), i, np.float32) for i in range(9)}
    flat["layers_9/kernel"] = np.arange(20, dtype=np.float32)
    written, save = [], ocp.partial.save

    def counting(target, tree):
        written.append(len(jax.tree.leaves(tree)))
        save(target, tree)

    monkeypatch.setattr(ocp.partial, "save", counting)
    orbax_io.save_tensors(flat.items(), tmp_path, group_bytes=16)
    assert written == [2, 2, 2, 2, 1, 1]
    assert [path.name for path in tmp_path.iterdir()] == ["params"]
    stored = traverse_util.flatten_dict(ocp.load(tmp_path / "params"), sep="/")
    assert stored.keys() == flat.keys()
    for path, value in flat.items():
        np.testing.assert_array_equal(stored[path], value)


def test_a_broken_conversion_is_no_checkpoint_and_can_be_repeated(tmp_path, layout_a):
    config = original_config.read_config(layout_a)
    stored = load.open_params(layout_a, config)

    def breaks():
        for number, path in enumerate(stored.leaves):
            if number == 20:
                raise KeyboardInterrupt
            yield path, stored.read(path)

    with pytest.raises(KeyboardInterrupt):
        orbax_io.save_tensors(breaks(), tmp_path / "orbax", group_bytes=1000)
    assert list((tmp_path / "orbax").iterdir())
    assert not orbax_io.is_orbax_folder(tmp_path / "orbax")
    tensors = ((path, stored.read(path)) for path in stored.leaves)
    orbax_io.save_tensors(tensors, tmp_path / "orbax")
    assert_same(load.load_params(tmp_path / "orbax", config), load.load_params(layout_a, config))
    assert [path.name for path in (tmp_path / "orbax").iterdir()] == ["params"]


def test_folders_that_were_saved_in_one_go_are_read(tmp_path, layout_a):
    """Of jax arrays, by orbax's plain save: whole, one by one, and in another dtype."""
    config = original_config.read_config(layout_a)
    params = load.load_params(layout_a, config)
    ocp.save(tmp_path / "orbax" / "params", params)
    assert_same(load.load_params(tmp_path / "orbax", config), params)
    stored = load.open_params(tmp_path / "orbax", config, dtype="bfloat16")
    for path, value in traverse_util.flatten_dict(params, sep="/").items():
        got = stored.read(path)
        assert isinstance(got, np.ndarray)
        assert got.dtype == stored.leaves[path].dtype == jnp.bfloat16
        np.testing.assert_array_equal(got, np.asarray(value.astype(jnp.bfloat16)))


def test_what_came_from_the_host_restores_sharded(tmp_path, layout_a):
    """What the converter wrote goes straight into a mesh."""
    config = original_config.read_config(layout_a)
    stored = load.open_params(layout_a, config)
    orbax_io.save_tensors(((p, stored.read(p)) for p in stored.leaves), tmp_path / "orbax")
    mesh = jax.sharding.Mesh(jax.devices(), ("all",))
    spec = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    params = load.load_params(tmp_path / "orbax", config, shardings=spec)
    assert {leaf.sharding for leaf in jax.tree.leaves(params)} == {spec}
    assert_same(params, load.load_params(layout_a, config))


def assert_same(got, wanted):
    got, wanted = (traverse_util.flatten_dict(tree, sep="/") for tree in (got, wanted))
    assert got.keys() == wanted.keys()
    for path, value in wanted.items():
        assert got[path].dtype == value.dtype
        np.testing.assert_array_equal(np.asarray(got[path]), np.asarray(value))


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path, layout_a, capsys, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ocp.partial, "save", full)
    assert script("hf_to_orbax").main([str(layout_a), str(tmp_path / "orbax")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "params: cannot be written ([Errno 28] No space left on device)" in error
    monkeypatch.setattr(Path, "open", full)
    header = safetensors_io.TensorHeader("x", tmp_path, (2,), "float32")
    with pytest.raises(UserError, match=r"model.safetensors: cannot be written \(\[Errno 28\]"):
        safetensors_io.write_folder(tmp_path, [header], lambda name: np.zeros(2, np.float32))
