"""Qwen3-VL folders: bits survive both ways, transformers opens the result, a fault is one line."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from tests.weights.test_convert_scripts import script
from tests.weights.test_export import load_folder as load_tree
from tests.weights.test_export import raw_tensors
from tests.weights.test_load import edit, load_folder
from tiger_jax.errors import UserError
from tiger_jax.testing.qwen3_vl_configs import tiny_config_json
from tiger_jax.weights import export, safetensors_io

EMBEDDING, HEAD = "model.language_model.embed_tokens.weight", "lm_head.weight"
Model = transformers.Qwen3VLForConditionalGeneration


def random_model(raw: dict) -> Model:
    """A float32 model of a config.json, all its weights drawn alike."""
    torch.manual_seed(0)
    model = Model(transformers.Qwen3VLConfig(**raw)).float().eval()
    with torch.no_grad():  # the usual ones and zeros would hide exchanged norms and biases
        for weight in model.parameters():
            weight.normal_(0.0, 0.3)
    return model


@pytest.fixture(scope="module")
def models() -> dict[bool, Model]:
    """tied? -> a model with more than ten layers of each kind, so that text order would show."""
    tiny = {tied: tiny_config_json(tied=tied, layers=12, depth=11) for tied in (False, True)}
    return {tied: random_model(raw) for tied, raw in tiny.items()}


@pytest.fixture
def folder(tmp_path, models):
    """An untied model in one file, with the config as transformers 5 spells it."""
    models[False].save_pretrained(tmp_path / "source")
    return tmp_path / "source"


def opened(folder, **options) -> Model:
    """transformers' model; nothing may be missing, unexpected or of another shape."""
    model, info = Model.from_pretrained(folder, output_loading_info=True, **options)
    assert {kind: names for kind, names in info.items() if names} == {}
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("shards", [False, True])
def test_round_trip_is_bit_exact_and_transformers_opens_it(tmp_path, models, dtype, tied, shards):
    source, out = tmp_path / "source", tmp_path / "out"
    model = Model(models[tied].config)
    model.load_state_dict(models[tied].state_dict())
    size = {"max_shard_size": "100KB"} if shards else {}
    model.to(dtype).save_pretrained(source, **size)
    limit = {"max_shard_bytes": 10**5} if shards else {}
    export.save_hf_folder(load_tree(source), source, out, **limit)
    assert (len(list(out.glob("*.safetensors"))) > 10) == shards
    assert raw_tensors(out) == raw_tensors(source)
    assert (HEAD in raw_tensors(out)) != tied
    for name in ("config.json", "generation_config.json"):
        assert (out / name).read_bytes() == (source / name).read_bytes()
    again = opened(out, dtype=dtype).state_dict()
    for name, weight in model.state_dict().items():
        assert again[name].dtype == dtype
        assert torch.equal(again[name], weight), name


def test_each_weight_lands_where_it_belongs(folder, models):
    params, state = load_folder(folder), models[False].state_dict()
    assert len(params) == len(state)
    conv = state["model.visual.patch_embed.proj.weight"].numpy()  # [O, 3, 2, 16, 16]
    kernel = np.asarray(params["vision_tower/patch_embedding/kernel"])
    for channel, picture, row, column in ((0, 0, 0, 1), (2, 1, 5, 3), (1, 0, 15, 15)):
        at = ((channel * 2 + picture) * 16 + row) * 16 + column
        np.testing.assert_array_equal(kernel[at], conv[:, channel, picture, row, column])
    fused = state["model.visual.blocks.10.attn.qkv.weight"].numpy()
    kernel = np.asarray(params["vision_tower/layers_10/attention/qkv/kernel"])
    assert kernel.shape == (32, 96)
    np.testing.assert_array_equal(kernel[:, 32:64], fused[32:64].T)  # the keys of all heads
    for path, name in (
        ("language_model/layers_10/attention/key_norm/scale", "layers.10.self_attn.k_norm"),
        ("language_model/layers_2/attention/query_norm/scale", "layers.2.self_attn.q_norm"),
    ):
        stored = state[f"model.language_model.{name}.weight"].numpy()
        np.testing.assert_array_equal(params[path], stored)
    tap = state["model.visual.deepstack_merger_list.2.linear_fc1.weight"].numpy()
    np.testing.assert_array_equal(params["deepstack_mergers_2/fc1/kernel"], tap.T)
    head = np.asarray(params["language_model/lm_head/kernel"])
    np.testing.assert_array_equal(head, state[HEAD].numpy().T)
    assert not np.array_equal(head, state[EMBEDDING].numpy().T)


def test_the_hubs_config_and_stored_buffers(folder):
    """rope_theta beside rope_scaling, vision model_type qwen3_vl; frequencies in the file."""
    params = load_folder(folder)
    raw = tiny_config_json(layers=12, depth=11)
    (folder / "config.json").write_text(json.dumps(raw))
    buffers = ("model.language_model.rotary_emb.inv_freq", "model.visual.rotary_pos_emb.inv_freq")
    edit(folder, lambda tensors: tensors.update({name: torch.ones(4) for name in buffers}))
    again = load_folder(folder)
    assert again.keys() == params.keys()
    assert all(again[path].tobytes() == params[path].tobytes() for path in params)
    export.save_hf_folder(load_tree(folder), folder, folder.with_name("out"))
    assert not set(buffers) & raw_tensors(folder.with_name("out")).keys()
    opened(folder.with_name("out"))


def test_a_base_models_file_is_read_and_written_back_canonical(tmp_path, models):
    source, out = tmp_path / "source", tmp_path / "out"
    models[True].model.save_pretrained(source, max_shard_size="100KB")
    names = {header.name for header in safetensors_io.read_headers(source)}
    assert all(name.startswith(("visual.", "language_model.")) for name in names)
    export.save_hf_folder(load_tree(source), source, out)
    assert raw_tensors(out).keys() == {f"model.{name}" for name in names}
    again = opened(out).state_dict()
    for name, weight in models[True].state_dict().items():
        assert torch.equal(again[name], weight), name


def test_both_spellings_of_one_weight_are_set_twice(folder):
    name = "language_model.norm.weight"
    edit(folder, lambda tensors: tensors.update({name: torch.ones(64)}))
    with pytest.raises(UserError, match=r"1 set twice: model\.language_model\.norm\.weight"):
        load_folder(folder)


def test_convert_scripts_give_the_same_bytes(tmp_path):
    folder = tmp_path / "source"
    random_model(tiny_config_json(layers=2, depth=3)).save_pretrained(folder)
    orbax, back = str(tmp_path / "orbax"), str(tmp_path / "back")
    (folder / "video_preprocessor_config.json").write_text("{}")
    assert script("hf_to_orbax").main([str(folder), orbax]) == 0
    assert script("orbax_to_hf").main([orbax, back, "--max-shard-gb", "1e-4"]) == 0
    assert raw_tensors(tmp_path / "back") == raw_tensors(folder)
    for name in ("config.json", "video_preprocessor_config.json"):
        assert (tmp_path / "back" / name).read_bytes() == (folder / name).read_bytes()
    cast = str(tmp_path / "cast")
    assert script("hf_to_orbax").main([str(folder), cast, "--dtype", "bfloat16"]) == 0
    assert {value.dtype for value in load_folder(cast).values()} == {jnp.dtype(jnp.bfloat16)}


def test_every_fault_stands_in_one_line(folder):
    def spoil(tensors):
        del tensors["model.language_model.layers.11.self_attn.q_norm.weight"]
        tensors["model.visual.blocks.11.norm1.weight"] = torch.ones(32)
        conv = "model.visual.patch_embed.proj.weight"
        tensors[conv] = tensors[conv][:, :, 0].contiguous()  # a Conv2d's

    edit(folder, spoil)
    with pytest.raises(UserError) as caught:
        load_folder(folder)
    line = str(caught.value)
    assert "\n" not in line
    for part in (
        f"checkpoint {folder} (layout A) does not fit the model",
        "1 missing: model.language_model.layers.11.self_attn.q_norm.weight [32]",
        "1 unexpected: model.visual.blocks.11.norm1.weight [32]",
        "1 wrong shape: model.visual.patch_embed.proj.weight "
        "expected [32, 3, 2, 16, 16], got [32, 3, 16, 16]",
    ):
        assert part in line
    assert "tie_word_embeddings" not in line


def test_what_only_another_family_has_is_refused(tmp_path, folder, capsys):
    with pytest.raises(UserError, match=r"layout A holds its tower; drop clip"):
        load_folder(folder, vision_tower="clip")
    params = load_tree(folder)
    for layout in ("C", "O", "original", "base"):
        with pytest.raises(UserError, match=rf"^layout: expected one of A, got '{layout}'$"):
            export.save_hf_folder(params, folder, tmp_path / "out", layout=layout)
    assert not (tmp_path / "out").exists()
    assert script("orbax_to_hf").main([str(folder), str(tmp_path / "x"), "--layout", "D"]) == 2
    assert capsys.readouterr().err == "orbax_to_hf: layout: expected one of A, got 'D'\n"
