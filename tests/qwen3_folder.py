"""A Qwen3-VL folder without weights: tiny configuration, tokenizer of bytes or Qwen3's own."""

import json
import shutil
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

QWEN3_TOKENIZER = Path(__file__).parents[2] / "shared/data/tokenizers/qwen3"
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>",
           "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>")  # fmt: skip
TEMPLATE = (  # what the published one says for turns of text, images and videos
    "{%- for message in messages -%}{{ '<|im_start|>' + message.role + '\n' }}"
    "{%- for part in message.content -%}"
    "{%- if part.type == 'image' -%}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- elif part.type == 'video' -%}{{ '<|vision_start|><|video_pad|><|vision_end|>' }}"
    "{%- else -%}{{ part.text }}{%- endif -%}{%- endfor -%}{{ '<|im_end|>\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"
)
IMAGE = {
    "size": {"longest_edge": 16777216, "shortest_edge": 65536},
    "patch_size": 16, "temporal_patch_size": 2, "merge_size": 2,
    "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
    "image_processor_type": "Qwen2VLImageProcessorFast",
}  # fmt: skip
VIDEO = IMAGE | {"size": {"longest_edge": 25165824, "shortest_edge": 4096}}


def write_qwen3_folder(folder: Path, real: bool = False, template: str | None = TEMPLATE) -> Path:
    """Config, tokenizer and processor settings in the published layout."""
    folder.mkdir(parents=True)
    ids = _qwen3_tokenizer(folder) if real else _byte_tokenizer(folder)
    config = {
        "model_type": "qwen3_vl",
        "tie_word_embeddings": True,
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "text_config": {
            "model_type": "qwen3_vl_text", "vocab_size": ids["<|video_pad|>"] + 40,
            "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 4,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
            "rms_norm_eps": 1e-6, "max_position_embeddings": 4096, "rope_theta": 5e6,
            "rope_scaling": {"mrope_interleaved": True, "mrope_section": [6, 5, 5]},
            "bos_token_id": ids["<|endoftext|>"], "eos_token_id": ids["<|im_end|>"],
        },
        "vision_config": {
            "depth": 4, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2,
            "patch_size": 16, "temporal_patch_size": 2, "spatial_merge_size": 2,
            "num_position_embeddings": 64, "out_hidden_size": 64,
            "deepstack_visual_indexes": [0, 1, 2], "hidden_act": "gelu_pytorch_tanh",
        },
    }  # fmt: skip
    generation = {
        "pad_token_id": ids["<|endoftext|>"],
        "eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]],
    }
    files = {"config": config, "generation_config": generation, "preprocessor_config": IMAGE,
             "video_preprocessor_config": VIDEO}  # fmt: skip
    if template is not None:
        files["chat_template"] = {"chat_template": template}
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def _byte_tokenizer(folder: Path) -> dict[str, int]:
    vocab = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    wrapped.save_pretrained(folder)
    return {text: len(vocab) + i for i, text in enumerate(SPECIAL)}


def _qwen3_tokenizer(folder: Path) -> dict[str, int]:
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(QWEN3_TOKENIZER / name, folder)
    settings = json.loads((QWEN3_TOKENIZER / "tokenizer_config.json").read_text())
    del settings["chat_template"]  # Qwen3's own: text only
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    tokens = settings["added_tokens_decoder"]
    return {token["content"]: int(i) for i, token in tokens.items() if token["content"] in SPECIAL}
