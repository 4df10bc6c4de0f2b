"""Qwen3-VL's config.json: as published, with nulls, and with what another model would need."""

import copy

import pytest

from tiger_jax.errors import UserError
from tiger_jax.models.config_reader import make_config
from tiger_jax.models.published import published_config

TEXT, VISION = "text_config", "vision_config"


def with_change(place: str | None, **changes) -> dict:
    """The 4B model's dictionary with other values at the top or in a sub-object."""
    raw = published_config("Qwen3-VL-4B-Instruct")
    (raw if place is None else raw[place]).update(copy.deepcopy(changes))
    return raw


def test_the_4b_model():
    config = make_config(published_config("Qwen3-VL-4B-Instruct"))
    text, vision = config.text, config.vision
    assert (text.num_heads, text.num_kv_heads, text.head_dim) == (32, 8, 128)
    assert (text.rope_theta, text.mrope_section, text.qk_norm) == (5e6, (24, 20, 20), True)
    assert text.tie_embeddings
    assert (vision.num_positions, vision.deepstack_layers) == (2304, (5, 11, 17))
    assert config.eos_token_ids == (151645,)
    assert config.pad_token_id == 151643
    assert config.picture_facts["position table rows"] == 2304
    hash(config)


@pytest.mark.parametrize(
    ("place", "changes"),
    [
        (TEXT, {"pad_token_id": None, "attention_bias": None, "model_type": None}),
        (TEXT, {"hidden_act": None, "rope_parameters": None}),
        (VISION, {"in_channels": None, "model_type": None}),
        (None, {"pad_token_id": None, "eos_token_id": None, "bos_token_id": None}),
    ],
)
def test_a_null_is_as_good_as_absent(place, changes):
    assert make_config(with_change(place, **changes)) == make_config(with_change(None))


def test_more_taps_than_text_layers():
    raw = with_change(TEXT, num_hidden_layers=2)
    assert len(make_config(raw).vision.deepstack_layers) > make_config(raw).text.num_layers


ROPE = {"mrope_section": [24, 20, 20], "rope_type": "default"}


@pytest.mark.parametrize(
    ("place", "changes", "message"),
    [
        (None, {"text_config": None}, "expected 'text_config' in it, found none"),
        (None, {"vision_config": None}, "expected 'vision_config' in it, found none"),
        (None, {"text_config": []}, "text_config: expected a JSON object, got list"),
        (None, {"image_token_id": None}, "expected 'image_token_id' in it, found none"),
        (TEXT, {"hidden_size": None}, "text_config: expected hidden_size as a whole number"),
        (TEXT, {"num_key_value_heads": None}, "expected num_key_value_heads as a whole number"),
        (TEXT, {"head_dim": None}, "head_dim as a whole number above 0, got None"),
        (TEXT, {"head_dim": "128"}, "head_dim as a whole number above 0, got '128'"),
        (TEXT, {"rms_norm_eps": None}, "expected 'rms_norm_eps' in it, found none"),
        (TEXT, {"eos_token_id": None}, "expected 'eos_token_id' in it, found none"),
        (TEXT, {"eos_token_id": []}, "expected 'eos_token_id' in it, found none"),
        (TEXT, {"rope_theta": None}, "text_config: expected rope_theta, found none"),
        (TEXT, {"rope_scaling": None}, "expected 'mrope_section' in it, found none"),
        (TEXT, {"rope_scaling": ROPE | {"mrope_section": None}}, "expected 'mrope_section' in it"),
        (TEXT, {"rope_scaling": ROPE | {"mrope_section": 64}}, "sum 64, got 64"),
        (TEXT, {"rope_scaling": ROPE | {"mrope_section": [32, 32]}}, r"sum 64, got \[32, 32\]"),
        (TEXT, {"rope_parameters": 5}, "expected rope_parameters as a JSON object, got 5"),
        (TEXT, {"eos_token_id": "x"}, r"expected eos_token_id in 0\.\.151935, got 'x'"),
        (None, {"video_token_id": 151936}, r"video_token_id in 0\.\.151935, got 151936"),
        (TEXT, {"hidden_act": "gelu"}, "text_config: expected hidden_act silu, got 'gelu'"),
        (TEXT, {"attention_bias": True}, "attention_bias=true is not supported"),
        (VISION, {"depth": None}, "vision_config: expected depth as a whole number above 0"),
        (VISION, {"depth": True}, "expected depth as a whole number above 0, got True"),
        (VISION, {"hidden_act": None}, "expected 'hidden_act' in it, found none"),
        (VISION, {"in_channels": 4}, "vision_config: expected in_channels 3, got 4"),
        (VISION, {"num_heads": 7}, "hidden_size in multiples of 28 for 7 heads, got 1024"),
        (VISION, {"num_position_embeddings": 2300}, "as a square, got 2300"),
        (VISION, {"deepstack_visual_indexes": None}, "expected 'deepstack_visual_indexes' in it"),
        (VISION, {"deepstack_visual_indexes": [5, 11, 24]}, r"in 0\.\.23, got \[5, 11, 24\]"),
        (VISION, {"deepstack_visual_indexes": [-1, 5]}, r"in 0\.\.23, got \[-1, 5\]"),
        (VISION, {"deepstack_visual_indexes": [5, 5, 11]}, r"rising numbers .* \[5, 5, 11\]"),
        (VISION, {"deepstack_visual_indexes": [11, 5]}, r"rising numbers .* \[11, 5\]"),
        (VISION, {"deepstack_visual_indexes": 5}, "rising numbers in .* got 5"),
        (VISION, {"out_hidden_size": 4096},
         "expected out_hidden_size 2560 as hidden_size of text_config, got 4096"),
    ],
)  # fmt: skip
def test_what_would_be_another_model_is_refused_in_one_line(place, changes, message):
    with pytest.raises(UserError, match=rf"^folder/config\.json: .*{message}") as caught:
        make_config(with_change(place, **changes), None, "folder/config.json")
    assert "\n" not in str(caught.value)
