"""Tokenizer and image processor of a checkpoint folder.

The only file that imports transformers' tokenizers and processors.
Letters: n tiles of a picture, H, W tile height, width, V rows of the embedding table.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32
from PIL import Image

from tiger_jax.errors import UserError
from tiger_jax.models.config import LlavaNextConfig, read_config, read_json


@dataclass(frozen=True)
class Processor:
    """Turns text into ids and a picture into normalised tiles, as the checkpoint was published."""

    config: LlavaNextConfig
    tokenizer: Any
    image_processor: Any
    chat_template: str | None

    @classmethod
    def from_folder(cls, folder: str | Path, config: LlavaNextConfig | None = None) -> "Processor":
        """Read the tokenizer, preprocessor_config.json and chat template of a Hugging Face folder.

        Raises:
            UserError: a file is missing or unreadable, or its tile size is not the model's.
        """
        folder = Path(folder)
        config = config or read_config(folder)
        tokenizer = _load_tokenizer(folder)
        template = tokenizer.chat_template or _template_of_json(folder)
        return cls(config, tokenizer, _load_image_processor(folder, config), template)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; `<s>` comes first exactly once if the tokenizer puts it there."""
        ids = self.tokenizer.encode(text)
        bos = self.config.bos_token_id
        return ids[1:] if ids[:2] == [bos, bos] else ids

    def encode_piece(self, text: str) -> list[int]:
        """Token ids of text that continues a prompt: no `<s>`."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Text of `ids` without special tokens.

        The space before a first word stays where the tokenizer keeps it.
        """
        ids = [int(i) for i in ids if int(i) < self.vocab_limit]
        return self.tokenizer.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )

    def tiles(
        self, image: Image.Image | np.ndarray
    ) -> tuple[Float32[np.ndarray, "n H W 3"], tuple[int, int]]:
        """Normalised tiles of an RGB picture, base tile first, and its (height, width)."""
        pixels = np.asarray(image)
        if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8:
            raise UserError(f"image: expected uint8 [H, W, 3], got {pixels.dtype} {pixels.shape}")
        features = self.image_processor(
            [pixels],
            input_data_format="channels_last",  # else 3 pixels high is read as channels first
            image_grid_pinpoints=[list(p) for p in self.config.pinpoints],
            return_tensors="np",
        )
        tiles = np.asarray(features["pixel_values"][0], np.float32)
        return np.ascontiguousarray(tiles.transpose(0, 2, 3, 1)), pixels.shape[:2]

    def normalise(self, pixels: np.ndarray) -> Float32[np.ndarray, "... H W 3"]:
        """uint8 pixels of pictures that already are one tile, scaled as tiles are."""
        mean = np.float32(self.image_processor.image_mean)
        std = np.float32(self.image_processor.image_std)
        return (pixels.astype(np.float32) * np.float32(1 / 255) - mean) / std

    @cached_property
    def image_token(self) -> str:
        """Text of the placeholder, "<image>"."""
        return self.tokenizer.convert_ids_to_tokens(self.config.image_token_id)

    @cached_property
    def vocab_limit(self) -> int:
        """Ids from here on are filler rows of the embedding table: they have no text."""
        return len(self.tokenizer)

    @cached_property
    def drawable(self) -> Bool[np.ndarray, " V"]:
        """False for the ids that decoding must never draw.

        They are filler rows, the placeholder, and padding that is not an end token too.
        """
        allowed = np.arange(self.config.text.vocab_size) < self.vocab_limit
        for token in (self.config.image_token_id, self.config.pad_token_id):
            if token not in self.config.eos_token_ids and 0 <= token < len(allowed):
                allowed[token] = False
        return allowed


def _load_tokenizer(folder: Path):
    if not any(
        (folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")
    ):
        raise UserError(f"{folder}: expected tokenizer.json or tokenizer.model, found neither")
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # the library raises many kinds for a damaged file
        raise UserError(f"{folder}: unreadable tokenizer ({_one_line(error)})") from error


def _load_image_processor(folder: Path, config: LlavaNextConfig):
    """The Pillow class: it needs no torch and is the one that numpy code can equal."""
    settings = _image_settings(folder)
    from transformers.models.llava_next.image_processing_pil_llava_next import (
        LlavaNextImageProcessorPil,
    )

    processor = LlavaNextImageProcessorPil.from_dict(settings)
    sides = {*dict(processor.size).values(), *dict(processor.crop_size).values()} - {None}
    if sides != {config.vision.image_size}:
        raise UserError(
            f"{folder / 'preprocessor_config.json'}: expected tiles of "
            f"{config.vision.image_size} pixels as in config.json, "
            f"got size and crop_size {sorted(sides)}"
        )
    return processor


def _image_settings(folder: Path) -> dict:
    """preprocessor_config.json, or its place inside processor_config.json, as v5 saves it."""
    path = folder / "preprocessor_config.json"
    if not path.is_file() and (folder / "processor_config.json").is_file():
        nested = read_json(folder / "processor_config.json").get("image_processor")
        if isinstance(nested, dict):
            return nested
    return read_json(path)


def _template_of_json(folder: Path) -> str | None:
    """Older folders keep the chat template of the processor in chat_template.json."""
    path = folder / "chat_template.json"
    return read_json(path).get("chat_template") if path.is_file() else None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
