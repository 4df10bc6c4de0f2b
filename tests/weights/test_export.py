"""Export: the bytes that came in go out, and transformers opens the folder without complaint."""

import json

import jax
import pytest
import safetensors
import torch
import transformers

from tiger_jax.errors import UserError
from tiger_jax.weights import export, load, original_config, safetensors_io

SMALL_SHARDS = 20_000


def raw_tensors(folder) -> dict[str, tuple[str, bytes]]:
    """name -> (dtype, bytes) of every tensor of a folder."""
    found = {}
    for file in folder.glob("*.safetensors"):
        with safetensors.safe_open(file, framework="numpy") as shard:
            for name in shard.keys():  # noqa: SIM118
                value = shard.get_tensor(name)
                found[name] = (str(value.dtype), value.tobytes())
    return found


def load_folder(folder):
    return load.load_params(folder, original_config.read_config(folder))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_round_trip_is_bit_exact_and_transformers_opens_it(tmp_path, hf_model, dtype):
    source, out = tmp_path / "source", tmp_path / "out"
    model = transformers.LlavaNextForConditionalGeneration(hf_model.config)
    model.load_state_dict(hf_model.state_dict())
    model.to(dtype).save_pretrained(source, max_shard_size="20KB")
    assert len(list(source.glob("*.safetensors"))) > 3
    (source / "tokenizer.json").write_bytes(b"\xff not even text")
    (source / "tiger_config.json").write_text("{}")
    export.save_hf_folder(load_folder(source), source, out, max_shard_bytes=SMALL_SHARDS)
    for name in ("config.json", "generation_config.json", "tokenizer.json"):
        assert (out / name).read_bytes() == (source / name).read_bytes()
    assert not (out / "tiger_config.json").exists()
    assert len(list(out.glob("*.safetensors"))) > 3
    loaded, info = transformers.LlavaNextForConditionalGeneration.from_pretrained(
        out, dtype=dtype, output_loading_info=True
    )
    assert {kind: names for kind, names in info.items() if names} == {}
    for name, weight in model.state_dict().items():
        assert loaded.state_dict()[name].dtype == dtype
        assert torch.equal(loaded.state_dict()[name], weight), name


@pytest.mark.parametrize("layout", ["A", "C", "D", "E", "O"])
def test_each_layout_comes_back_byte_for_byte(tmp_path, write_layout, layout):
    source = write_layout(tmp_path / "source", layout)
    export.save_hf_folder(load_folder(source), source, tmp_path / "out", layout=layout)
    assert raw_tensors(tmp_path / "out") == raw_tensors(source)
    assert (tmp_path / "out/config.json").read_bytes() == (source / "config.json").read_bytes()


def test_original_to_hf_and_back_is_bit_exact(tmp_path, write_layout):
    """O -> A grows the vocabulary for transformers, A -> O cuts exactly what was added (B21)."""
    source, hf, back = write_layout(tmp_path / "source", "O"), tmp_path / "hf", tmp_path / "back"
    export.save_hf_folder(load_folder(source), source, hf)
    loaded, info = transformers.LlavaNextForConditionalGeneration.from_pretrained(
        hf, output_loading_info=True
    )
    assert {kind: names for kind, names in info.items() if names} == {}
    assert loaded.get_input_embeddings().weight.shape == (128, 32)
    assert loaded.config.image_token_id == 100
    export.save_hf_folder(load_folder(hf), hf, back, layout="original")
    assert raw_tensors(back) == raw_tensors(source)
    assert original_config.read_config(back) == original_config.read_config(source)


def test_hf_to_original_and_back_keeps_what_the_original_holds(tmp_path, layout_a):
    original, back = tmp_path / "original", tmp_path / "back"
    export.save_hf_folder(load_folder(layout_a), layout_a, original, layout="original")
    assert json.loads((original / "config.json").read_text())["vocab_size"] == 100
    export.save_hf_folder(load_folder(original), original, back)
    before, after = raw_tensors(layout_a), raw_tensors(back)
    assert before.keys() == after.keys()
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {  # filler rows only: models.md 4.1
        "language_model.lm_head.weight",
        "language_model.model.embed_tokens.weight",
    }
    for name in changed:
        kept = 100 * 32 * 4
        assert before[name][1][:kept] == after[name][1][:kept]


def test_sharded_parameters_export_the_same_bytes(tmp_path, layout_a):
    mesh = jax.sharding.Mesh(jax.devices(), ("all",))
    spec = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    config = original_config.read_config(layout_a)
    params = load.load_params(layout_a, config, shardings=spec)
    export.save_hf_folder(params, layout_a, tmp_path / "out")
    assert raw_tensors(tmp_path / "out") == raw_tensors(layout_a)


def test_shards_follow_the_layers_in_number_order(tmp_path, layout_a):
    export.save_hf_folder(
        load_folder(layout_a), layout_a, tmp_path / "out", max_shard_bytes=SMALL_SHARDS
    )
    names = [tensor.name for tensor in safetensors_io.read_headers(tmp_path / "out")]
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())["weight_map"]
    norm = "language_model.model.layers.{}.input_layernorm.weight"
    shard_of = [index[norm.format(i)] for i in range(12)]
    assert shard_of == sorted(shard_of)
    assert len(names) == len(index)


def test_bad_requests_are_refused(tmp_path, layout_a):
    params = load_folder(layout_a)
    with pytest.raises(UserError, match="layout: expected one of A, C, D, E, O or original"):
        export.save_hf_folder(params, layout_a, tmp_path / "out", layout="B")
    with pytest.raises(UserError, match="holds weights already"):
        export.save_hf_folder(params, layout_a, layout_a)
    (layout_a / "model.safetensors").unlink()
    with pytest.raises(UserError, match="expected a folder other than the source"):
        export.save_hf_folder(params, layout_a, layout_a)
