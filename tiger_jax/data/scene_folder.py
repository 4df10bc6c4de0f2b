"""Writes the embedded pairs' Hugging Face folders, all but the weights.

`tiny_llava` is of the LLaVA-NeXT family, `tiny_qwen3_vl` of Qwen3-VL's. The same call always writes
the same bytes.
"""

import json
from pathlib import Path
from typing import Literal

from tiger_jax.data.scene_tokenizer import (
    BOS,
    EOS,
    IMAGE,
    PAD,
    QWEN_SPECIAL_TOKENS,
    SPECIAL_TOKENS,
    Pair,
    build_tokenizer,
)

Role = Literal["verifier", "drafter"]
VOCAB_ROWS, QWEN_VOCAB_ROWS = 384, 512
IMAGE_SIZE, PATCH_SIZE, QWEN_PATCH_SIZE = 112, 14, 7
PINPOINTS = ((112, 112), (112, 224), (224, 112), (224, 224), (336, 112), (112, 336))  # (h, w)
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{%- if message['role'] == 'user' %}{{- 'USER: ' }}"
    "{%- if message['content'] is string %}{{- message['content'] }}"
    "{%- else %}"
    "{%- for part in message['content'] if part['type'] == 'image' %}"
    "{{- '<image>\\n' }}{%- endfor %}"
    "{%- for part in message['content'] if part['type'] == 'text' %}"
    "{{- part['text'] }}{%- endfor %}"
    "{%- endif %}{{- ' ' }}"
    "{%- elif message['role'] == 'assistant' %}{{- 'ASSISTANT: ' }}"
    "{%- if message['content'] is string %}{{- message['content'] }}"
    "{%- else %}{%- for part in message['content'] %}{{- part['text'] }}{%- endfor %}"
    "{%- endif %}{{- '</s>' }}"
    "{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- 'ASSISTANT:' }}{%- endif %}"
)

QWEN_CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' }}"
    "{%- if message['content'] is string %}{{- message['content'] }}"
    "{%- else %}{%- for part in message['content'] %}"
    "{%- if part['type'] == 'image' %}{{- '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- elif part['type'] == 'video' %}{{- '<|vision_start|><|video_pad|><|vision_end|>' }}"
    "{%- elif part['type'] == 'text' %}{{- part['text'] }}{%- endif %}"
    "{%- endfor %}{%- endif %}"
    "{{- '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)

_TEXT_SIZES = {
    "verifier": {"hidden_size": 256, "intermediate_size": 688, "layers": 4, "heads": 8},
    "drafter": {"hidden_size": 128, "intermediate_size": 256, "layers": 2, "heads": 4},
}
"""Of both pairs; in tiny_qwen3_vl two query heads share a key head."""
_QWEN_IDS = {token: i for i, token in enumerate(QWEN_SPECIAL_TOKENS)}
_QWEN_END, _QWEN_TURN_END = _QWEN_IDS["<|endoftext|>"], _QWEN_IDS["<|im_end|>"]


def write_tiny_folder(
    folder: str | Path, role: Role = "verifier", pair: Pair = "tiny_llava"
) -> Path:
    """Write every file but the weights of one model of a pair; returns the folder."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    build_tokenizer(pair).save(str(folder / "tokenizer.json"))
    template, files = (
        (CHAT_TEMPLATE, _llava_files(role))
        if pair == "tiny_llava"
        else (QWEN_CHAT_TEMPLATE, _qwen_files(role))
    )
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    for name, content in files.items():
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def _llava_files(role: Role) -> dict[str, dict]:
    extra = {"image_token": SPECIAL_TOKENS[IMAGE]}
    return {
        "config.json": _llava_config(role),
        "generation_config.json": {
            "bos_token_id": BOS,
            "eos_token_id": EOS,
            "pad_token_id": PAD,
        },
        "tokenizer_config.json": _tokenizer_config(
            "LlavaNextProcessor", _special_tokens(), extra, 2048
        ),
        "special_tokens_map.json": _special_tokens(),
        "preprocessor_config.json": _llava_preprocessor_config(),
        "processor_config.json": {
            "processor_class": "LlavaNextProcessor",
            "image_token": SPECIAL_TOKENS[IMAGE],
            "patch_size": PATCH_SIZE,
            "num_additional_image_tokens": 1,  # the class row; without it counts are one short
            "vision_feature_select_strategy": "default",
        },
    }


def _llava_config(role: Role) -> dict:
    """config.json of the verifier or the drafter, as transformers' LlavaNextConfig reads it."""
    size = _TEXT_SIZES[role]
    return {
        "architectures": ["LlavaNextForConditionalGeneration"],
        "model_type": "llava_next",
        "dtype": "bfloat16",
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
        "image_token_index": IMAGE,
        "image_grid_pinpoints": [list(pinpoint) for pinpoint in PINPOINTS],
        "image_seq_length": (IMAGE_SIZE // PATCH_SIZE) ** 2,
        "projector_hidden_act": "gelu",
        "tie_word_embeddings": False,
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "default",
        "text_config": {
            "model_type": "llama",
            "vocab_size": VOCAB_ROWS,
            "hidden_size": size["hidden_size"],
            "intermediate_size": size["intermediate_size"],
            "num_hidden_layers": size["layers"],
            "num_attention_heads": size["heads"],
            "num_key_value_heads": size["heads"],
            "head_dim": 32,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "max_position_embeddings": 2048,
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": False,
            "bos_token_id": BOS,
            "eos_token_id": EOS,
            "pad_token_id": PAD,
        },
        "vision_config": {
            "model_type": "clip_vision_model",
            "hidden_size": 112,
            "intermediate_size": 448,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "image_size": IMAGE_SIZE,
            "patch_size": PATCH_SIZE,
            "layer_norm_eps": 1e-5,
            "hidden_act": "quick_gelu",
            "projection_dim": 112,
        },
    }


def _special_tokens() -> dict:
    names = ("unk_token", "bos_token", "eos_token", "pad_token")
    return dict(zip(names, SPECIAL_TOKENS, strict=False))


def _llava_preprocessor_config() -> dict:
    return {
        "image_processor_type": "LlavaNextImageProcessor",
        "processor_class": "LlavaNextProcessor",
        "size": {"shortest_edge": IMAGE_SIZE},
        "crop_size": {"height": IMAGE_SIZE, "width": IMAGE_SIZE},
        "image_grid_pinpoints": [list(pinpoint) for pinpoint in PINPOINTS],
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
        "resample": 3,
        "rescale_factor": 1 / 255,
        "do_resize": True,
        "do_center_crop": True,
        "do_rescale": True,
        "do_normalize": True,
        "do_convert_rgb": True,
        "do_pad": True,
    }


def _tokenizer_config(processor: str, special: dict, extra: dict, max_length: int) -> dict:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "processor_class": processor,
        **special,
        "extra_special_tokens": extra,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
        "padding_side": "left",
    }


def _qwen_files(role: Role) -> dict[str, dict]:
    special = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    extra = {
        "image_token": "<|image_pad|>",
        "video_token": "<|video_pad|>",
        "vision_start_token": "<|vision_start|>",
        "vision_end_token": "<|vision_end|>",
    }
    pictures = _qwen_preprocessor_config()
    return {
        "config.json": _qwen_config(role),
        "generation_config.json": {
            "eos_token_id": [_QWEN_TURN_END, _QWEN_END],
            "pad_token_id": _QWEN_END,
        },
        "tokenizer_config.json": _tokenizer_config("Qwen3VLProcessor", special, extra, 4096),
        "special_tokens_map.json": special,
        "preprocessor_config.json": {
            "image_processor_type": "Qwen2VLImageProcessorFast",
            "size": {"shortest_edge": IMAGE_SIZE**2, "longest_edge": 4 * IMAGE_SIZE**2},
            **pictures,
        },
        "video_preprocessor_config.json": {
            "video_processor_type": "Qwen3VLVideoProcessor",
            "size": {"shortest_edge": 4096, "longest_edge": 64 * IMAGE_SIZE**2},
            **pictures,
            "fps": 2,
            "min_frames": 4,
            "max_frames": 64,
        },
        "processor_config.json": {"processor_class": "Qwen3VLProcessor"},
    }


def _qwen_config(role: Role) -> dict:
    """config.json as the hub spells it; transformers 5 folds the two rope entries into one."""
    size = _TEXT_SIZES[role]
    tied = role == "drafter"
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "dtype": "bfloat16",
        "image_token_id": _QWEN_IDS["<|image_pad|>"],
        "video_token_id": _QWEN_IDS["<|video_pad|>"],
        "vision_start_token_id": _QWEN_IDS["<|vision_start|>"],
        "vision_end_token_id": _QWEN_IDS["<|vision_end|>"],
        "tie_word_embeddings": tied,
        "text_config": {
            "model_type": "qwen3_vl_text",
            "vocab_size": QWEN_VOCAB_ROWS,
            "hidden_size": size["hidden_size"],
            "intermediate_size": size["intermediate_size"],
            "num_hidden_layers": size["layers"],
            "num_attention_heads": size["heads"],
            "num_key_value_heads": size["heads"] // 2,
            "head_dim": 40,  # times the heads is not the hidden size, as in the 4B model
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "rope_scaling": {
                "rope_type": "default",
                "mrope_interleaved": True,
                "mrope_section": [8, 6, 6],
            },
            "max_position_embeddings": 4096,
            "attention_bias": False,
            "tie_word_embeddings": tied,
            "eos_token_id": _QWEN_TURN_END,
            "pad_token_id": _QWEN_END,
        },
        "vision_config": {
            "model_type": "qwen3_vl",
            "hidden_size": 96,
            "intermediate_size": 384,
            "depth": 3,
            "num_heads": 4,
            "in_channels": 3,
            "patch_size": QWEN_PATCH_SIZE,
            "temporal_patch_size": 2,
            "spatial_merge_size": 2,
            "num_position_embeddings": (IMAGE_SIZE // QWEN_PATCH_SIZE) ** 2,
            "out_hidden_size": size["hidden_size"],
            "deepstack_visual_indexes": [0, 1],
            "hidden_act": "gelu_pytorch_tanh",
        },
    }


def _qwen_preprocessor_config() -> dict:
    """What pictures and videos share. The numbers of `size` are areas in pixels."""
    return {
        "processor_class": "Qwen3VLProcessor",
        "patch_size": QWEN_PATCH_SIZE,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "resample": 3,
        "rescale_factor": 1 / 255,
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "do_convert_rgb": True,
    }
