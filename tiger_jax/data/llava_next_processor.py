"""LLaVA-NeXT's side of the processor: anyres tiles, "<image>" placeholders, Vicuna's prompt.

A video stands in a prompt as LLaVA-NeXT-Video has it: one placeholder, whose frames' rows follow
each other, row by row, with nothing between them. A frame is one base tile: the whole picture
squashed, without padding. How many rows it keeps says data/visual_budget.py.

Letters: n tiles of a picture, H, W tile height, width, S tokens, f frames.
"""

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float32, Int, Int32, UInt8
from PIL import Image

from tiger_jax.data.processor import Processor, image_settings, rgb_pixels
from tiger_jax.data.videos import MOST_FRAMES, Video
from tiger_jax.data.visual import IMAGE_TOKEN, VIDEO_TOKEN, Visual
from tiger_jax.data.visual_budget import Layout, choose_layout, default_budget
from tiger_jax.errors import UserError
from tiger_jax.models.config import LlavaNextConfig
from tiger_jax.models.frames import PooledTiles
from tiger_jax.models.image_geometry import (
    image_token_places,
    image_token_rows,
    pooled_token_places,
    pooled_token_rows,
)

SYSTEM_HUMAN = (  # as the Hugging Face model card and conversion script write it
    "A chat between a curious human and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the human's questions."
)
SYSTEM_USER = (  # as the original vicuna_v1 conversation writes it; other words, other logits
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions."
)
_SYSTEM = {"human": SYSTEM_HUMAN, "user": SYSTEM_USER}
_VIDEO = -1
"""Stands for a video among a prompt's ids until it is expanded: the vocabulary has no such id."""


def vicuna_prompt(
    question: str, n_images: int = 0, system: Literal["human", "user"] | None = "human",
    n_videos: int = 0,
) -> str:  # fmt: skip
    """ "SYSTEM USER: <image>\\nQUESTION ASSISTANT:" with one placeholder line for each image, then
    one "<video>" for each video."""
    start = f"{_SYSTEM[system]} " if system else ""
    marks = _front(question, IMAGE_TOKEN, n_images, n_videos)
    lines = "".join(f"{mark}\n" for mark in marks)
    return f"{start}USER: {lines}{question} ASSISTANT:"


def _front(question: str, image_token: str, n_images: int, n_videos: int) -> list[str]:
    """Marks of the pictures that the question does not place itself."""
    images = [] if image_token in question else [image_token] * n_images
    return images + ([] if VIDEO_TOKEN in question else [VIDEO_TOKEN] * n_videos)


@dataclass(frozen=True)
class LlavaNextProcessor(Processor):
    """Pictures as a base tile and the tiles of the best grid, frames of videos as base tiles,
    within a budget of visual tokens; positions count tokens."""

    image_processor: Any
    chosen_budget: int | None = None
    """None: `default_budget`."""

    @classmethod
    def read(
        cls, folder: Path, config: LlavaNextConfig, tokenizer: Any, template: str | None,
        video_prompt: str = "v5",
    ) -> "LlavaNextProcessor":  # fmt: skip
        """Raises UserError if the folder's tile size is not the model's."""
        if video_prompt != "v5":
            raise UserError(
                "video_prompt: expected v5 for a LLaVA model, whose videos have no marks around "
                f"them, got {video_prompt}"
            )
        return cls(config, tokenizer, template, _load_image_processor(folder, config))

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; `<s>` comes first exactly once if the tokenizer puts it there."""
        ids = self.tokenizer.encode(text)
        bos = self.config.bos_token_id
        return ids[1:] if ids[:2] == [bos, bos] else ids

    def encode_prompt(self, text: str, n_videos: int) -> list[int]:
        """Where videos are given, "<video>" is read as the image token that stands for one."""
        if not n_videos:
            return self.encode(text)
        marks = iter(re.findall(f"{re.escape(self.image_token)}|{VIDEO_TOKEN}", text))
        ids = self.encode(text.replace(VIDEO_TOKEN, self.image_token))
        image = self.config.image_token_id
        return [_VIDEO if i == image and next(marks, None) == VIDEO_TOKEN else i for i in ids]

    def encode_answer(self, answer: str) -> list[int]:
        return self.encode_piece(f" {answer}{self.tokenizer.eos_token}")

    def prompt(self, question: str, n_images: int = 0, n_videos: int = 0) -> str:
        if self.chat_template is None:
            return vicuna_prompt(question, n_images, n_videos=n_videos)
        front = _front(question, self.image_token, n_images, n_videos)
        text = self.render([*[{"type": "image"}] * len(front), {"type": "text", "text": question}])
        if not n_videos:
            return text
        # Templates know images only, and put them first: the last of those in front are videos.
        first, *pieces = text.split(self.image_token, len(front))
        return first + "".join(map("".join, zip(front, pieces, strict=False)))

    def placeholder(self, kind: Literal["image", "video"]) -> int:
        return self.config.image_token_id if kind == "image" else _VIDEO

    def with_budget(self, visual_budget: int) -> "LlavaNextProcessor":
        if visual_budget < 1:
            raise UserError(f"visual budget: expected at least 1 token, got {visual_budget}")
        return dataclasses.replace(self, chosen_budget=visual_budget)

    @property
    def visual_budget(self) -> int:
        return self.chosen_budget or default_budget(self.config)

    @property
    def most_tiles(self) -> int:
        return MOST_FRAMES  # a tile each; the tower takes them in parts

    def visuals(self, pictures: Sequence[Image.Image | np.ndarray | Video]) -> list[Visual]:
        config = self.config
        stills = [rgb_pixels(shown) for shown in pictures if not isinstance(shown, Video)]
        rows = [int((image_token_rows(*still.shape[:2], config) >= 0).sum()) for still in stills]
        frames = sum(len(shown.pictures) for shown in pictures if isinstance(shown, Video))
        layout = choose_layout(self.visual_budget, rows, frames, config.vision.grid)
        return [self._shown(picture, layout) for picture in pictures]

    def visual(self, picture: Image.Image | np.ndarray | Video) -> Visual:
        return self.visuals([picture])[0]

    def fit(self, picture: UInt8[np.ndarray, "H W 3"], n: int) -> UInt8[np.ndarray, "h w 3"]:
        """The picture squashed to a base tile, as anyres has it: one that is a tile stays."""
        size = self.config.vision.image_size
        resample = Image.Resampling(int(self.image_processor.resample))
        return np.asarray(Image.fromarray(picture).resize((size, size), resample))

    def _shown(self, picture: Image.Image | np.ndarray | Video, layout: Layout) -> Visual:
        if isinstance(picture, Video):
            return self._base_tiles(picture.pictures, layout.stride)
        pixels = rgb_pixels(picture)
        return self._anyres(pixels) if layout.anyres else self._base_tiles(
            pixels[None], layout.stride
        )  # fmt: skip

    def _anyres(self, picture: UInt8[np.ndarray, "H W 3"]) -> Visual:
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

    def _base_tiles(self, pictures: UInt8[np.ndarray, "f H W 3"], stride: int) -> Visual:
        """Frames one after the other, each averaged in squares of `stride` x `stride` patches."""
        config, count = self.config, len(pictures)
        rows = pooled_token_rows(stride, config)
        tiles = np.stack([self.normalise(self.fit(picture, count)) for picture in pictures])
        if stride > 1:
            tiles = PooledTiles(tiles, np.full(count, stride, np.int32))
        frames = np.repeat(np.arange(count, dtype=np.int32), len(rows))
        return Visual(
            tokens=np.full(len(frames), config.image_token_id, np.int32),
            rows=frames * config.rows_per_tile + np.tile(rows, count),
            places=np.tile(pooled_token_places(stride, config), (count, 1)),
            frames=frames,
            grids=np.zeros((0, 2), np.int32),
            tiles=tiles,
            tile_rows=config.rows_per_tile,
        )

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
