"""The embedded models' folders with one layer of everything, for tests that run whole programs."""

import json
from pathlib import Path

from tiger_jax.data.scene_folder import write_tiny_folder

ONE_LAYER = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
             "num_attention_heads": 2}  # fmt: skip


def write_small_folder(folder: Path, role: str, **fields: str) -> Path:
    """Config, tokenizer and processor of a verifier or drafter; `fields` stand in config.json."""
    written = write_tiny_folder(folder, role)
    config = json.loads((written / "config.json").read_text()) | fields
    config["text_config"] |= ONE_LAYER | {"num_key_value_heads": 2, "head_dim": 16}
    config["vision_config"] |= ONE_LAYER | {"hidden_size": 16, "intermediate_size": 16}
    (written / "config.json").write_text(json.dumps(config))
    return written
