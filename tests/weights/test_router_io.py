"""The router's two files: what is written is read, and everything else is one clear line."""

import json

import jax
import numpy as np
import pytest
import safetensors.numpy

from tiger_jax.errors import UserError
from tiger_jax.routing.router import RouterConfig, init_router
from tiger_jax.weights.router_io import CONFIG_FILE, WEIGHTS_FILE, read_router, write_router

CONFIG = RouterConfig("tiger", routed_tokens=3, pooled_tokens=4, query="text_only", looks=2)


@pytest.fixture
def folder(tmp_path):
    write_router(tmp_path, CONFIG, router())
    return tmp_path


def router():
    return init_router(jax.random.key(0), 4, looks=2)


def test_round_trip(folder):
    config, params = read_router(folder, width=4)
    assert config == CONFIG
    jax.tree.map(np.testing.assert_array_equal, params, router())


def test_on_disk_as_torch_has_it(folder):
    """[out, in]: the transpose of ours."""
    tensors = safetensors.numpy.load_file(folder / WEIGHTS_FILE)
    np.testing.assert_array_equal(tensors["query.weight"], router()["query"]["kernel"].T)
    np.testing.assert_array_equal(tensors["key.weight"], router()["key"]["kernel"].T)
    out = router()["look_1"]["out"]["kernel"]
    np.testing.assert_array_equal(tensors["look_1.out.weight"], out.T)
    assert len(tensors) == 3 + 2 * 4
    assert json.loads((folder / CONFIG_FILE).read_text()) == {
        "format_version": 1, "selector": "tiger", "routed_tokens": 3, "pooled_tokens": 4,
        "query": "text_only", "looks": 2, "gate": "none", "width": 0,
    }  # fmt: skip


def test_others_may_read_the_weights(folder):
    """As its neighbours: what the umask allows, no less."""
    modes = {file.name: file.stat().st_mode for file in folder.iterdir()}
    assert modes[WEIGHTS_FILE] == modes[CONFIG_FILE]


def test_no_router(tmp_path):
    assert read_router(tmp_path) is None


@pytest.mark.parametrize("name", [CONFIG_FILE, WEIGHTS_FILE])
def test_half_a_router(folder, name):
    (folder / name).unlink()
    with pytest.raises(UserError, match=f"{name}: expected it beside"):
        read_router(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 2}, "expected format_version 1, got 2"),
        ({"format_version": None}, "expected format_version 1, got None"),
        ({"hops": 1}, "expected only the fields selector.*, got hops"),
        ({"selector": "best"}, "tiger_config.json: selector: expected one of"),
        ({"routed_tokens": "8"}, "routed_tokens: expected a whole number, got '8'"),
        ({"routed_tokens": True}, "routed_tokens: expected a whole number, got True"),
        ({"gate": 1}, "gate: expected a text, got 1"),
        ({"routed_tokens": 0}, "expected at least 1, got 0"),
    ],
)
def test_config_faults(folder, change, message):
    file = folder / CONFIG_FILE
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(UserError, match=message):
        read_router(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key.weight": None}, "missing: key.weight"),
        ({"look_1.out.weight": None}, "missing: look_1.out.weight"),
        ({"look_2.out.weight": np.ones((4, 4), np.float32)}, "unexpected: look_2.out.weight"),
        ({"gate.weight": np.ones(4, np.float32)}, "unexpected: gate.weight"),
        ({"query.weight": np.ones((4, 5), np.float32)},
         r"query.weight: expected shape \(4, 4\), got \(4, 5\)"),
        ({"saliency": np.ones((4, 1), np.float32)}, r"saliency: expected shape \(4,\)"),
        ({"saliency": np.ones(4, np.int32)}, "saliency: expected floating point"),
    ],
)  # fmt: skip
def test_tensor_faults(folder, change, message):
    tensors = safetensors.numpy.load_file(folder / WEIGHTS_FILE) | change
    kept = {name: value for name, value in tensors.items() if value is not None}
    safetensors.numpy.save_file(kept, folder / WEIGHTS_FILE)
    with pytest.raises(UserError, match=message):
        read_router(folder)


def test_another_width(folder):
    with pytest.raises(UserError, match=r"expected shape \(8, 8\), got \(4, 4\)"):
        read_router(folder, width=8)


def test_a_cut_file(folder):
    file = folder / WEIGHTS_FILE
    file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(UserError, match="truncated or not a safetensors file"):
        read_router(folder)
