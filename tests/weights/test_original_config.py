"""The original format's config.json against the facts of the public 7B files (models.md 1.1)."""

import json
from pathlib import Path

import pytest

from tiger_jax.errors import UserError
from tiger_jax.models import config_reader
from tiger_jax.weights import original_config

GOLDEN = Path(__file__).parents[1] / "golden"
PUBLIC_7B = {
    "architectures": ["LlavaLlamaForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "image_aspect_ratio": "anyres",
    "image_crop_resolution": 224,
    "image_grid_pinpoints": [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]],
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
    "mm_patch_merge_type": "spatial_unpad",
    "mm_projector_type": "mlp2x_gelu",
    "mm_use_im_patch_token": False,
    "mm_use_im_start_end": False,
    "mm_vision_select_feature": "patch",
    "mm_vision_select_layer": -2,
    "mm_vision_tower": "openai/clip-vit-large-patch14-336",
    "model_type": "llava",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}


def write(folder, **changes):
    (folder / "config.json").write_text(json.dumps(PUBLIC_7B | changes))
    return folder


def test_the_public_file_describes_the_hf_model(tmp_path):
    hf = json.loads((GOLDEN / "llava_v1.6_vicuna_7b.json").read_text())["config"]
    expected = config_reader.llava_next_config(hf)
    ours = original_config.read_config(write(tmp_path), pinpoint_order="hw")
    assert ours == expected
    assert (ours.text.vocab_size, ours.image_token_id) == (32064, 32000)


def test_pinpoints_are_width_height_unless_told_otherwise(tmp_path):
    """The first two tie for small pictures: the original takes the tall one, HF the wide."""
    write(tmp_path)
    assert original_config.read_config(tmp_path).pinpoints[0] == (672, 336)
    assert original_config.read_config(tmp_path, pinpoint_order="hw").pinpoints[0] == (336, 672)


def test_dictionaries_translate_both_ways():
    raw = original_config.original_to_hf(PUBLIC_7B, Path("config.json"))
    back = original_config.hf_to_original(raw)
    dead = {"image_crop_resolution", "mm_use_im_patch_token"}
    assert back == {k: v for k, v in PUBLIC_7B.items() if k not in dead} | {
        "model_type": "llava_llama"
    }


def test_a_vocabulary_with_its_own_image_token_keeps_all_rows():
    """The tiny pairs: <image> is inside the vocabulary, nothing may be cut."""
    hf = original_config.original_to_hf(PUBLIC_7B, Path("config.json"))
    hf["text_config"]["vocab_size"], hf["image_token_index"] = 384, 4
    raw = original_config.hf_to_original(hf)
    assert (raw["vocab_size"], raw["image_token_index"]) == (384, 4)
    again = original_config.original_to_hf(raw, Path("config.json"))
    assert (again["text_config"]["vocab_size"], again["image_token_index"]) == (384, 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mm_projector_type": "linear"}, "expected mm_projector_type 'mlp2x_gelu', got 'linear'"),
        ({"mm_patch_merge_type": "flat"}, "expected mm_patch_merge_type"),
        ({"image_aspect_ratio": "pad"}, "expected image_aspect_ratio 'anyres', got 'pad'"),
        ({"mm_use_im_start_end": True}, "expected mm_use_im_start_end False, got True"),
        ({"mm_vision_select_feature": "all"}, "expected mm_vision_select_feature"),
        ({"mm_vision_tower": "google/siglip"}, "expected openai/clip.* got 'google/siglip'"),
        ({"model_type": "mistral", "mm_vision_tower": ""}, "expected model_type llava_next"),
    ],
)
def test_other_models_are_refused_by_name(tmp_path, change, message):
    with pytest.raises(UserError, match=message) as caught:
        original_config.read_config(write(tmp_path, **change))
    assert str(tmp_path / "config.json") in str(caught.value)


def test_hf_folders_read_as_before(tmp_path, layout_a):
    assert original_config.read_config(layout_a) == config_reader.read_config(layout_a)
    with pytest.raises(UserError):
        original_config.read_config(tmp_path / "absent")
