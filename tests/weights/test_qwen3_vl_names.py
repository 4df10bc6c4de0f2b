"""The table of Qwen3-VL: one-to-one with the two public checkpoints as transformers builds them."""

import math

import pytest
import torch
import transformers

from tiger_jax.models import interface
from tiger_jax.models.config_reader import make_config
from tiger_jax.testing.qwen3_vl_configs import published_config, tiny_config_json
from tiger_jax.weights.families import family_of
from tiger_jax.weights.qwen3_vl_names import LAYOUTS, detect_layout, qwen3_vl_table

# size -> tensors in the file, parameters (models.md 1.2)
PUBLIC = {"4b": (713, 4_437_815_808), "8b": (750, 8_767_123_696)}
PARTS = {  # parameters: the tower without its mergers, the main merger, the DeepStack mergers
    "4b": (306_242_560, 27_271_680, 81_833_472),
    "8b": (415_891_440, 40_119_040, 120_377_856),
}


def torch_shapes(raw: dict) -> dict[str, tuple[int, ...]]:
    """Names and shapes of what transformers stores: a tied head is dropped on saving."""
    with torch.device("meta"):
        config = transformers.Qwen3VLConfig(**raw)
        state = transformers.Qwen3VLForConditionalGeneration(config).state_dict()
    if raw["tie_word_embeddings"]:
        del state["lm_head.weight"]
    return {name: tuple(weight.shape) for name, weight in state.items()}


def entries_of(raw: dict):
    config = make_config(raw)
    shapes = interface.build_model(config).abstract_params()
    return family_of(config).table.entries(shapes)


@pytest.mark.parametrize("size", PUBLIC)
def test_public_checkpoints_map_one_to_one(size):
    raw = published_config(size)
    entries = entries_of(raw)
    count, parameters = PUBLIC[size]
    assert {name: entry.hf_shape for name, entry in entries.items()} == torch_shapes(raw)
    assert len(entries) == len({entry.path for entry in entries.values()}) == count
    assert sum(math.prod(entry.jax_shape) for entry in entries.values()) == parameters
    assert ("lm_head.weight" in entries) == (size == "8b")

    def total(*prefixes):
        return sum(
            math.prod(entry.jax_shape)
            for entry in entries.values()
            if entry.path.startswith(prefixes)
        )

    assert (total("vision_tower"), total("merger"), total("deepstack")) == PARTS[size]


def test_both_directions_invert_each_other():
    raw = published_config("8b")
    table = family_of(make_config(raw)).table
    for name in torch_shapes(raw):
        assert table.to_hf(table.to_path(name)) == name


def test_names_that_are_easily_exchanged():
    table = qwen3_vl_table(make_config(tiny_config_json()).vision)
    for hf, path in {
        "model.visual.deepstack_merger_list.2.norm.bias": "deepstack_mergers_2/norm/bias",
        "model.visual.merger.norm.bias": "merger/norm/bias",
        "model.visual.blocks.12.attn.proj.bias": "vision_tower/layers_12/attention/out/bias",
        "model.language_model.layers.12.self_attn.q_norm.weight": (
            "language_model/layers_12/attention/query_norm/scale"
        ),
        "model.language_model.layers.3.self_attn.k_norm.weight": (
            "language_model/layers_3/attention/key_norm/scale"
        ),
    }.items():
        assert table.to_path(hf) == path
        assert table.to_hf(path) == hf


def test_a_base_models_names_are_detected_and_completed():
    names = list(torch_shapes(tiny_config_json(tied=True)))
    base = [name.removeprefix("model.") for name in names]
    layout = detect_layout(base)
    assert (layout.name, detect_layout(names).name) == ("base", "A")
    assert [layout.to_canonical(name) for name in base] == names
    assert list(LAYOUTS) == ["A"]  # only canonical names are written
    assert [LAYOUTS["A"].from_canonical(name) for name in names] == names
