"""A folder's fingerprint follows its weights and its config, and nothing else."""

import pytest

from tiger_jax.errors import UserError
from tiger_jax.weights.fingerprint import fingerprint


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(bytes(range(256)) * 1024)
    return tmp_path


def test_other_files_do_not_matter(folder):
    before = fingerprint(folder)
    (folder / "tokenizer.json").write_text("{}")
    assert fingerprint(folder) == before
    assert len(before) == 16
    int(before, 16)


@pytest.mark.parametrize("place", [0, 1000, 65536 + 5, 3 * 65536, 256 * 1024 - 1])
def test_any_byte_of_small_weights_matters(folder, place):
    before = fingerprint(folder)
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[place] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    assert fingerprint(folder) != before


def test_config_names_and_lengths_matter(folder):
    found = [fingerprint(folder)]
    (folder / "config.json").write_text('{"a": 1}')
    found.append(fingerprint(folder))
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    found.append(fingerprint(folder))
    with (folder / "other.safetensors").open("ab") as file:
        file.write(b"x")
    found.append(fingerprint(folder))
    assert len(set(found)) == 4


def test_no_weights(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match="safetensors"):
        fingerprint(tmp_path)


def test_no_config(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"x")
    with pytest.raises(UserError, match=r"config\.json"):
        fingerprint(tmp_path)
