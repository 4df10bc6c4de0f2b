"""config.json of Qwen3-VL as dictionaries in the hub's spelling: two published ones, a tiny one.

Numbers of the published ones: models.md 1.2.
"""

from typing import Any

_IDS = {
    "image_token_id": 151655, "video_token_id": 151656,
    "vision_start_token_id": 151652, "vision_end_token_id": 151653,
}  # fmt: skip
_VISION = {
    "4b": {
        "depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "out_hidden_size": 2560,
        "deepstack_visual_indexes": [5, 11, 17],
    },
    "8b": {
        "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "out_hidden_size": 4096,
        "deepstack_visual_indexes": [8, 16, 24],
    },
}  # fmt: skip
_TEXT = {
    "4b": {"hidden_size": 2560, "intermediate_size": 9728},
    "8b": {"hidden_size": 4096, "intermediate_size": 12288},
}
_TIED = {"4b": True, "8b": False}


def published_config(size: str) -> dict[str, Any]:
    """config.json of Qwen3-VL-4B-Instruct ("4b", tied embeddings) or 8B-Instruct ("8b", untied)."""
    vision = {"num_heads": 16, "num_position_embeddings": 2304, **_VISION[size]}
    text = {
        "vocab_size": 151936, "num_hidden_layers": 36, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 262144,
        "bos_token_id": 151643, "eos_token_id": 151645, **_TEXT[size],
    }  # fmt: skip
    return _config(vision, text, _IDS, _TIED[size], section=[24, 20, 20])


def tiny_config_json(*, tied: bool = False, layers: int = 4, depth: int = 4) -> dict[str, Any]:
    """config.json of a model of 64 channels; its queries are twice as wide as that.

    Args:
        layers: of the decoder.
        depth: blocks of the tower, at least 3.
    """
    vision = {
        "depth": depth, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2,
        "num_position_embeddings": 64, "out_hidden_size": 64,
        "deepstack_visual_indexes": [0, 1, 2],
    }  # fmt: skip
    text = {
        "vocab_size": 400, "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": layers, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 32, "max_position_embeddings": 2048, "bos_token_id": 394, "eos_token_id": 395,
    }  # fmt: skip
    ids = dict(zip(_IDS, (390, 391, 392, 393), strict=True))
    return _config(vision, text, ids, tied, section=[6, 5, 5])


def _config(
    vision: dict[str, Any], text: dict[str, Any], ids: dict[str, int], tied: bool,
    section: list[int],
) -> dict[str, Any]:  # fmt: skip
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "tie_word_embeddings": tied,
        **ids,
        "text_config": {
            "model_type": "qwen3_vl_text", "hidden_act": "silu", "attention_bias": False,
            "attention_dropout": 0.0, "rms_norm_eps": 1e-6, "rope_theta": 5000000,
            "rope_scaling": {
                "mrope_interleaved": True, "mrope_section": section, "rope_type": "default",
            },
            "tie_word_embeddings": tied, "use_cache": True, "dtype": "bfloat16", **text,
        },
        "vision_config": {
            "model_type": "qwen3_vl", "hidden_act": "gelu_pytorch_tanh", "in_channels": 3,
            "patch_size": 16, "temporal_patch_size": 2, "spatial_merge_size": 2, **vision,
        },
    }  # fmt: skip
