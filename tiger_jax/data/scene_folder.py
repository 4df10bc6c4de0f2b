"""Writes the embedded pair's Hugging Face folders, all but the weights.

The tokenizer is a BPE model without merges: a word of the scene grammar, with its leading space, is
one row of the vocabulary, and any other text falls back to characters and UTF-8 bytes, so nothing a
person types is lost. The same call always writes the same bytes.
"""

import json
import re
from pathlib import Path
from typing import Literal

from tiger_jax.data.scene_language import grammar_texts

Role = Literal["verifier", "drafter"]
SPECIAL_TOKENS = ("<unk>", "<s>", "</s>", "<pad>", "<image>")
UNK, BOS, EOS, PAD, IMAGE = range(5)
VOCAB_ROWS = 384
IMAGE_SIZE, PATCH_SIZE = 112, 14
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

_SPACE = "\u2581"  # the visible space of SentencePiece vocabularies
_PIECES = (  # how text is cut before look-up: role marks, words with their space, single characters
    rf"{_SPACE}ASSISTANT:|USER:|{_SPACE}?[A-Za-z]+|{_SPACE}?[0-9]+|[\s\S]"
)
_TEXT_SIZES = {
    "verifier": {"hidden_size": 256, "intermediate_size": 688, "layers": 4, "heads": 8},
    "drafter": {"hidden_size": 128, "intermediate_size": 256, "layers": 2, "heads": 4},
}


def write_tiny_folder(folder: str | Path, role: Role = "verifier") -> Path:
    """Write every file but the weights of one of the embedded pair; returns the folder."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    build_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    for name, content in {
        "config.json": model_config(role),
        "generation_config.json": {
            "bos_token_id": BOS,
            "eos_token_id": EOS,
            "pad_token_id": PAD,
        },
        "tokenizer_config.json": _tokenizer_config(),
        "special_tokens_map.json": _special_tokens(),
        "preprocessor_config.json": _preprocessor_config(),
        "processor_config.json": {
            "processor_class": "LlavaNextProcessor",
            "image_token": SPECIAL_TOKENS[IMAGE],
            "patch_size": PATCH_SIZE,
            "num_additional_image_tokens": 1,  # the class row; without it counts are one short
            "vision_feature_select_strategy": "default",
        },
    }.items():
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def build_tokenizer():
    """The tokenizers.Tokenizer of the pair: `<s>` comes first, special tokens are never cut."""
    from tokenizers import (
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
    )

    vocab = {token: i for i, token in enumerate(vocabulary())}
    tokenizer = Tokenizer(
        models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True, ignore_merges=True)
    )
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.normalizer = normalizers.Replace(" ", _SPACE)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_PIECES), behavior="isolated")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", BOS)]
    )
    return tokenizer


def vocabulary() -> list[str]:
    """Token texts in row order: special tokens, characters, bytes of all others, words."""
    characters = ["\n", _SPACE, *(chr(code) for code in range(33, 127))]
    others = [b for b in (*range(0x20), *range(0x7F, 0xC0), *range(0xC2, 0xF5)) if b != 0x0A]
    pieces = set()
    for text in grammar_texts():
        pieces.update(re.findall(_PIECES, text.replace(" ", _SPACE)))
    pieces |= {"USER:", f"{_SPACE}ASSISTANT:"}
    words = sorted(piece for piece in pieces if len(piece) > 1)
    return [*SPECIAL_TOKENS, *characters, *(f"<0x{b:02X}>" for b in others), *words]


def model_config(role: Role) -> dict:
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


def _tokenizer_config() -> dict:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "processor_class": "LlavaNextProcessor",
        **_special_tokens(),
        "extra_special_tokens": {"image_token": SPECIAL_TOKENS[IMAGE]},
        "clean_up_tokenization_spaces": False,
        "model_max_length": 2048,
        "padding_side": "left",
    }


def _preprocessor_config() -> dict:
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
