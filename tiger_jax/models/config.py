"""Model configurations as frozen dataclasses, read from the `config.json` of a Hugging Face folder.

They are hashable, so that a jitted program can close over them as static values.
"""

import dataclasses
import json
from pathlib import Path

from tiger_jax.errors import UserError

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


@dataclasses.dataclass(frozen=True)
class VisionConfig:
    """A CLIP ViT tower. Sizes in pixels are those of one tile."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    image_size: int
    patch_size: int
    layer_norm_eps: float = 1e-5
    activation: str = "quick_gelu"

    @property
    def grid(self) -> int:
        """Patches along one side of a tile."""
        return self.image_size // self.patch_size


@dataclasses.dataclass(frozen=True)
class TextConfig:
    """A Llama-like decoder."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_positions: int
    tie_embeddings: bool = False


@dataclasses.dataclass(frozen=True)
class LlavaNextConfig:
    """LLaVA-NeXT: CLIP tower, two-layer projector, anyres packing, Llama decoder."""

    vision: VisionConfig
    text: TextConfig
    image_token_id: int
    pad_token_id: int
    bos_token_id: int
    eos_token_ids: tuple[int, ...]
    feature_layers: tuple[int, ...]
    select_strategy: str
    projector_activation: str
    pinpoints: tuple[tuple[int, int], ...]
    """Candidate canvas sizes, (height, width) in pixels, in the order that breaks ties."""

    @property
    def rows_per_tile(self) -> int:
        """Visual tokens that the tower gives for one tile."""
        return self.vision.grid**2 + (self.select_strategy == "full")


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


def read_config(folder: str | Path) -> LlavaNextConfig:
    """Read the model configuration of a Hugging Face folder.

    Raises:
        UserError: the folder or its config.json is missing, or names an unsupported architecture.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder}: expected a checkpoint folder, found none there")
    raw = read_json(folder / "config.json")
    model_type = raw.get("model_type")
    if model_type != "llava_next":
        raise UserError(
            f"{folder / 'config.json'}: expected model_type llava_next, got {model_type!r}"
        )
    generation_path = folder / "generation_config.json"
    generation = read_json(generation_path) if generation_path.exists() else {}
    return llava_next_config(raw, generation)


def llava_next_config(raw: dict, generation: dict | None = None) -> LlavaNextConfig:
    """Build the configuration from the dictionaries of config.json and generation_config.json."""
    text_raw = _LLAMA_DEFAULTS | _present(raw.get("text_config"))
    # v5 obeys only the top-level flag (models.md 1.3); the nested one counts where it is absent.
    tied = raw.get("tie_word_embeddings")
    tied = bool(text_raw.get("tie_word_embeddings", False) if tied is None else tied)
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
        text=_text_config(text_raw, tied),
        image_token_id=image_token,
        pad_token_id=ids.get("pad_token_id", text_raw.get("pad_token_id", 0)) or 0,
        bos_token_id=ids.get("bos_token_id", text_raw.get("bos_token_id", 1)),
        eos_token_ids=tuple(eos) if isinstance(eos, list) else (eos,),
        feature_layers=tuple(layers) if isinstance(layers, list) else (layers,),
        select_strategy=raw.get("vision_feature_select_strategy", "default"),
        projector_activation=raw.get("projector_hidden_act", "gelu"),
        pinpoints=tuple((int(h), int(w)) for h, w in pinpoints),
    )


def _present(values: dict | None) -> dict:
    """The entries that are not null: Hugging Face writes null for "take the default"."""
    return {key: value for key, value in (values or {}).items() if value is not None}


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


def _text_config(raw: dict, tied: bool) -> TextConfig:
    if raw.get("model_type", "llama") != "llama":
        raise UserError(f"text_config: expected model_type llama, got {raw['model_type']!r}")
    for flag in ("attention_bias", "mlp_bias"):
        if raw.get(flag):
            raise UserError(f"text_config: {flag}=true is not supported")
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type != "default":
        raise UserError(f"text_config: expected rope type default, got {rope_type!r}")
    heads = raw["num_attention_heads"]
    return TextConfig(
        vocab_size=raw["vocab_size"],
        hidden_size=raw["hidden_size"],
        intermediate_size=raw["intermediate_size"],
        num_layers=raw["num_hidden_layers"],
        num_heads=heads,
        num_kv_heads=raw.get("num_key_value_heads", heads),
        head_dim=raw.get("head_dim", raw["hidden_size"] // heads),
        rms_norm_eps=raw["rms_norm_eps"],
        rope_theta=float(rope.get("rope_theta", raw.get("rope_theta", 10000.0))),
        max_positions=raw["max_position_embeddings"],
        tie_embeddings=tied,
    )
