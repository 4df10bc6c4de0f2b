"""LLaVA-NeXT's side of the processor: anyres tiles, "<image>" placeholders, Vicuna's prompt.

Letters: n tiles of a picture, H, W tile height, width, S tokens, f frames.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float32, Int, Int32, UInt8
from PIL import Image

from tiger_jax.data.processor import Processor, image_settings, rgb_pixels
from tiger_jax.data.videos import Video
from tiger_jax.data.visual import IMAGE_TOKEN, Visual
from tiger_jax.errors import UserError
from tiger_jax.models.config import LlavaNextConfig
from tiger_jax.models.image_geometry import image_token_places, image_token_rows

SYSTEM_HUMAN = (  # as the Hugging Face model card and conversion script write it
    "A chat between a curious human and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the human's questions."
)
SYSTEM_USER = (  # as the original vicuna_v1 conversation writes it; other words, other logits
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions."
)
_SYSTEM = {"human": SYSTEM_HUMAN, "user": SYSTEM_USER}


def vicuna_prompt(
    question: str, n_images: int = 0, system: Literal["human", "user"] | None = "human"
) -> str:
    """ "SYSTEM USER: <image>\\nQUESTION ASSISTANT:" with one placeholder line for each image."""
    start = f"{_SYSTEM[system]} " if system else ""
    placed = IMAGE_TOKEN in question
    images = "" if placed else f"{IMAGE_TOKEN}\n" * n_images
    return f"{start}USER: {images}{question} ASSISTANT:"


@dataclass(frozen=True)
class LlavaNextProcessor(Processor):
    """Pictures as a base tile and the tiles of the best grid; positions count tokens."""

    image_processor: Any

    @classmethod
    def read(
        cls, folder: Path, config: LlavaNextConfig, tokenizer: Any, template: str | None,
        video_prompt: str = "v5",
    ) -> "LlavaNextProcessor":  # fmt: skip
        """Raises UserError if the folder's tile size is not the model's."""
        if video_prompt != "v5":
            raise UserError(
                f"video_prompt: expected v5 for a model that reads no video, got {video_prompt}"
            )
        return cls(config, tokenizer, template, _load_image_processor(folder, config))

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; `<s>` comes first exactly once if the tokenizer puts it there."""
        ids = self.tokenizer.encode(text)
        bos = self.config.bos_token_id
        return ids[1:] if ids[:2] == [bos, bos] else ids

    def encode_answer(self, answer: str) -> list[int]:
        return self.encode_piece(f" {answer}{self.tokenizer.eos_token}")

    def prompt(self, question: str, n_images: int = 0, n_videos: int = 0) -> str:
        self.check_videos(n_videos)
        if self.chat_template is None:
            return vicuna_prompt(question, n_images)
        placed = self.image_token in question
        images = [] if placed else [{"type": "image"}] * n_images
        return self.render([*images, {"type": "text", "text": question}])

    def placeholder(self, kind: Literal["image", "video"]) -> int | None:
        return self.config.image_token_id if kind == "image" else None

    def visual(self, picture: Image.Image | np.ndarray | Video) -> Visual:
        if isinstance(picture, Video):
            raise _no_video()
        tiles, (height, width) = self.tiles(picture)
        rows = image_token_rows(height, width, self.config)
        return Visual(
            tokens=np.full(len(rows), self.config.image_token_id, np.int32),
            rows=rows,
            places=image_token_places(height, width, self.config),
            frames=np.zeros(len(rows), np.int32),
            grids=np.zeros((0, 2), np.int32),
            tiles=tiles,
            tile_rows=self.config.rows_per_tile,
        )

    def fit(self, picture: UInt8[np.ndarray, "H W 3"], n: int) -> UInt8[np.ndarray, "h w 3"]:
        raise _no_video()

    def check_videos(self, count: int) -> None:
        if count:
            raise _no_video()

    def base_tile(self, picture: Image.Image | np.ndarray) -> Float32[np.ndarray, "1 H W 3"]:
        size = self.config.vision.image_size
        pixels = rgb_pixels(picture)
        if pixels.shape != (size, size, 3):
            raise UserError(f"image: expected a tile of {size}x{size} pixels, got {pixels.shape}")
        return self.normalise(pixels)[None]

    def empty_tiles(self) -> Float32[np.ndarray, "0 H W 3"]:
        size = self.config.vision.image_size
        return np.zeros((0, size, size, 3), np.float32)

    def positions(
        self, tokens: Int[np.ndarray, " S"], grids: Int[np.ndarray, "f 2"]
    ) -> Int32[np.ndarray, " S"]:
        return np.arange(len(tokens), dtype=np.int32)

    @property
    def picture_marks(self) -> tuple[int, ...]:
        return (self.config.image_token_id,)

    def tiles(
        self, image: Image.Image | np.ndarray
    ) -> tuple[Float32[np.ndarray, "n H W 3"], tuple[int, int]]:
        """Normalised tiles of an RGB picture, base tile first, and its (height, width)."""
        pixels = rgb_pixels(image)
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


def _load_image_processor(folder: Path, config: LlavaNextConfig):
    """The Pillow class: it needs no torch and is the one that numpy code can equal."""
    path, settings = image_settings(folder)
    from transformers.models.llava_next.image_processing_pil_llava_next import (
        LlavaNextImageProcessorPil,
    )

    processor = LlavaNextImageProcessorPil.from_dict(settings)
    sides = {*dict(processor.size).values(), *dict(processor.crop_size).values()} - {None}
    if sides != {config.vision.image_size}:
        raise UserError(
            f"{path}: expected tiles of {config.vision.image_size} pixels as in config.json, "
            f"got size and crop_size {sorted(sides)}"
        )
    return processor


def _no_video() -> UserError:
    return UserError("video: this model reads no video; give its pictures as images")
