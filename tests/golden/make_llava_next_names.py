"""Writes the names and shapes of the two public checkpoints, as transformers builds them.

    JAX_PLATFORMS=cpu python tests/golden/make_llava_next_names.py

makes llava_v1.6_vicuna_{7b,13b}.json beside this file with transformers 5.24 on the meta device (no
memory, no weights). Names are written in the layout of the llava-hf files (layout A of models.md
4.1), which transformers 5 only has on disk; the replacements below are that table's column C -> A,
independent of the code under test. One line a weight: [name with {i}, shape, layers or null].
"""

import json
import re
from pathlib import Path

import torch
from transformers import LlavaNextConfig, LlavaNextForConditionalGeneration

COMMAND = "JAX_PLATFORMS=cpu python tests/golden/make_llava_next_names.py"
TEXT = {  # models.md 1.1
    "7b": {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32},
    "13b": {"hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 40},
}
HEADS = {"7b": 32, "13b": 40}
VISION = {
    "model_type": "clip_vision_model", "hidden_size": 1024, "intermediate_size": 4096,
    "num_hidden_layers": 24, "num_attention_heads": 16, "image_size": 336, "patch_size": 14,
}  # fmt: skip
PINPOINTS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
TO_LAYOUT_A = {
    "model.language_model.": "language_model.model.",
    "lm_head.": "language_model.lm_head.",
    "model.vision_tower.": "vision_tower.vision_model.",
    "model.multi_modal_projector.": "multi_modal_projector.",
    "model.image_newline": "image_newline",
}


def hf_config(size: str) -> dict:
    """The facts of the public config.json that shapes depend on, and those tests read."""
    heads = HEADS[size]
    text = {"model_type": "llama", "vocab_size": 32064, "num_attention_heads": heads, **TEXT[size]}
    text |= {"num_key_value_heads": heads, "rms_norm_eps": 1e-5, "max_position_embeddings": 4096}
    return {
        "model_type": "llava_next", "text_config": text, "vision_config": VISION,
        "image_token_index": 32000, "image_grid_pinpoints": PINPOINTS,
        "vision_feature_layer": -2, "tie_word_embeddings": False,
    }  # fmt: skip


def layout_a(name: str) -> str:
    for own, public in TO_LAYOUT_A.items():
        if name.startswith(own):
            return public + name.removeprefix(own)
    raise ValueError(f"unexpected weight of transformers: {name}")


def main() -> None:
    for size in TEXT:
        raw = hf_config(size)
        with torch.device("meta"):
            model = LlavaNextForConditionalGeneration(LlavaNextConfig(**raw))
        rows: dict[str, list] = {}
        for name, weight in model.state_dict().items():
            pattern = re.sub(r"layers\.\d+\.", "layers.{i}.", layout_a(name))
            row = rows.setdefault(pattern, [pattern, list(weight.shape), 0])
            assert row[1] == list(weight.shape), f"{name}: layers differ in shape"
            row[2] += 1
        lines = [json.dumps([p, s, n if "{i}" in p else None]) for p, s, n in rows.values()]
        head = json.dumps({"command": COMMAND, "config": raw})[:-1]
        out = Path(__file__).with_name(f"llava_v1.6_vicuna_{size}.json")
        out.write_text(head + ', "tensors": [\n' + ",\n".join(lines) + "\n]}\n")


if __name__ == "__main__":
    main()
