"""config.json of published checkpoints by the names of their folders, for programs of their size
without their weights.

Only what decides about shapes is as published; numbers: models.md 1.1, 1.2.
"""

import copy
from typing import Any

from tiger_jax.errors import UserError

PAIRS = {
    "llava_next": ("llava-v1.6-vicuna-13b-hf", "llava-v1.6-vicuna-7b-hf"),
    "qwen3_vl": ("Qwen3-VL-8B-Instruct", "Qwen3-VL-4B-Instruct"),
}
"""The paper's pairs: (verifier, drafter)."""


def _llava(**text: int) -> dict[str, Any]:
    return {
        "model_type": "llava_next", "image_token_index": 32000,
        "text_config": {"vocab_size": 32064, "max_position_embeddings": 4096, **text},
    }  # fmt: skip


def _qwen3(tied: bool, vision: dict[str, Any], **text: int) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl",
        "tie_word_embeddings": tied, "image_token_id": 151655, "video_token_id": 151656,
        "vision_start_token_id": 151652, "vision_end_token_id": 151653,
        "text_config": {
            "model_type": "qwen3_vl_text", "vocab_size": 151936, "num_hidden_layers": 36,
            "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
            "max_position_embeddings": 262144, "hidden_act": "silu", "attention_bias": False,
            "attention_dropout": 0.0, "rms_norm_eps": 1e-6, "rope_theta": 5000000,
            "rope_scaling": {
                "mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default",
            },
            "bos_token_id": 151643, "eos_token_id": 151645, "tie_word_embeddings": tied,
            "use_cache": True, "dtype": "bfloat16", **text,
        },
        "vision_config": {
            "model_type": "qwen3_vl", "hidden_act": "gelu_pytorch_tanh", "in_channels": 3,
            "patch_size": 16, "temporal_patch_size": 2, "spatial_merge_size": 2, "num_heads": 16,
            "num_position_embeddings": 2304, **vision,
        },
    }  # fmt: skip


_CONFIGS = {
    "llava-v1.6-vicuna-13b-hf": _llava(
        hidden_size=5120, intermediate_size=13824, num_hidden_layers=40, num_attention_heads=40
    ),
    "llava-v1.6-vicuna-7b-hf": _llava(
        hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32
    ),
    "Qwen3-VL-8B-Instruct": _qwen3(
        False,
        {
            "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "out_hidden_size": 4096,
            "deepstack_visual_indexes": [8, 16, 24],
        },
        hidden_size=4096, intermediate_size=12288,
    ),
    "Qwen3-VL-4B-Instruct": _qwen3(
        True,
        {
            "depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "out_hidden_size": 2560,
            "deepstack_visual_indexes": [5, 11, 17],
        },
        hidden_size=2560, intermediate_size=9728,
    ),
}  # fmt: skip
NAMES = tuple(_CONFIGS)


def published_config(name: str) -> dict[str, Any]:
    """config.json of a published checkpoint. Raises UserError naming those that are known."""
    if name not in _CONFIGS:
        raise UserError(f"published model: expected one of {', '.join(NAMES)}, got {name!r}")
    return copy.deepcopy(_CONFIGS[name])
