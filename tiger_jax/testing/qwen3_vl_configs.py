"""config.json of Qwen3-VL as dictionaries in the hub's spelling: two published ones, a tiny one."""

from typing import Any

from tiger_jax.models import published


def published_config(size: str) -> dict[str, Any]:
    """config.json of Qwen3-VL-4B-Instruct ("4b", tied embeddings) or 8B-Instruct ("8b", untied)."""
    return published.published_config(f"Qwen3-VL-{size.upper()}-Instruct")


def tiny_config_json(*, tied: bool = False, layers: int = 4, depth: int = 4) -> dict[str, Any]:
    """config.json of a model of 64 channels; its queries are twice as wide as that.

    Args:
        layers: of the decoder.
        depth: blocks of the tower, at least 3.
    """
    raw = published_config("8b")
    raw |= {
        "tie_word_embeddings": tied, "image_token_id": 390, "video_token_id": 391,
        "vision_start_token_id": 392, "vision_end_token_id": 393,
    }  # fmt: skip
    raw["vision_config"] |= {
        "depth": depth, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2,
        "num_position_embeddings": 64, "out_hidden_size": 64,
        "deepstack_visual_indexes": [0, 1, 2],
    }  # fmt: skip
    raw["text_config"] |= {
        "vocab_size": 400, "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": layers, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 32, "max_position_embeddings": 2048, "bos_token_id": 394, "eos_token_id": 395,
        "tie_word_embeddings": tied,
    }  # fmt: skip
    raw["text_config"]["rope_scaling"]["mrope_section"] = [6, 5, 5]
    return raw
