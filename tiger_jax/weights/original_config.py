"""The config.json of the original liuhaotian format <-> the Hugging Face one, as dictionaries.

The original file (model_type llava or llava_llama) keeps the text fields at the top level, names
the tower instead of describing it, and knows no <image> token: the picture's place is id -200
outside the vocabulary. Hugging Face added <image> and <pad> behind it and padded the rows to 64
(32000 -> 32064), which is what both directions here assume unless the file says otherwise.
"""

from pathlib import Path
from typing import Any

from tiger_jax.errors import UserError
from tiger_jax.models import config_reader
from tiger_jax.models.config import ModelConfig

Json = dict[str, Any]

_MODEL_TYPES = ("llava", "llava_llama")
_ADDED_TOKENS, _ROWS_MULTIPLE = 2, 64  # <image> and <pad>; rows padded for tensor cores

_CLIP_L_336_NAME = "openai/clip-vit-large-patch14-336"
_CLIP_L_336 = {
    "model_type": "clip_vision_model",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
}
_TEXT_KEYS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "rms_norm_eps",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "max_position_embeddings",
    "attention_bias",
    "mlp_bias",
)
_TOKEN_KEYS = ("bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings", "dtype")
# What this port computes; a file that asks for anything else must not be read as if it did.
_REQUIRED = {
    "mm_projector_type": "mlp2x_gelu",
    "mm_patch_merge_type": "spatial_unpad",
    "image_aspect_ratio": "anyres",
    "mm_use_im_start_end": False,
}
_STRATEGIES = {"patch": "default", "cls_patch": "full"}


def is_original(raw: Json) -> bool:
    """True for an original config.json (llava-hf's v1.5 is "llava" too, but names no tower)."""
    return raw.get("model_type") in _MODEL_TYPES and "mm_vision_tower" in raw


def read_raw_config(folder: str | Path, *, pinpoint_order: str = "wh") -> Json:
    """A folder's config.json as a Hugging Face dictionary, translated if it is an original one."""
    path = Path(folder) / "config.json"
    raw = config_reader.read_json(path)
    return original_to_hf(raw, path, pinpoint_order=pinpoint_order) if is_original(raw) else raw


def read_config(folder: str | Path, *, pinpoint_order: str = "wh") -> ModelConfig:
    """As models.config_reader.read_config, for original folders too. Raises UserError likewise."""
    path = Path(folder) / "config.json"
    if path.exists() and is_original(config_reader.read_json(path)):
        raw = read_raw_config(folder, pinpoint_order=pinpoint_order)
        generation = path.with_name("generation_config.json")
        return config_reader.llava_next_config(
            raw, config_reader.read_json(generation) if generation.exists() else None
        )
    return config_reader.read_config(folder)


def original_to_hf(raw: Json, path: Path, *, pinpoint_order: str = "wh") -> Json:
    """The Hugging Face dictionary that describes the same model.

    Args:
        path: where `raw` came from, for messages and for a tower named by a relative folder.
        pinpoint_order: how to read image_grid_pinpoints. "wh" is what the original code does;
            "hw" is what Hugging Face made of the same list. They differ in the grid that a picture
            smaller than one tile gets: wide in "hw", tall in "wh" (models.md section 2).

    Raises:
        UserError: the file asks for something that LLaVA-NeXT here does not compute.
    """
    for key, wanted in _REQUIRED.items():
        if raw.get(key, wanted) != wanted:
            raise UserError(f"{path}: expected {key} {wanted!r}, got {raw[key]!r}")
    feature = raw.get("mm_vision_select_feature", "patch")
    if feature not in _STRATEGIES:
        raise UserError(
            f"{path}: expected mm_vision_select_feature patch or cls_patch, got {feature!r}"
        )
    if pinpoint_order not in ("wh", "hw"):
        raise ValueError(f"pinpoint_order: expected 'wh' or 'hw', got {pinpoint_order!r}")
    step = -1 if pinpoint_order == "wh" else 1
    vocab, image_token = _grown_vocabulary(raw)
    text = {key: raw[key] for key in _TEXT_KEYS if key in raw}
    return {
        "architectures": ["LlavaNextForConditionalGeneration"],
        "model_type": "llava_next",
        "image_token_index": image_token,
        "image_grid_pinpoints": [pair[::step] for pair in raw["image_grid_pinpoints"]],
        "projector_hidden_act": "gelu",
        "vision_feature_layer": raw.get("mm_vision_select_layer", -2),
        "vision_feature_select_strategy": _STRATEGIES[feature],
        "tie_word_embeddings": False,
        "text_config": {"model_type": "llama", "vocab_size": vocab, **text},
        "vision_config": _vision_config(raw, path),
    } | {key: raw[key] for key in _TOKEN_KEYS if key in raw}


def hf_to_original(raw: Json) -> Json:
    """The inverse of original_to_hf (pinpoint_order "wh"), for an export in the original layout."""
    text, image_token = raw.get("text_config", {}), raw["image_token_index"]
    vocab = text.get("vocab_size", 32064)
    plain = {"vocab_size": image_token}
    grown = _grown_vocabulary(plain) == (vocab, image_token)
    vision = _CLIP_L_336 | raw.get("vision_config", {})
    feature = raw.get("vision_feature_select_strategy", "default")
    known = all(vision[key] == value for key, value in _CLIP_L_336.items())
    tower = {"mm_vision_tower": _CLIP_L_336_NAME}
    return {
        "architectures": ["LlavaLlamaForCausalLM"],
        "model_type": "llava_llama",
        **{key: text[key] for key in _TEXT_KEYS if key in text},
        **(plain if grown else {"vocab_size": vocab, "image_token_index": image_token}),
        **(tower if known else {"mm_vision_tower": "in-file", "vision_config": vision}),
        "mm_vision_select_layer": raw.get("vision_feature_layer", -2),
        "mm_vision_select_feature": {v: k for k, v in _STRATEGIES.items()}[feature],
        "image_grid_pinpoints": [pair[::-1] for pair in raw["image_grid_pinpoints"]],
        **_REQUIRED,
    } | {key: raw[key] for key in _TOKEN_KEYS if key in raw}


def _grown_vocabulary(raw: Json) -> tuple[int, int]:
    """(rows, id of <image>) after Hugging Face's additions: 32000 -> (32064, 32000)."""
    vocab = raw.get("vocab_size", 32000)
    if "image_token_index" in raw:  # ours: a vocabulary that has its <image> already
        return vocab, raw["image_token_index"]
    return -(-(vocab + _ADDED_TOKENS) // _ROWS_MULTIPLE) * _ROWS_MULTIPLE, vocab


def _vision_config(raw: Json, path: Path) -> Json:
    """The tower's description: in the file (ours), by its public name, or from a folder."""
    if "vision_config" in raw:
        return raw["vision_config"]
    name = raw["mm_vision_tower"]
    if name == _CLIP_L_336_NAME:
        return _CLIP_L_336
    folder = path.parent / name
    if (folder / "config.json").exists():
        tower = config_reader.read_json(folder / "config.json")
        return tower.get("vision_config", tower)
    raise UserError(
        f"{path}: mm_vision_tower: expected {_CLIP_L_336_NAME} or a folder, got {name!r}"
    )
