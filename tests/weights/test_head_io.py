"""Our head folders: what is written is read to the bit, and everything else is one clear line."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from flax import traverse_util

from tiger_jax.errors import UserError
from tiger_jax.models.head import DraftHead, HeadConfig
from tiger_jax.routing.head_router import init_head_router
from tiger_jax.routing.router import RouterConfig
from tiger_jax.weights.head_io import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    HeadFolder,
    is_head,
    read_head,
    write_head,
)

SIZES = {
    "hidden_size": 8, "vocab_size": 20, "num_layers": 8, "num_heads": 2, "num_kv_heads": 1,
    "head_dim": 4, "intermediate_size": 12,
}  # fmt: skip
ROUTER = RouterConfig("tiger", routed_tokens=3, query="text_only", looks=2)
DRAFT_IDS = np.array([1, 4, 7, 19], np.int32)


def make(config, router=None, **rest):
    """A head with random numbers everywhere: zeros or ones would hide a mix-up."""
    shapes = DraftHead(config).abstract_params()
    if router is not None:
        key = jax.random.key(0)
        query = rest.get("route_query", "input")
        shapes |= {"router": init_head_router(key, config, router, query)}
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32), shapes
    )
    return HeadFolder("tiger_head", config, params, router=router, **rest)


def narrow_routed():
    """Every kind of weight of an eagle2 layout: W = 4 of D = 8, and a router with two looks."""
    config = HeadConfig("eagle2", features=(2, 4, 8), visual="routed", width=4, **SIZES)
    return make(config, ROUTER, route_query="hidden")


def compact_eagle3():
    config = HeadConfig("eagle3", features=(2, 4, 5), visual="full", draft_vocab=4, **SIZES)
    return make(config, draft_ids=DRAFT_IDS)


def resampler():
    return make(HeadConfig("eagle2", visual="resampler", resampler_queries=3, **SIZES))


def medusa():
    """More than ten blocks: text order would put block 10 before block 2."""
    config = HeadConfig("medusa", 8, 20, 8, medusa_heads=11, rms_norm_eps=1e-6)
    return make(config)


ALL = [narrow_routed, compact_eagle3, resampler, medusa]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("build", ALL)
def test_round_trip(tmp_path, build, dtype):
    head = build()
    write_head(tmp_path / "new" / "folder", head, dtype)
    back = read_head(tmp_path / "new" / "folder")
    wanted = traverse_util.flatten_dict(head.params, sep="/")
    got = traverse_util.flatten_dict(back.params, sep="/")
    assert got.keys() == wanted.keys()
    for path, value in wanted.items():
        assert got[path].dtype == dtype, path
        np.testing.assert_array_equal(got[path], value.astype(dtype), err_msg=path)
    for name in ("method", "config", "router", "route_query", "route_every"):
        assert getattr(back, name) == getattr(head, name)
    assert hash(back.config) == hash(head.config)  # features must be a tuple again
    if head.draft_ids is None:
        assert back.draft_ids is None
    else:
        assert back.draft_ids.dtype == np.int32
        np.testing.assert_array_equal(back.draft_ids, DRAFT_IDS)


def test_a_second_trip_changes_no_byte(tmp_path):
    write_head(tmp_path / "a", narrow_routed())
    write_head(tmp_path / "b", read_head(tmp_path / "a"))
    for name in (WEIGHTS_FILE, CONFIG_FILE):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_on_disk_as_torch_has_it(tmp_path):
    head = narrow_routed()
    write_head(tmp_path, head)
    tensors = safetensors.numpy.load_file(tmp_path / WEIGHTS_FILE)
    assert {name: tensor.shape for name, tensor in tensors.items()} == {
        "fuse.weight": (4, 24), "fc.weight": (4, 12), "fc.bias": (4,), "lift.weight": (8, 4),
        "attention.query.weight": (8, 4), "attention.key.weight": (4, 4),
        "attention.value.weight": (4, 4), "attention.out.weight": (4, 8),
        "post_attention_norm.weight": (4,), "mlp.gate.weight": (12, 4), "mlp.up.weight": (12, 4),
        "mlp.down.weight": (4, 12), "router.query.weight": (4, 4), "router.key.weight": (4, 4),
        "router.saliency": (4,),
        **{f"router.look_{look}.{part}.weight": (4, 4)
           for look in range(2) for part in ("query", "key", "value", "out")},
    }  # fmt: skip
    kernel = np.asarray(head.params["fc"]["kernel"])
    np.testing.assert_array_equal(tensors["fc.weight"], kernel.T.astype(ml_dtypes.bfloat16))
    look = np.asarray(head.params["router"]["look_1"]["out"]["kernel"])
    np.testing.assert_array_equal(
        tensors["router.look_1.out.weight"], look.T.astype(ml_dtypes.bfloat16)
    )


def test_configuration_on_disk(tmp_path):
    write_head(tmp_path, narrow_routed())
    raw = json.loads((tmp_path / CONFIG_FILE).read_text())
    assert raw["head"].pop("features") == [2, 4, 8]
    assert raw == {
        "format_version": 1, "method": "tiger_head",
        "head": {
            "layout": "eagle2", "visual": "routed", "width": 4, **SIZES, "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0, "draft_vocab": 0, "resampler_queries": 2, "medusa_heads": 4,
        },
        "router": {
            "selector": "tiger", "routed_tokens": 3, "pooled_tokens": 1, "query": "text_only",
            "looks": 2, "gate": "none", "width": 0,
        },
        "route_query": "hidden", "route_every": "round",
    }  # fmt: skip


def test_others_may_read_the_weights(tmp_path):
    """As its neighbours: what the umask allows, no less."""
    write_head(tmp_path, narrow_routed())
    modes = {file.name: file.stat().st_mode for file in tmp_path.iterdir()}
    assert modes[WEIGHTS_FILE] == modes[CONFIG_FILE]


def test_no_head(tmp_path):
    assert not is_head(tmp_path)
    assert read_head(tmp_path) is None
    assert read_head(tmp_path / "nowhere") is None


def test_half_a_head(tmp_path):
    write_head(tmp_path, resampler())
    assert is_head(tmp_path)
    (tmp_path / WEIGHTS_FILE).unlink()
    with pytest.raises(UserError, match=r"head\.safetensors: expected it beside"):
        read_head(tmp_path)


def change_config(folder, change):
    """`change` of {"a.b": value} is applied; None takes the field out."""
    file = folder / CONFIG_FILE
    raw = json.loads(file.read_text())
    for path, value in change.items():
        *parents, name = path.split(".")
        place = raw
        for parent in parents:
            place = place[parent]
        place[name] = value
        if value is None:
            del place[name]
    file.write_text(json.dumps(raw))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 2}, "head_config.json: expected format_version 1, got 2"),
        ({"format_version": None}, "expected format_version 1, got None"),
        ({"tree": {}}, "expected the fields method, .*, route_every, got .*tree"),
        ({"route_every": None}, "expected the fields method, .*, route_every, got method.*query$"),
        ({"method": 3}, "method: expected a text, got 3"),
        ({"head": "eagle2"}, "head: expected an object, got 'eagle2'"),
        ({"router": []}, r"router: expected an object, got \[\]"),
        ({"head.depth": 2}, "head: expected only the fields layout, .*, got depth"),
        ({"head.layout": None}, "head: expected the fields layout, got none"),
        ({"head.layout": "eagle4"}, "head: layout: expected one of eagle2, eagle3, tiger, medusa"),
        ({"head.head_dim": "4"}, "head: head_dim: expected a whole number, got '4'"),
        ({"head.head_dim": True}, "head: head_dim: expected a whole number, got True"),
        ({"head.rope_theta": "1e4"}, "head: rope_theta: expected a number, got '1e4'"),
        ({"head.features": [2, 4.0]}, "head: features: expected a list of whole numbers"),
        ({"head.features": [2, 4, 9]}, r"head: features: expected 0\.\.8, got 9"),
        ({"router.hops": 1}, "router: expected only the fields selector, .*, got hops"),
        ({"router.routed_tokens": 0}, "router: routed_tokens: expected at least 1, got 0"),
        ({"route_query": "output"}, "route_query: expected one of input, hidden, got 'output'"),
        ({"route_every": "token"}, "route_every: expected one of round, step, got 'token'"),
        ({"head.visual": "full"}, "router: expected one that routes with visual 'routed' and only"),
    ],
)
def test_config_faults(tmp_path, change, message):
    write_head(tmp_path, narrow_routed())
    change_config(tmp_path, change)
    with pytest.raises(UserError, match=message) as error:
        read_head(tmp_path)
    assert "\n" not in str(error.value)


def test_fields_with_defaults_may_be_left_out(tmp_path):
    write_head(tmp_path, narrow_routed())
    change_config(tmp_path, {"head.rms_norm_eps": None, "router.gate": None})
    assert read_head(tmp_path).config == narrow_routed().config


def change_tensors(folder, change):
    tensors = safetensors.numpy.load_file(folder / WEIGHTS_FILE) | change
    kept = {name: value for name, value in tensors.items() if value is not None}
    safetensors.numpy.save_file(kept, folder / WEIGHTS_FILE)


def test_all_tensor_faults_in_one_line(tmp_path):
    write_head(tmp_path, narrow_routed())
    change_tensors(tmp_path, {
        "fc.bias": None, "router.look_1.out.weight": None, "fc.extra": np.ones(3, np.float32),
        "lift.weight": np.ones((4, 8), np.float32), "mlp.up.weight": np.ones((12, 4), np.int32),
    })  # fmt: skip
    with pytest.raises(UserError) as error:
        read_head(tmp_path)
    text = str(error.value)
    assert "\n" not in text
    for part in (
        "head.safetensors does not fit",
        "2 missing: fc.bias [4], router.look_1.out.weight [4, 4]",
        "1 unexpected: fc.extra [3]",
        "1 wrong shape: lift.weight expected [8, 4], got [4, 8]",
        "1 wrong dtype: mlp.up.weight",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (None, r"draft_ids: expected 4 \(draft_vocab\), got 0"),
        (np.arange(5, dtype=np.int32), r"expected 4 \(draft_vocab\), got 5"),
        (np.array([0, 1, 2, 20], np.int32), r"expected ids 0\.\.19, got 0\.\.20"),
        (np.array([-1, 1, 2, 3], np.int32), r"expected ids 0\.\.19, got -1\.\.3"),
        (np.array([5, 1, 2, 5], np.int32), "expected 4 distinct ids, got 3"),
        (np.ones(4, np.float32), "draft_ids: expected a vector of integers, got float32"),
        (np.ones((2, 2), np.int32), "draft_ids: expected a vector of integers, got I32"),
    ],
)
def test_draft_id_faults(tmp_path, ids, message):
    write_head(tmp_path, compact_eagle3())
    change_tensors(tmp_path, {"draft_ids": ids})
    with pytest.raises(UserError, match=message):
        read_head(tmp_path)


def test_draft_ids_of_64_bits(tmp_path):
    write_head(tmp_path, compact_eagle3())
    change_tensors(tmp_path, {"draft_ids": DRAFT_IDS.astype(np.int64)})
    assert read_head(tmp_path).draft_ids.dtype == np.int32


def test_what_cannot_be_written(tmp_path):
    head = narrow_routed()
    with pytest.raises(UserError, match=r"dtype: expected one of bfloat16, .*, got 'int8'"):
        write_head(tmp_path, head, "int8")
    params = {name: value for name, value in head.params.items() if name not in ("fc", "router")}
    params["lift"] = {"kernel": jnp.ones((8, 4))}
    params["gate"] = {"kernel": jnp.ones((2, 3))}
    with pytest.raises(UserError) as error:
        write_head(tmp_path, dataclasses.replace(head, params=params))
    text = str(error.value)
    assert "13 missing: fc.bias [4], fc.weight [4, 12]" in text
    assert "1 unexpected: gate/kernel [2, 3]" in text
    assert "1 wrong shape: lift/kernel expected [8, 4], got [4, 8]" in text
    assert not list(tmp_path.iterdir())
    with pytest.raises(UserError, match="expected one that routes"):
        dataclasses.replace(head, router=None)


def test_full_selector_keeps_its_router(tmp_path):
    """A head with full visual input may carry the router of the comparison that it belongs to."""
    head = make(HeadConfig("eagle2", visual="full", **SIZES), RouterConfig("full"))
    write_head(tmp_path, head)
    assert read_head(tmp_path).router == RouterConfig("full")


def test_a_cut_file(tmp_path):
    write_head(tmp_path, resampler())
    file = tmp_path / WEIGHTS_FILE
    file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(UserError, match="truncated or not a safetensors file"):
        read_head(tmp_path)
