"""config.json of Hugging Face folders: defaults, nulls, both spellings, and clear refusals."""

import json

import pytest
import transformers

from tiger_jax.errors import UserError
from tiger_jax.models.config_reader import llava_next_config, read_config

# config.json of llava-hf/llava-v1.6-vicuna-7b-hf leaves out what Llama-7B has by default.
VICUNA = {
    "model_type": "llava_next",
    "image_token_index": 32000,
    "text_config": {
        "model_type": "llama", "max_position_embeddings": 4096, "pad_token_id": 0,
        "rms_norm_eps": 1e-05, "vocab_size": 32064,
    },
    "vision_config": {
        "model_type": "clip_vision_model", "hidden_size": 1024, "image_size": 336,
        "intermediate_size": 4096, "num_attention_heads": 16, "num_hidden_layers": 24,
        "patch_size": 14, "projection_dim": 768, "vocab_size": 32000,
    },
    "vision_feature_layer": -2,
    "vision_feature_select_strategy": "default",
}  # fmt: skip


def with_text(**changes) -> dict:
    return VICUNA | {"text_config": VICUNA["text_config"] | changes}


def test_vicuna_7b():
    config = llava_next_config(VICUNA)
    text, vision = config.text, config.vision
    assert (text.hidden_size, text.intermediate_size, text.num_layers) == (4096, 11008, 32)
    assert (text.num_heads, text.num_kv_heads, text.head_dim) == (32, 32, 128)
    assert (text.rms_norm_eps, text.rope_theta, text.max_positions) == (1e-5, 1e4, 4096)
    assert (vision.layer_norm_eps, vision.activation, vision.grid) == (1e-5, "quick_gelu", 24)
    assert config.rows_per_tile == 576
    assert config.feature_layers == (-2,)
    assert config.eos_token_ids == (2,)
    assert not text.tie_embeddings
    hash(config)


@pytest.mark.parametrize("name", ["vicuna", "defaults", "grouped"])
def test_transformers_reads_the_same(tmp_path, name):
    """What version 5 makes of the same dictionary, field by field."""
    raw = {
        "vicuna": VICUNA,
        "defaults": {"model_type": "llava_next"},
        "grouped": with_text(
            hidden_size=64, num_attention_heads=4, num_key_value_heads=2, rope_theta=5e5,
            intermediate_size=96, num_hidden_layers=3,
        ),
    }[name]  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(raw))
    theirs = transformers.LlavaNextConfig.from_pretrained(tmp_path)
    ours = read_config(tmp_path)
    text, vision = theirs.text_config, theirs.vision_config
    assert ours.text.vocab_size == text.vocab_size
    assert ours.text.hidden_size == text.hidden_size
    assert ours.text.intermediate_size == text.intermediate_size
    assert ours.text.num_layers == text.num_hidden_layers
    assert ours.text.num_heads == text.num_attention_heads
    assert ours.text.num_kv_heads == text.num_key_value_heads
    assert ours.text.rms_norm_eps == text.rms_norm_eps
    assert ours.text.max_positions == text.max_position_embeddings
    assert ours.text.rope_theta == text.rope_parameters["rope_theta"]
    assert ours.vision.hidden_size == vision.hidden_size
    assert ours.vision.intermediate_size == vision.intermediate_size
    assert ours.vision.num_layers == vision.num_hidden_layers
    assert ours.vision.num_heads == vision.num_attention_heads
    assert ours.vision.image_size == vision.image_size
    assert ours.vision.patch_size == vision.patch_size
    assert ours.vision.layer_norm_eps == vision.layer_norm_eps
    assert ours.vision.activation == vision.hidden_act
    assert ours.image_token_id == theirs.image_token_id
    assert ours.feature_layers == (theirs.vision_feature_layer,)
    assert ours.select_strategy == theirs.vision_feature_select_strategy
    assert ours.projector_activation == theirs.projector_hidden_act
    assert ours.pinpoints == tuple(map(tuple, theirs.image_grid_pinpoints))


@pytest.mark.parametrize(
    ("top", "nested", "tied"),
    [(None, None, False), (True, None, True), (None, True, True), (False, True, False),
     (True, False, True)],
)  # fmt: skip
def test_the_tie_flag_of_the_top_level_wins(top, nested, tied):
    raw = with_text(tie_word_embeddings=nested) | {"tie_word_embeddings": top}
    assert llava_next_config(raw).text.tie_embeddings is tied


def test_end_tokens_of_the_generation_config_win():
    raw = VICUNA | {"eos_token_id": 5}
    assert llava_next_config(raw).eos_token_ids == (5,)
    assert llava_next_config(raw, {"eos_token_id": [7, 8]}).eos_token_ids == (7, 8)
    assert llava_next_config(raw, {"eos_token_id": None}).eos_token_ids == (5,)


def test_rotary_theta_in_both_spellings():
    assert llava_next_config(with_text(rope_theta=5e5)).text.rope_theta == 5e5
    nested = with_text(rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    assert llava_next_config(nested).text.rope_theta == 5e5


def test_lists_of_feature_layers():
    assert llava_next_config(VICUNA | {"vision_feature_layer": [-2, 5]}).feature_layers == (-2, 5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"model_type": "mistral"}, "llama, got 'mistral'"),
     ({"attention_bias": True}, "attention_bias=true"),
     ({"mlp_bias": True}, "mlp_bias=true"),
     ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "default, got 'linear'"),
     ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "default, got 'yarn'")],
)  # fmt: skip
def test_what_the_model_would_compute_wrongly_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        llava_next_config(with_text(**changes))


def test_folders_are_named_in_errors(tmp_path):
    with pytest.raises(UserError, match="nowhere: expected a checkpoint folder"):
        read_config(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"config\.json: file not found"):
        read_config(tmp_path)
    config = tmp_path / "config.json"
    for content, message in (
        ("{", "not valid JSON"), ("[]", "got list"), ('{"model_type": "llava"}', "got 'llava'"),
    ):  # fmt: skip
        config.write_text(content)
        with pytest.raises(UserError, match=rf"config\.json.*{message}"):
            read_config(tmp_path)
