"""Sharded files: written for any reader, read with one host tensor alive, faults named."""

import json
import weakref

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch

from tiger_jax.errors import UserError
from tiger_jax.weights import safetensors_io
from tiger_jax.weights.safetensors_io import TensorHeader


def random_tensors(dtypes=("float32", "float16", "bfloat16")) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        f"w.{i}": rng.normal(size=(i + 1, 3)).astype(safetensors_io.numpy_dtype(dtypes[i % 3]))
        for i in range(12)
    }


def write(folder, tensors, **limits):
    headers = [
        TensorHeader(name, folder, value.shape, value.dtype.name) for name, value in tensors.items()
    ]
    safetensors_io.write_folder(folder, headers, tensors.__getitem__, **limits)


@pytest.mark.parametrize("limit", [1, 100, 10**9])
def test_written_folders_read_back_bit_exact(tmp_path, limit):
    tensors = random_tensors()
    write(tmp_path, tensors, max_shard_bytes=limit)
    headers = safetensors_io.read_headers(tmp_path)
    assert {h.name: (h.shape, h.dtype) for h in headers} == {
        name: (value.shape, value.dtype.name) for name, value in tensors.items()
    }
    wanted = [(h.file, h.name) for h in headers]
    for _, name, value in safetensors_io.iterate_tensors(wanted):
        assert value.dtype == tensors[name].dtype
        assert value.tobytes() == tensors[name].tobytes()


def test_the_official_readers_accept_the_files(tmp_path):
    tensors = random_tensors()
    write(tmp_path, tensors)
    file = tmp_path / "model.safetensors"
    for name, value in safetensors.numpy.load_file(file).items():
        assert value.tobytes() == tensors[name].tobytes()
    assert safetensors.torch.load_file(file).keys() == tensors.keys()
    with safetensors.safe_open(file, framework="numpy") as shard:
        assert shard.metadata() == {"format": "pt"}  # older transformers refuse it without


def test_index_counts_bytes_and_names_every_shard(tmp_path):
    tensors = random_tensors()
    write(tmp_path, tensors, max_shard_bytes=100)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(value.nbytes for value in tensors.values())
    assert index["weight_map"].keys() == tensors.keys()
    files = sorted({*index["weight_map"].values()})
    assert files == sorted(file.name for file in tmp_path.glob("*.safetensors"))
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"


def test_shards_fill_in_order_up_to_the_limit(tmp_path):
    sizes = {"a": 10, "b": 20, "c": 100, "d": 5}
    headers = [TensorHeader(name, tmp_path, (size,), "float16") for name, size in sizes.items()]
    shards = safetensors_io.plan_shards(headers, 60)
    assert [[tensor.name for tensor in shard] for shard in shards] == [["a", "b"], ["c"], ["d"]]


def test_one_host_tensor_is_alive_at_a_time(tmp_path):
    """Reading and writing: each tensor is gone before the next one comes."""
    alive = []

    def fetch(name):
        assert not any(reference() is not None for reference in alive)
        value = np.zeros((100,), np.float32)
        alive.append(weakref.ref(value))
        return value

    headers = [TensorHeader(f"w{i}", tmp_path, (100,), "float32") for i in range(20)]
    safetensors_io.write_folder(tmp_path, headers, fetch, max_shard_bytes=4000)
    assert len(alive) == 20
    wanted = [(h.file, h.name) for h in safetensors_io.read_headers(tmp_path)]
    assert len(wanted) == 20
    last = None
    for _, _, value in safetensors_io.iterate_tensors(wanted):
        assert last is None or last() is None
        last = weakref.ref(value)
        del value


def test_a_writer_that_is_handed_the_wrong_array_stops(tmp_path):
    header = TensorHeader("w", tmp_path, (2,), "bfloat16")
    with pytest.raises(ValueError, match="w: expected"):
        safetensors_io.write_folder(tmp_path, [header], lambda _: np.zeros(2, np.float32))
    good = np.ones(2, ml_dtypes.bfloat16)
    safetensors_io.write_folder(tmp_path, [header], lambda _: good)


def test_broken_folders_are_named(tmp_path):
    def fails(match):
        with pytest.raises(UserError, match=match) as caught:
            safetensors_io.read_headers(tmp_path)
        assert "\n" not in str(caught.value)
        assert str(tmp_path) in str(caught.value)

    fails("expected model.safetensors or model.safetensors.index.json, found neither$")
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    fails("bin files are not read")
    single = tmp_path / "model.safetensors"
    single.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    fails("truncated or not a safetensors file")
    single.unlink()
    write(tmp_path, random_tensors())
    single.write_bytes(single.read_bytes()[:-1])
    fails("truncated or not a safetensors file")
    single.unlink()
    write(tmp_path, random_tensors(), max_shard_bytes=100)
    single.write_bytes(b"x")
    fails("holds both")
    single.unlink()
    (tmp_path / "model-00002-of-00005.safetensors").unlink(missing_ok=True)
    next(tmp_path.glob("model-00001-*")).unlink()
    fails("names shards that are not in the folder: model-00001")
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": 3}')
    fails("expected JSON with a weight_map")


def test_a_source_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match="expected a checkpoint folder or file, found neither"):
        safetensors_io.read_headers(tmp_path / "absent")
