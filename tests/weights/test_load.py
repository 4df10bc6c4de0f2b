"""Loading: five layouts alike, all faults in one error, straight into a sharding."""

import json
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.torch
import torch
import transformers
from flax import traverse_util
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tiger_jax.errors import UserError
from tiger_jax.models import interface
from tiger_jax.weights import load, orbax_io, original_config, safetensors_io

IMAGE_TOKEN = 100  # the original vocabulary of conftest.py


def flat(params) -> dict[str, jax.Array]:
    return traverse_util.flatten_dict(params, sep="/")


def load_folder(folder, **options):
    return flat(load.load_params(folder, original_config.read_config(folder), **options))


def edit(folder, change) -> None:
    """Rewrites model.safetensors after `change` has altered its dict of torch tensors."""
    file = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(file)
    change(tensors)
    safetensors.torch.save_file(tensors, file, {"format": "pt"})


@pytest.mark.parametrize("layout", ["A", "C", "D", "E"])
def test_hf_layouts_give_the_models_own_weights(tmp_path, write_layout, state, layout):
    params = load_folder(write_layout(tmp_path, layout))
    assert len(params) == len(state)
    for path, name, transposed in (
        ("image_newline", "model.image_newline", False),
        ("language_model/lm_head/kernel", "lm_head.weight", True),
        (  # layer 10 sits between 1 and 2 in text order
            "language_model/layers_2/attention/key/kernel",
            "model.language_model.layers.2.self_attn.k_proj.weight",
            True,
        ),
        (
            "language_model/layers_10/input_norm/scale",
            "model.language_model.layers.10.input_layernorm.weight",
            False,
        ),
        ("vision_tower/pre_norm/bias", "model.vision_tower.pre_layrnorm.bias", False),
        ("projector/linear_2/kernel", "model.multi_modal_projector.linear_2.weight", True),
    ):
        value = state[name].numpy()
        np.testing.assert_array_equal(params[path], value.T if transposed else value)


def test_all_layouts_load_alike(tmp_path, write_layout):
    first = load_folder(write_layout(tmp_path / "A", "A"))
    for layout in ("C", "D", "E"):
        other = load_folder(write_layout(tmp_path / layout, layout))
        assert other.keys() == first.keys()
        for path, value in first.items():
            assert value.tobytes() == other[path].tobytes(), path


def test_the_original_layout_loads_alike_up_to_the_added_rows(tmp_path, write_layout):
    first = load_folder(write_layout(tmp_path / "A", "A"))
    other = load_folder(write_layout(tmp_path / "O", "O"))
    assert other.keys() == first.keys()
    embedding, head = "language_model/embed_tokens/embedding", "language_model/lm_head/kernel"
    for path in first.keys() - {embedding, head}:
        assert first[path].tobytes() == other[path].tobytes(), path
    for ours, theirs in (
        (other[embedding], first[embedding]),
        (other[head].T, first[head].T),
    ):
        assert ours.shape == theirs.shape
        np.testing.assert_array_equal(ours[:IMAGE_TOKEN], theirs[:IMAGE_TOKEN])
        mean = np.asarray(theirs[:IMAGE_TOKEN], np.float64).mean(0).astype(np.float32)
        np.testing.assert_array_equal(ours[IMAGE_TOKEN:], np.tile(mean, (28, 1)))


def test_stored_buffers_are_ignored(layout_a):
    def add(tensors):
        tensors["vision_tower.vision_model.embeddings.position_ids"] = torch.arange(5)[None]
        name = "language_model.model.layers.0.self_attn.rotary_emb.inv_freq"
        tensors[name] = torch.ones(4)

    edit(layout_a, add)
    load_folder(layout_a)


def test_every_fault_of_a_checkpoint_stands_in_one_error(tmp_path, layout_a):
    def spoil(tensors):
        del tensors["language_model.model.layers.11.mlp.gate_proj.weight"]
        del tensors["image_newline"]
        tensors["language_model.model.layers.12.input_layernorm.weight"] = torch.ones(32)
        key = "language_model.model.layers.0.self_attn.k_proj.weight"
        tensors[key] = tensors[key].T.contiguous()
        norm = "language_model.model.norm.weight"
        tensors[norm] = tensors[norm].to(torch.int8)

    edit(layout_a, spoil)
    (layout_a / "model.safetensors").rename(layout_a / "one.safetensors")
    again = {"language_model.lm_head.weight": torch.ones(128, 32)}
    safetensors.torch.save_file(again, layout_a / "two.safetensors")
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (layout_a / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError) as caught:
        load_folder(layout_a)
    line = str(caught.value)
    assert "\n" not in line
    for part in (
        f"checkpoint {layout_a} (layout A) does not fit the model",
        "2 missing: ",
        "language_model.model.layers.11.mlp.gate_proj.weight [40, 32]",
        "image_newline [32]",
        "1 unexpected: language_model.model.layers.12.input_layernorm.weight [32]",
        "1 wrong shape: language_model.model.layers.0.self_attn.k_proj.weight "
        "expected [16, 32], got [32, 16]",
        "1 wrong dtype: language_model.model.norm.weight",
        "1 set twice: language_model.lm_head.weight",
    ):
        assert part in line


def test_two_spellings_of_one_weight_are_set_twice(tmp_path, write_layout):
    folder = write_layout(tmp_path, "C")
    edit(folder, lambda t: t.update({"language_model.lm_head.weight": torch.ones(128, 32)}))
    with pytest.raises(UserError, match=r"1 set twice: language_model\.lm_head\.weight"):
        load_folder(folder)


def test_the_vocabulary_grows_in_the_original_layout_only(layout_a):
    edit(layout_a, lambda t: t.update({"language_model.lm_head.weight": torch.ones(100, 32)}))
    with pytest.raises(UserError, match=r"lm_head.weight expected \[128, 32\], got \[100, 32\]"):
        load_folder(layout_a)


@pytest.mark.parametrize("prefixed", [False, True])
def test_a_missing_tower_must_be_named(tmp_path, write_layout, hf_model, prefixed):
    """CLIPVisionModel as transformers 5 saves it, and the older spelling with a text side."""
    folder = write_layout(tmp_path / "O", "O")
    complete = load_folder(folder)
    tower = hf_model.model.vision_tower.state_dict()
    file = tmp_path / "clip.safetensors"
    if prefixed:
        tower = {f"vision_model.{name}": weight for name, weight in tower.items()}
        tower |= {"text_model.x": torch.ones(1), "visual_projection.weight": torch.ones(1)}
        tower |= {"vision_model.embeddings.position_ids": torch.arange(5)}
    safetensors.torch.save_file(tower, file)
    with pytest.raises(UserError, match="holds its own fine-tuned vision tower"):
        load_folder(folder, vision_tower=file)

    def cut(tensors):
        for name in [name for name in tensors if "vision_tower" in name]:
            del tensors[name]

    edit(folder, cut)
    with pytest.raises(UserError, match="original-format checkpoint without a vision tower"):
        load_folder(folder)
    rebuilt = load_folder(folder, vision_tower=file)
    assert rebuilt.keys() == complete.keys()
    for path, value in complete.items():
        assert value.tobytes() == rebuilt[path].tobytes()


def test_other_layouts_refuse_a_separate_tower(layout_a):
    with pytest.raises(UserError, match="layout A holds its tower"):
        load_folder(layout_a, vision_tower=layout_a)


def test_a_tied_head_may_be_stored_but_must_be_the_embedding(layout_a):
    file = layout_a / "config.json"
    raw = json.loads(file.read_text())
    raw["tie_word_embeddings"] = raw["text_config"]["tie_word_embeddings"] = True
    file.write_text(json.dumps(raw))
    with pytest.raises(UserError, match=r"tie_word_embeddings is true, but .*lm_head.weight"):
        load_folder(layout_a)
    head, embedding = "language_model.lm_head.weight", "language_model.model.embed_tokens.weight"
    edit(layout_a, lambda t: t.update({head: t[embedding].clone()}))
    assert "language_model/lm_head/kernel" not in load_folder(layout_a)
    edit(layout_a, lambda t: t.pop(head))
    assert "language_model/lm_head/kernel" not in load_folder(layout_a)


def test_an_untied_model_needs_its_head(layout_a):
    edit(layout_a, lambda t: t.pop("language_model.lm_head.weight"))
    with pytest.raises(UserError, match=r"1 missing: language_model.lm_head.weight \[128, 32\]"):
        load_folder(layout_a)


def test_weights_arrive_in_their_sharding(layout_a):
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "tensor"))
    config = original_config.read_config(layout_a)
    abstract = interface.build_model(config).abstract_params()

    def choose(leaf):
        split = leaf.ndim == 2 and leaf.shape[1] % 4 == 0
        spec = PartitionSpec(None, "tensor") if split else PartitionSpec()
        return NamedSharding(mesh, spec)

    shardings = jax.tree.map(choose, abstract)
    whole = load_folder(layout_a)
    for path, value in load_folder(layout_a, shardings=shardings).items():
        assert value.sharding == flat(shardings)[path], path
        np.testing.assert_array_equal(value, whole[path])
    head = load.load_params(layout_a, config, shardings=shardings)["language_model"]["lm_head"]
    assert len(jax.devices()) == 8
    assert {shard.data.shape for shard in head["kernel"].addressable_shards} == {(32, 32)}
    everywhere = NamedSharding(mesh, PartitionSpec())
    for value in load_folder(layout_a, shardings=everywhere).values():
        assert value.sharding == everywhere


def test_an_incomplete_tree_of_shardings_is_refused(layout_a):
    config = original_config.read_config(layout_a)
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    with pytest.raises(ValueError, match=r"none for .*language_model/embed_tokens"):
        load.load_params(layout_a, config, shardings={"image_newline": one})


def test_dtype_is_kept_or_cast(layout_a):
    edit(layout_a, lambda t: t.update({"image_newline": t["image_newline"].to(torch.bfloat16)}))
    kept = load_folder(layout_a)
    assert kept["image_newline"].dtype == jnp.bfloat16
    assert kept["language_model/final_norm/scale"].dtype == jnp.float32
    cast = load_folder(layout_a, dtype=jnp.bfloat16)
    assert {value.dtype for value in cast.values()} == {jnp.dtype(jnp.bfloat16)}
    path = "language_model/final_norm/scale"
    np.testing.assert_array_equal(cast[path], kept[path].astype(jnp.bfloat16))


def test_loading_holds_one_host_tensor(layout_a, monkeypatch):
    """Each stored tensor is gone when the next one is read (cast on the way: none is aliased)."""
    edit(layout_a, lambda t: t.update({name: w.half() for name, w in t.items()}))
    original, alive, count = safetensors_io.iterate_tensors, [], 0

    def watched(wanted):
        nonlocal count
        for file, name, value in original(wanted):
            assert not any(reference() is not None for reference in alive)
            alive[:] = [weakref.ref(value)]
            count += 1
            parts = [file, name, value]
            del value
            yield tuple(parts.pop(0) for _ in range(3))

    monkeypatch.setattr(safetensors_io, "iterate_tensors", watched)
    params = load_folder(layout_a, dtype=jnp.float32)
    assert count == len(params)


def test_no_data_is_read_before_the_headers_fit(layout_a, monkeypatch):
    edit(layout_a, lambda t: t.pop("image_newline"))
    monkeypatch.setattr(safetensors_io, "iterate_tensors", None)  # calling it would raise TypeError
    with pytest.raises(UserError, match="1 missing: image_newline"):
        load_folder(layout_a)


def test_orbax_folders_load_into_a_sharding_with_their_dtypes(tmp_path, layout_a):
    edit(layout_a, lambda t: t.update({"image_newline": t["image_newline"].to(torch.bfloat16)}))
    config = original_config.read_config(layout_a)
    params = load.load_params(layout_a, config)
    orbax_io.save_params(params, tmp_path / "orbax")
    with pytest.raises(UserError, match="exists already"):
        orbax_io.save_params(params, tmp_path / "orbax")
    mesh = Mesh(np.array(jax.devices()), ("data",))
    everywhere = NamedSharding(mesh, PartitionSpec())
    for target in (None, everywhere):
        restored = flat(load.load_params(tmp_path / "orbax", config, shardings=target))
        assert restored.keys() == flat(params).keys()
        for path, value in flat(params).items():
            assert restored[path].dtype == value.dtype
            assert restored[path].tobytes() == value.tobytes()
            assert len(restored[path].devices()) == (8 if target else 1)
    with pytest.raises(UserError, match="Orbax folders hold their tower"):
        load.load_params(tmp_path / "orbax", config, vision_tower=layout_a)
    cast = load.load_params(tmp_path / "orbax", config, dtype=jnp.bfloat16)
    assert {leaf.dtype for leaf in jax.tree.leaves(cast)} == {jnp.dtype(jnp.bfloat16)}


def test_orbax_folders_report_all_faults(tmp_path, layout_a):
    config = original_config.read_config(layout_a)
    params = load.load_params(layout_a, config)
    del params["image_newline"]
    params["language_model"]["extra"] = jnp.ones((3,))
    orbax_io.save_params(params, tmp_path / "orbax")
    match = r"1 missing: image_newline \[32\]; 1 unexpected: language_model/extra \[3\]"
    with pytest.raises(UserError, match=match):
        load.load_params(tmp_path / "orbax", config)
    (tmp_path / "broken" / "params").mkdir(parents=True)
    with pytest.raises(UserError, match="not a complete Orbax checkpoint"):
        load.load_params(tmp_path / "broken", config)


def test_transformers_own_save_of_a_fresh_model_loads(tmp_path, hf_model):
    hf_model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert isinstance(hf_model, transformers.LlavaNextForConditionalGeneration)
    params = load_folder(tmp_path)
    newline = hf_model.state_dict()["model.image_newline"].numpy()
    np.testing.assert_array_equal(params["image_newline"], newline)
