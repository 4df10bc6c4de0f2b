"""Hugging Face's config.json and generation_config.json as the configurations of config.py.

LLaVA-NeXT's files leave out what has the value of transformers' classes; Qwen3-VL's may not.
"""

import json
import math
from pathlib import Path

from tiger_jax.errors import UserError
from tiger_jax.models.config import (
    LlavaNextConfig,
    ModelConfig,
    Qwen3VisionConfig,
    Qwen3VLConfig,
    TextConfig,
    VisionConfig,
)

# A llava-hf config.json may leave out what equals the Llama-7B defaults (models.md 1.1).
_LLAMA_DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 2048,
}
_CLIP_DEFAULTS = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 224,
    "patch_size": 32,
    "layer_norm_eps": 1e-5,
    "hidden_act": "quick_gelu",
}
# ... unless vision_config is missing as a whole: then it is LLaVA's own tower, not CLIP's default.
_LLAVA_TOWER = _CLIP_DEFAULTS | {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
}

_QWEN3_TEXT_NUMBERS = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "max_position_embeddings",
)  # fmt: skip
_QWEN3_VISION_NUMBERS = (
    "hidden_size", "intermediate_size", "depth", "num_heads", "patch_size", "temporal_patch_size",
    "spatial_merge_size", "num_position_embeddings", "out_hidden_size",
)  # fmt: skip


def read_json(path: Path) -> dict:
    """Read a JSON object from `path`. Raises UserError naming the file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: file not found") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(value, dict):
        raise UserError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def read_config(folder: str | Path) -> ModelConfig:
    """Read the model configuration of a Hugging Face folder.

    Raises:
        UserError: the folder or its config.json is missing, or names an unsupported architecture.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder}: expected a checkpoint folder, found none there")
    raw = read_json(folder / "config.json")
    generation_path = folder / "generation_config.json"
    generation = read_json(generation_path) if generation_path.exists() else {}
    return make_config(raw, generation, folder / "config.json")


def make_config(
    raw: dict, generation: dict | None = None, where: Path | str = "config.json"
) -> ModelConfig:
    """The configuration that the dictionaries of config.json and generation_config.json describe.

    Raises:
        UserError: an unsupported architecture, or a value that may not be left out is.
    """
    families = {"llava_next": llava_next_config, "qwen3_vl": qwen3_vl_config}
    model_type = raw.get("model_type")
    if model_type not in families:
        raise UserError(f"{where}: expected model_type {' or '.join(families)}, got {model_type!r}")
    try:
        return families[model_type](raw, generation)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    except KeyError as error:
        raise UserError(f"{where}: expected {error} in it, found none") from None


def llava_next_config(raw: dict, generation: dict | None = None) -> LlavaNextConfig:
    """Build the configuration from the dictionaries of config.json and generation_config.json."""
    text_raw = _LLAMA_DEFAULTS | _present(raw.get("text_config"))
    heads, width = text_raw["num_attention_heads"], text_raw["hidden_size"]
    text_raw = {"num_key_value_heads": heads, "head_dim": width // heads} | text_raw
    vision = raw.get("vision_config")
    vision_raw = _LLAVA_TOWER if vision is None else _CLIP_DEFAULTS | _present(vision)
    layers = raw.get("vision_feature_layer", -2)
    image_token = raw.get("image_token_index", raw.get("image_token_id", 32000))
    ids = _present(raw) | _present(generation)
    eos = ids.get("eos_token_id", text_raw.get("eos_token_id", 2))
    pinpoints = raw.get("image_grid_pinpoints") or (
        (336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008),
    )  # fmt: skip
    return LlavaNextConfig(
        vision=_vision_config(vision_raw),
        text=_text_config(text_raw, _is_tied(raw, text_raw), "llama", theta=10000.0),
        image_token_id=image_token,
        pad_token_id=ids.get("pad_token_id", text_raw.get("pad_token_id", 0)) or 0,
        bos_token_id=ids.get("bos_token_id", text_raw.get("bos_token_id", 1)),
        eos_token_ids=tuple(eos) if isinstance(eos, list) else (eos,),
        feature_layers=tuple(layers) if isinstance(layers, list) else (layers,),
        select_strategy=raw.get("vision_feature_select_strategy", "default"),
        projector_activation=raw.get("projector_hidden_act", "gelu"),
        pinpoints=tuple((int(h), int(w)) for h, w in pinpoints),
    )


def qwen3_vl_config(raw: dict, generation: dict | None = None) -> Qwen3VLConfig:
    """Build the configuration from the dictionaries of config.json and generation_config.json.

    Nothing has a default: those of transformers' classes are another model's (models.md 1.2).
    """
    raw = _present(raw)
    text = _section(raw, "text_config", _QWEN3_TEXT_NUMBERS)
    vision = _section(raw, "vision_config", _QWEN3_VISION_NUMBERS)
    if vision["out_hidden_size"] != text["hidden_size"]:
        expected = f"out_hidden_size {text['hidden_size']} as hidden_size of text_config"
        raise UserError(f"vision_config: expected {expected}, got {vision['out_hidden_size']}")
    ids = raw | _present(generation)
    eos = ids.get("eos_token_id", text.get("eos_token_id"))
    if eos is None or eos == []:
        raise KeyError("eos_token_id")
    eos = tuple(eos) if isinstance(eos, list) else (eos,)
    bos = text.get("bos_token_id", eos[-1])
    pad = ids.get("pad_token_id", text.get("pad_token_id", bos))
    tokens = {
        "image_token_id": raw["image_token_id"], "video_token_id": raw["video_token_id"],
        "vision_start_token_id": raw["vision_start_token_id"],
        "vision_end_token_id": raw["vision_end_token_id"], "pad_token_id": pad,
        "bos_token_id": ids.get("bos_token_id", text.get("bos_token_id", pad)),
    }  # fmt: skip
    for name, value in [*tokens.items(), *(("eos_token_id", token) for token in eos)]:
        if type(value) is not int or not 0 <= value < text["vocab_size"]:
            expected = f"{name} in 0..{text['vocab_size'] - 1}"
            raise UserError(f"expected {expected}, got {value!r}")
    return Qwen3VLConfig(
        vision=_qwen3_vision_config(vision),
        text=_text_config(text, _is_tied(raw, text), "qwen3_vl_text"),
        eos_token_ids=eos, **tokens,
    )  # fmt: skip


def _is_tied(raw: dict, text: dict) -> bool:
    """The top-level flag, alone as in transformers 5 (models.md 1.3); without it the nested one."""
    tied = raw.get("tie_word_embeddings")
    return bool(text.get("tie_word_embeddings", False) if tied is None else tied)


def _present(values: dict | None) -> dict:
    """The entries that are not null: Hugging Face writes null for "take the default"."""
    return {key: value for key, value in (values or {}).items() if value is not None}


def _section(raw: dict, name: str, numbers: tuple[str, ...]) -> dict:
    """A sub-object without its nulls. Raises UserError unless `numbers` are whole and above 0."""
    section = raw[name]
    if not isinstance(section, dict):
        raise UserError(f"{name}: expected a JSON object, got {type(section).__name__}")
    for key in numbers:
        value = section.get(key)
        if type(value) is not int or value < 1:
            raise UserError(f"{name}: expected {key} as a whole number above 0, got {value!r}")
    return _present(section)


def _vision_config(raw: dict) -> VisionConfig:
    return VisionConfig(
        hidden_size=raw["hidden_size"],
        intermediate_size=raw["intermediate_size"],
        num_layers=raw["num_hidden_layers"],
        num_heads=raw["num_attention_heads"],
        image_size=raw["image_size"],
        patch_size=raw["patch_size"],
        layer_norm_eps=raw["layer_norm_eps"],
        activation=raw["hidden_act"],
    )


def _qwen3_vision_config(raw: dict) -> Qwen3VisionConfig:
    if raw.get("in_channels", 3) != 3:
        raise UserError(f"vision_config: expected in_channels 3, got {raw['in_channels']}")
    rows, depth, width, heads = (
        raw[key] for key in ("num_position_embeddings", "depth", "hidden_size", "num_heads")
    )
    taps = raw["deepstack_visual_indexes"]
    if width % (4 * heads):  # a head turns with rows and columns, two numbers at a time
        raise UserError(f"vision_config: expected hidden_size in multiples of {4 * heads} for "
                        f"{heads} heads, got {width}")  # fmt: skip
    if math.isqrt(rows) ** 2 != rows:
        raise UserError(f"vision_config: expected num_position_embeddings as a square, got {rows}")
    if not isinstance(taps, list) or taps != [i for i in range(depth) if i in taps]:
        expected = f"deepstack_visual_indexes as rising numbers in 0..{depth - 1}"
        raise UserError(f"vision_config: expected {expected}, got {taps}")
    return Qwen3VisionConfig(
        hidden_size=width,
        intermediate_size=raw["intermediate_size"],
        num_layers=depth,
        num_heads=heads,
        patch_size=raw["patch_size"],
        temporal_patch_size=raw["temporal_patch_size"],
        merge_size=raw["spatial_merge_size"],
        num_positions=rows,
        out_hidden_size=raw["out_hidden_size"],
        deepstack_layers=tuple(taps),
        activation=raw["hidden_act"],
    )


def _text_config(raw: dict, tied: bool, model_type: str, theta: float | None = None) -> TextConfig:
    """A decoder of `model_type`; without `theta` the frequencies' base must be in `raw`."""
    if raw.get("model_type", model_type) != model_type:
        raise UserError(f"text_config: expected model_type {model_type}, got {raw['model_type']!r}")
    for flag in ("attention_bias", "mlp_bias", "use_sliding_window"):
        if raw.get(flag):
            raise UserError(f"text_config: {flag}=true is not supported")
    if (activation := raw.get("hidden_act", "silu")) != "silu":
        raise UserError(f"text_config: expected hidden_act silu, got {activation!r}")
    # Hub files say rope_theta beside rope_scaling; transformers 5 folds both into rope_parameters.
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise UserError(f"text_config: expected rope_parameters as a JSON object, got {rope!r}")
    rope = _present(rope)
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type not in ("default", "mrope"):
        raise UserError(f"text_config: expected rope type default, got {rope_type!r}")
    theta = rope.get("rope_theta", raw.get("rope_theta", theta))
    if theta is None:
        raise UserError("text_config: expected rope_theta, found none")
    qwen3 = model_type == "qwen3_vl_text"
    return TextConfig(
        vocab_size=raw["vocab_size"],
        hidden_size=raw["hidden_size"],
        intermediate_size=raw["intermediate_size"],
        num_layers=raw["num_hidden_layers"],
        num_heads=raw["num_attention_heads"],
        num_kv_heads=raw["num_key_value_heads"],
        head_dim=raw["head_dim"],
        rms_norm_eps=raw["rms_norm_eps"],
        rope_theta=float(theta),
        max_positions=raw["max_position_embeddings"],
        tie_embeddings=tied,
        qk_norm=qwen3,
        mrope_section=_mrope_section(rope, raw["head_dim"]) if qwen3 else (),
    )


def _mrope_section(rope: dict, head_dim: int) -> tuple[int, ...]:
    section = rope["mrope_section"]
    numbers = isinstance(section, list) and all(type(n) is int and n >= 0 for n in section)
    if not numbers or (len(section), sum(section)) != (3, head_dim // 2):
        expected = f"mrope_section of 3 numbers with sum {head_dim // 2}"
        raise UserError(f"text_config: expected {expected}, got {section}")
    if not rope.get("mrope_interleaved", True):
        raise UserError("text_config: expected mrope_interleaved true, got false")
    return tuple(section)
