"""What each family's model in transformers does in its own way: a prompt to tensors, pictures to
rows of the bank, rows to states.

S: tokens of a prompt, n: visual tokens of a picture or frame, T: rows of a pass, D: width, W: width
of a row (D, or D and behind it what DeepStack adds after the first layers), A: axes of a position.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from jaxtyping import Float, Float32, Int, Int32
from PIL import Image
from torch import Tensor, nn
from transformers.models.llava_next.image_processing_pil_llava_next import (
    LlavaNextImageProcessorPil,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from tiger_jax.data.prompts import check_placeholders
from tiger_jax.data.visual import IMAGE_TOKEN
from tiger_jax.models.config import LlavaNextConfig, ModelConfig, Qwen3VLConfig
from tiger_jax.models.frame_geometry import mrope_positions, token_kinds, token_places
from tiger_jax.models.image_geometry import image_token_places

TEXT_INPUTS = ("input_ids", "attention_mask")
"""What a prompt without pictures has; all other inputs are pictures'."""


class Picture(NamedTuple):
    """A picture, or a frame of a video."""

    rows: Float[Tensor, "n W"]
    places: Float32[np.ndarray, "n 2"]
    """(y, x) in 0..1 that each token saw."""
    grid: tuple[int, int]
    """Rows and columns in tokens, where positions need them."""


class LlavaNextFamily:
    """transformers' LlavaNextForConditionalGeneration."""

    def __init__(self, vlm: nn.Module, config: LlavaNextConfig) -> None:
        self.vlm, self.config = vlm, config
        self.visual_ids = (config.image_token_id,)
        self.row_width = config.text.hidden_size

    def pictures(
        self, tokens: Int[np.ndarray, " S"], pixel_values: Tensor | None = None,
        image_sizes: Int[Tensor, "n 2"] | None = None, **others: Any,
    ) -> list[Picture]:  # fmt: skip
        """In the order of the prompt, from what transformers' processor returns."""
        if pixel_values is None:
            return []
        pixels = pixel_values.to(self.vlm.device, self.vlm.dtype)
        features = self.vlm.get_image_features(pixels, image_sizes).pooler_output
        return [
            Picture(rows, image_token_places(height, width, self.config), (0, 0))
            for rows, (height, width) in zip(features, image_sizes.tolist(), strict=True)
        ]

    def positions(
        self, tokens: Int[np.ndarray, " S"], pictures: Sequence[Picture]
    ) -> Int32[np.ndarray, " S"]:
        """Rotary positions of a whole prompt."""
        return np.arange(len(tokens), dtype=np.int32)

    def states(self, x: Float[Tensor, "T W"], positions: Int[Tensor, " T"]) -> Tensor:
        """[T, D] after the final norm of one causal pass."""
        # Without a mask, transformers takes a jump in the positions for the start of another text.
        mask = torch.ones(1, len(x), dtype=torch.long, device=x.device)
        return self.vlm.model.language_model(
            inputs_embeds=x[None], position_ids=positions[None], attention_mask=mask,
            use_cache=False,
        ).last_hidden_state[0]  # fmt: skip

    @staticmethod
    def inputs(
        folder: str | Path, config: LlavaNextConfig, text: str, images: list[Image.Image]
    ) -> dict[str, Tensor]:
        """transformers' own processor, but for the pictures its Pillow half."""
        check_placeholders(text.count(IMAGE_TOKEN), len(images))
        processor = transformers.AutoProcessor.from_pretrained(folder)
        processor.image_processor = LlavaNextImageProcessorPil.from_pretrained(folder)
        return dict(processor(text=text, images=images or None, return_tensors="pt"))


class Qwen3VLFamily:
    """transformers' Qwen3VLForConditionalGeneration; methods as LlavaNextFamily has them."""

    def __init__(self, vlm: nn.Module, config: Qwen3VLConfig) -> None:
        self.vlm, self.config = vlm, config
        self.visual_ids = (config.image_token_id, config.video_token_id)
        self.row_width = (1 + len(config.vision.deepstack_layers)) * config.text.hidden_size

    def pictures(
        self, tokens: Int[np.ndarray, " S"], pixel_values: Tensor | None = None,
        image_grid_thw: Int[Tensor, "n 3"] | None = None,
        pixel_values_videos: Tensor | None = None, video_grid_thw: Int[Tensor, "m 3"] | None = None,
        **others: Any,
    ) -> list[Picture]:  # fmt: skip
        """In the order of the prompt; a video is its frames."""
        config = self.config
        waiting = {
            config.image_token_id: iter(self._frames(pixel_values, image_grid_thw)),
            config.video_token_id: iter(self._frames(pixel_values_videos, video_grid_thw)),
        }
        kinds = [int(token) for token in tokens if int(token) in waiting]
        found, at = [], 0
        while at < len(kinds) and (frame := next(waiting[kinds[at]], None)):
            found.append(frame)
            at += len(frame.rows)
        return [*found, *(frame for left in waiting.values() for frame in left)]

    def _frames(self, pixels: Tensor | None, grids: Int[Tensor, "n 3"] | None) -> list[Picture]:
        if pixels is None:
            return []
        side = self.config.vision.merge_size
        seen = self.vlm.model.visual(
            pixels.to(self.vlm.device, self.vlm.dtype), grid_thw=grids, return_dict=True
        )
        rows = torch.cat([seen.pooler_output, *seen.deepstack_features], dim=-1)
        shapes = [(h // side, w // side) for t, h, w in grids.tolist() for _ in range(t)]
        parts = rows.split([h * w for h, w in shapes])
        return [
            Picture(part, token_places(*shape), shape)
            for part, shape in zip(parts, shapes, strict=True)
        ]

    def positions(
        self, tokens: Int[np.ndarray, " S"], pictures: Sequence[Picture]
    ) -> Int32[np.ndarray, "S 3"]:
        """(time, row, column) of every token of a whole prompt."""
        kinds = token_kinds(tokens, *self.visual_ids)
        return mrope_positions(kinds, [picture.grid for picture in pictures])

    def states(self, x: Float[Tensor, "T W"], positions: Int[Tensor, "T 3"]) -> Tensor:
        """[T, D] after the final norm of one causal pass."""
        words, *deep = x.split(self.config.text.hidden_size, dim=-1)
        everywhere = torch.ones(1, len(x), dtype=torch.bool, device=x.device)
        return self.vlm.model.language_model(
            inputs_embeds=words[None], position_ids=positions.T[:, None],
            attention_mask=everywhere.long(), visual_pos_masks=everywhere,
            deepstack_visual_embeds=deep, use_cache=False,
        ).last_hidden_state[0]  # fmt: skip

    @staticmethod
    def inputs(
        folder: str | Path, config: Qwen3VLConfig, text: str, images: list[Image.Image]
    ) -> dict[str, Tensor]:
        """transformers' whole processor needs torchvision, for videos; the picture half not."""
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        written = tokenizer(text)["input_ids"]
        check_placeholders(written.count(config.image_token_id), len(images))
        pictures, counts = {}, iter(())
        if images:
            cut = Qwen2VLImageProcessorPil.from_pretrained(folder)(images, return_tensors="pt")
            pictures = {name: cut[name] for name in ("pixel_values", "image_grid_thw")}
            square = config.vision.merge_size**2
            counts = iter((cut["image_grid_thw"].prod(dim=1) // square).tolist())
        ids: list[int] = []
        for token in written:
            ids += [token] * (next(counts) if token == config.image_token_id else 1)
        tokens = torch.tensor([ids])
        kinds = (tokens == config.image_token_id).int()
        return {
            "input_ids": tokens, "attention_mask": torch.ones_like(tokens),
            "mm_token_type_ids": kinds, **pictures,
        }  # fmt: skip


FAMILIES = {LlavaNextConfig: LlavaNextFamily, Qwen3VLConfig: Qwen3VLFamily}


def torch_inputs(
    folder: str | Path, config: ModelConfig, text: str, images: Sequence[Image.Image]
) -> dict[str, Tensor]:
    """Arguments of a model's forward pass or `generate`, for one rendered prompt, by transformers'
    own tokenizers and Pillow processors (the others need torchvision, and round otherwise).

    Raises:
        UserError: a picture without a placeholder, or one without a picture.
    """
    return FAMILIES[type(config)].inputs(folder, config, text, list(images))
