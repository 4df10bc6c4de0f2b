"""Model configurations as frozen dataclasses; config_reader.py makes them of a folder's files.

They are hashable, so that a jitted program can close over them as static values.
"""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class VisionConfig:
    """A CLIP ViT tower. Sizes in pixels are those of one tile."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    image_size: int
    patch_size: int
    layer_norm_eps: float = 1e-5
    activation: str = "quick_gelu"

    @property
    def grid(self) -> int:
        """Patches along one side of a tile."""
        return self.image_size // self.patch_size


@dataclasses.dataclass(frozen=True)
class Qwen3VisionConfig:
    """The vision tower of Qwen3-VL, with the mergers that lead from it into the decoder."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    patch_size: int
    temporal_patch_size: int
    merge_size: int
    """Patches along one side of the square that becomes one visual token."""
    num_positions: int
    """Rows of the learned position table, a square."""
    out_hidden_size: int
    """Width of a visual token."""
    deepstack_layers: tuple[int, ...]
    """Blocks, from 0, whose outputs are merged too and added after the decoder's first layers."""
    activation: str

    @property
    def patch_values(self) -> int:
        """Numbers of one patch: channels, pictures of a frame, rows, columns."""
        return 3 * self.temporal_patch_size * self.patch_size**2

    @property
    def token_side(self) -> int:
        """Pixels along one side of a visual token."""
        return self.patch_size * self.merge_size


@dataclasses.dataclass(frozen=True)
class TextConfig:
    """A Llama-like decoder."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_positions: int
    tie_embeddings: bool = False
    qk_norm: bool = False
    """RMS norm of each query and key head."""
    mrope_section: tuple[int, ...] = ()
    """Frequencies of the time, row and column axes, interleaved; () = one position a token."""


@dataclasses.dataclass(frozen=True)
class LlavaNextConfig:
    """LLaVA-NeXT: CLIP tower, two-layer projector, anyres packing, Llama decoder."""

    vision: VisionConfig
    text: TextConfig
    image_token_id: int
    pad_token_id: int
    bos_token_id: int
    eos_token_ids: tuple[int, ...]
    feature_layers: tuple[int, ...]
    select_strategy: str
    projector_activation: str
    pinpoints: tuple[tuple[int, int], ...]
    """Candidate canvas sizes, (height, width) in pixels, in the order that breaks ties."""

    @property
    def rows_per_tile(self) -> int:
        """Visual tokens that the tower gives for one tile."""
        return self.vision.grid**2 + (self.select_strategy == "full")

    @property
    def picture_facts(self) -> dict[str, Any]:
        """What two models must share to read the same prompt, pictures included."""
        return {
            "<image> id": self.image_token_id,
            "tile size": self.vision.image_size,
            "visual rows a tile": self.rows_per_tile,
            "image_grid_pinpoints": self.pinpoints,
        }


@dataclasses.dataclass(frozen=True)
class Qwen3VLConfig:
    """Qwen3-VL: its own tower with DeepStack, 2x2 mergers, Qwen3 decoder with M-RoPE."""

    vision: Qwen3VisionConfig
    text: TextConfig
    image_token_id: int
    video_token_id: int
    vision_start_token_id: int
    vision_end_token_id: int
    pad_token_id: int
    bos_token_id: int
    eos_token_ids: tuple[int, ...]

    @property
    def picture_facts(self) -> dict[str, Any]:
        """What two models must share to read the same prompt, pictures included."""
        return {
            "image id": self.image_token_id,
            "video id": self.video_token_id,
            "patch size": self.vision.patch_size,
            "temporal patch size": self.vision.temporal_patch_size,
            "merge size": self.vision.merge_size,
            "position table rows": self.vision.num_positions,
        }


ModelConfig = LlavaNextConfig | Qwen3VLConfig
