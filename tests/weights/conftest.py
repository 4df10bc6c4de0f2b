"""A tiny random LLaVA-NeXT made by transformers, written in each of the five layouts."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import tokenizers
import torch
import transformers
from transformers.models.llava_next.image_processing_pil_llava_next import (
    LlavaNextImageProcessorPil,
)

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

VOCAB, IMAGE_TOKEN = 128, 100  # an original vocabulary of 100 rows grows to 128
VISION = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
TEXT = {
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 12,  # more than 10: text order would put layer 10 before layer 2
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
}
PINPOINTS = [[28, 56], [56, 28], [56, 56]]

# Names of transformers 5 in memory (layout C) -> each layout, written out by hand.
FROM_MEMORY = {
    "A": {
        "model.language_model.": "language_model.model.",
        "lm_head.": "language_model.lm_head.",
        "model.vision_tower.": "vision_tower.vision_model.",
        "model.multi_modal_projector.": "multi_modal_projector.",
        "model.image_newline": "image_newline",
    },
    "C": {},
    "D": {
        "model.language_model.": "language_model.model.",
        "lm_head.": "language_model.lm_head.",
        "model.vision_tower.": "vision_tower.",
        "model.multi_modal_projector.": "multi_modal_projector.",
        "model.image_newline": "image_newline",
    },
    "E": {"model.vision_tower.": "model.vision_tower.vision_model."},
    "O": {
        "model.language_model.": "model.",
        "model.vision_tower.": "model.vision_tower.vision_tower.vision_model.",
        "model.multi_modal_projector.linear_1.": "model.mm_projector.0.",
        "model.multi_modal_projector.linear_2.": "model.mm_projector.2.",
    },
}

ORIGINAL_CONFIG = {
    "model_type": "llava",
    "architectures": ["LlavaLlamaForCausalLM"],
    "vocab_size": IMAGE_TOKEN,
    **{key: value for key, value in TEXT.items() if key != "vocab_size"},
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
    "mm_vision_tower": "tower",
    "mm_vision_select_layer": -2,
    "mm_vision_select_feature": "patch",
    "mm_projector_type": "mlp2x_gelu",
    "mm_patch_merge_type": "spatial_unpad",
    "image_aspect_ratio": "anyres",
    "image_grid_pinpoints": [[28, 56], [56, 28], [56, 56]],
    "image_crop_resolution": 224,
}


def rename(name: str, layout: str) -> str:
    for own, other in FROM_MEMORY[layout].items():
        if name.startswith(own):
            return other + name.removeprefix(own)
    return name


@pytest.fixture(scope="session")
def hf_model() -> transformers.LlavaNextForConditionalGeneration:
    torch.manual_seed(0)
    config = transformers.LlavaNextConfig(
        vision_config={"model_type": "clip_vision_model", **VISION},
        text_config={"model_type": "llama", "rms_norm_eps": 1e-5, **TEXT},
        image_token_index=IMAGE_TOKEN,
        image_grid_pinpoints=PINPOINTS,
    )
    model = transformers.LlavaNextForConditionalGeneration(config).eval()
    with torch.no_grad():  # the usual ones and zeros would hide exchanged norms and biases
        for weight in model.parameters():
            weight.normal_(0.0, 0.3)
    return model


@pytest.fixture(scope="session")
def state(hf_model) -> dict[str, torch.Tensor]:
    return {name: weight.clone() for name, weight in hf_model.state_dict().items()}


@pytest.fixture(scope="session")
def write_layout(hf_model, state) -> Callable[[Path, str], Path]:
    """(folder, layout) -> that folder, with config.json and model.safetensors in that layout."""

    def write(folder: Path, layout: str) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {rename(name, layout): weight for name, weight in state.items()}
        if layout == "O":
            for name in ("model.embed_tokens.weight", "lm_head.weight"):
                tensors[name] = tensors[name][:IMAGE_TOKEN].clone()
            (folder / "config.json").write_text(json.dumps(ORIGINAL_CONFIG))
            (folder / "tower").mkdir(exist_ok=True)
            (folder / "tower" / "config.json").write_text(json.dumps(VISION))
        else:
            hf_model.config.save_pretrained(folder)
        safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        return folder

    return write


@pytest.fixture(scope="session")
def processor() -> transformers.LlavaNextProcessor:
    """A word-level tokenizer of 100 ids, <image> behind them, and tiles of 28 pixels."""
    words = ["<unk>", "<s>", "</s>", "<pad>", "USER:", "ASSISTANT:", "Describe", "the", "image."]
    words += [f"word{i}" for i in range(IMAGE_TOKEN - len(words))]
    level = tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, "<unk>")
    tokenizer = tokenizers.Tokenizer(level)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>",
        pad_token="<pad>", additional_special_tokens=["<image>"],
    )  # fmt: skip
    tiles = LlavaNextImageProcessorPil(
        size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28},
        image_grid_pinpoints=PINPOINTS,
    )  # fmt: skip
    return transformers.LlavaNextProcessor(
        tiles, fast, patch_size=14, vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )  # fmt: skip


@pytest.fixture
def layout_a(tmp_path, write_layout) -> Path:
    return write_layout(tmp_path / "layout_a", "A")
