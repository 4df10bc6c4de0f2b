"""One set of random weights on both sides: transformers' model and ours, from one folder.

The sizes are those of models.md section 10. Norms, biases and embeddings are drawn too: the usual
ones and zeros hide most mistakes.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import tokenizers
import torch
import transformers
from PIL import Image
from tokenizers.processors import TemplateProcessing
from transformers.models.llava_next.image_processing_pil_llava_next import (
    LlavaNextImageProcessorPil,
)

from tiger_jax.data.processor import Processor
from tiger_jax.models.config import LlavaNextConfig
from tiger_jax.models.config_reader import read_config
from tiger_jax.models.interface import Params, VisionLanguageModel, build_model
from tiger_jax.weights.load import load_params

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

PINPOINTS = [[56, 112], [112, 56], [112, 112], [168, 56], [56, 168]]
IMAGE_TOKEN = 300  # the first id behind the words; 301..319 are filler rows
TABLES = ("embed_tokens", "position_embedding", "pos_embed")
WORDS = ["<unk>", "<s>", "</s>", "<pad>", "USER:", "ASSISTANT:"]
VISION = {
    "model_type": "clip_vision_model",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": 56,
    "patch_size": 14,
}
TEXT = {
    "model_type": "llama",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "pad_token_id": 3,
}


@dataclass(frozen=True)
class Pair:
    """The same weights in transformers (`reference`) and here (`model`, `params`)."""

    reference: transformers.LlavaNextForConditionalGeneration
    reference_processor: transformers.LlavaNextProcessor
    model: VisionLanguageModel
    params: Params
    processor: Processor

    @property
    def config(self) -> LlavaNextConfig:
        return self.model.config


def make_pair(folder: Path, text: dict[str, Any] | None = None, **config: Any) -> Pair:
    """A pair whose weights went through `folder`; `text` and `config` change the defaults."""
    torch.manual_seed(0)
    hf_config = transformers.LlavaNextConfig(
        vision_config=dict(VISION),
        text_config={**TEXT, **(text or {})},
        image_token_index=IMAGE_TOKEN,
        image_grid_pinpoints=PINPOINTS,
        **config,
    )
    reference = transformers.LlavaNextForConditionalGeneration(hf_config).eval()
    make_lively(reference)
    reference_processor = make_reference_processor()
    reference.save_pretrained(folder)
    # preprocessor_config.json as hub folders have it; version 5 nests it in processor_config.json
    reference_processor.tokenizer.save_pretrained(folder)
    reference_processor.image_processor.save_pretrained(folder)
    ours = read_config(folder)
    return Pair(
        reference,
        reference_processor,
        build_model(ours),
        load_params(folder, ours, dtype=jnp.float32),
        Processor.from_folder(folder, ours),
    )


@torch.no_grad()
def make_lively(reference: torch.nn.Module) -> None:
    """Matrices normal / sqrt(fan in), scales 1 + 0.1 normal, biases 0.1 normal, embeddings 0.5.

    Two exceptions. Patch rows are halved: at unit variance an epsilon of 1e-6 in place of 1e-5 in
    CLIP's norms would stay below the gate. The decoder's queries and keys are doubled, and half
    as large again where they have norms: attention that averages over everything hides wrong masks,
    and makes greedy decoding repeat one token.
    """
    generator = torch.Generator().manual_seed(1)
    for name, weight in reference.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if "norm" in name and name.endswith("weight"):
            weight.copy_((1 + 0.1 * noise) * _gain(name))
        elif name.endswith("bias"):
            weight.copy_(0.1 * noise)
        elif weight.ndim < 2 or any(table in name for table in TABLES):
            weight.copy_(0.5 * noise)
        else:
            fan_in = weight[0].numel()
            weight.copy_(noise * fan_in**-0.5 * _gain(name))


def _gain(name: str) -> float:
    if "patch_embedding" in name:
        return 0.5
    in_decoder = "language_model" in name and name.endswith(("q_proj.weight", "k_proj.weight"))
    in_norm = name.endswith(("q_norm.weight", "k_norm.weight"))
    return 2.0 if in_decoder else 1.5 if in_norm else 1.0


def make_reference_processor() -> transformers.LlavaNextProcessor:
    """A word-level tokenizer that starts with <s> and pads on the left, and tiles of 56 pixels."""
    words = [*WORDS, *(f"word{i}" for i in range(IMAGE_TOKEN - len(WORDS)))]
    level = tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, "<unk>")
    tokenizer = tokenizers.Tokenizer(level)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>",
        pad_token="<pad>", additional_special_tokens=["<image>"], padding_side="left",
    )  # fmt: skip
    tiles = LlavaNextImageProcessorPil(
        size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56},
        image_grid_pinpoints=PINPOINTS,
    )  # fmt: skip
    return transformers.LlavaNextProcessor(
        tiles, fast, patch_size=14, vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )  # fmt: skip


def picture(height: int, width: int, seed: int = 0) -> Image.Image:
    """Coloured noise over a slope: no two tiles, rows, columns or channels are alike."""
    rng = np.random.default_rng([height, width, seed])
    slope = np.linspace(0, 120, height)[:, None, None] + np.linspace(0, 90, width)[None, :, None]
    pixels = slope * np.array([1.0, 0.5, 0.2]) + rng.uniform(0, 45, (height, width, 3))
    return Image.fromarray(pixels.astype(np.uint8))


def prompt_text(images: int, words: int = 6, seed: int = 0) -> str:
    """Words, the placeholders between them, words."""
    rng = np.random.default_rng([images, words, seed])
    drawn = [f"word{i}" for i in rng.integers(0, 290, words + images)]
    between = [part for word in drawn[:images] for part in ("<image>", word)]
    return " ".join(["USER:", *drawn[images : images + words // 2], *between,
                     *drawn[images + words // 2 :], "ASSISTANT:"])  # fmt: skip
