"""Tiny random Qwen3-VL models on both sides, and prompts as arrays for both.

h, w: patches of a frame, S: tokens, n: frames of a prompt, P: patches of a padded frame.

Patches are noise: what pictures and videos become is the processors' matter. Noise also tells the
two pictures of a frame apart, which a still picture's two copies would not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import torch
import transformers

from tests.parity.pairs import make_lively
from tiger_jax.models.config import Qwen3VLConfig
from tiger_jax.models.config_reader import read_config
from tiger_jax.models.frame_geometry import (
    IMAGE_KIND,
    TEXT_KIND,
    VIDEO_KIND,
    frame_places,
    mrope_positions,
    position_taps,
)
from tiger_jax.models.frames import Frames, join_tiles
from tiger_jax.models.interface import Params, VisionLanguageModel, build_model
from tiger_jax.weights.load import load_params

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

IMAGE, VIDEO, START, END = 390, 391, 392, 393
WORDS = 390  # ids below are words
SIDE, MERGE, VALUES = 8, 2, 3 * 2 * 16 * 16
VISION = {
    "depth": 4, "hidden_size": 128, "intermediate_size": 96, "num_heads": 2,
    "num_position_embeddings": SIDE**2, "out_hidden_size": 64,
    "deepstack_visual_indexes": [0, 2, 3],
}  # fmt: skip
TEXT = {
    "vocab_size": 400, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "bos_token_id": 394, "eos_token_id": 395,
    # Sections that differ, and a base so small that positions a few apart turn far apart.
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 100.0, "mrope_section": [8, 5, 3],
        "mrope_interleaved": True,
    },
}  # fmt: skip
WIDE_HEADS = {"hidden_size": 144}
"""Heads of 72 as in the 8B model's tower; those of 64 are the 4B model's."""


class Image(NamedTuple):
    """A picture of h x w patches."""

    h: int
    w: int


class Video(NamedTuple):
    """t frames of h x w patches."""

    t: int
    h: int
    w: int


Part = int | Image | Video
"""Of a prompt: so many words, or something to look at."""
Case = Sequence[Part]


class Prompt(NamedTuple):
    """One prompt for either side; `image_rows` counts P / 4 rows a frame, P of its own frames."""

    tokens: np.ndarray  # int32 [S]
    kinds: np.ndarray  # int32 [S]
    positions: np.ndarray  # int32 [S, 3]
    image_rows: np.ndarray  # int32 [S]
    frames: Frames  # n of them
    grids: list[tuple[int, int]]  # (h, w) of each
    images: list[int]  # which frames are pictures, and which belong to which video
    videos: list[list[int]]


@dataclass(frozen=True)
class Qwen3VLPair:
    """The same weights in transformers (`reference`) and here (`model`, `params`)."""

    reference: transformers.Qwen3VLForConditionalGeneration
    model: VisionLanguageModel
    params: Params

    @property
    def config(self) -> Qwen3VLConfig:
        return self.model.config


def make_qwen3_vl_pair(
    folder: Path, vision: dict[str, Any] | None = None, text: dict[str, Any] | None = None,
    tied: bool = False, attention: str = "sdpa",
) -> Qwen3VLPair:  # fmt: skip
    """A pair whose weights went through `folder`; `vision` and `text` change the defaults."""
    torch.manual_seed(0)
    hf_config = transformers.Qwen3VLConfig(
        vision_config={**VISION, **(vision or {})}, text_config={**TEXT, **(text or {})},
        image_token_id=IMAGE, video_token_id=VIDEO, vision_start_token_id=START,
        vision_end_token_id=END, tie_word_embeddings=tied, attn_implementation=attention,
    )  # fmt: skip
    reference = transformers.Qwen3VLForConditionalGeneration(hf_config).eval()
    make_lively(reference)
    reference.save_pretrained(folder)
    ours = read_config(folder)
    return Qwen3VLPair(reference, build_model(ours), load_params(folder, ours, dtype=jnp.float32))


def make_prompt(case: Case, seed: int = 0, side: int = SIDE) -> Prompt:
    """Words and patches drawn at random; a frame of a video has a time of two words before it.

    side: of the position table.
    """
    rng = np.random.default_rng([seed, *(int(n) for part in case for n in np.ravel(part))])
    tokens: list[int] = []
    owners: list[int] = []  # which frame a token shows, -1 for text
    grids, images, videos = [], [], []

    def say(count: int) -> None:
        tokens.extend(rng.integers(0, WORDS, count).tolist())
        owners.extend([-1] * count)

    def show(placeholder: int, h: int, w: int) -> int:
        count = h * w // MERGE**2
        tokens.extend([START, *[placeholder] * count, END])
        owners.extend([-1, *[len(grids)] * count, -1])
        grids.append((h, w))
        return len(grids) - 1

    for part in case:
        if isinstance(part, int):
            say(part)
        elif isinstance(part, Image):
            images.append(show(IMAGE, *part))
        else:
            videos.append([])
            for _ in range(part.t):
                say(2)
                videos[-1].append(show(VIDEO, part.h, part.w))
    frames = make_frames(rng, grids, side)
    kinds = np.select(
        [np.equal(tokens, IMAGE), np.equal(tokens, VIDEO)], [IMAGE_KIND, VIDEO_KIND], TEXT_KIND
    )
    return Prompt(
        tokens=np.array(tokens, np.int32),
        kinds=kinds,
        positions=mrope_positions(kinds, [(h // MERGE, w // MERGE) for h, w in grids]),
        image_rows=_rows(np.array(owners), frames.patches.shape[1] // MERGE**2),
        frames=frames, grids=grids, images=images, videos=videos,
    )  # fmt: skip


def make_frames(
    rng: np.random.Generator, grids: Sequence[tuple[int, int]], side: int = SIDE
) -> Frames:
    """Frames of noise, padded to the largest."""
    parts = [Frames(
        patches=np.zeros((0, 4, VALUES), np.float32), counts=np.zeros(0, np.int32),
        places=np.zeros((0, 4, 2), np.int32), taps=np.zeros((0, 4, 4), np.int32),
        weights=np.zeros((0, 4, 4), np.float32),
    )]  # fmt: skip
    for h, w in grids:
        taps, weights = position_taps(h, w, side, MERGE)
        parts.append(Frames(
            patches=0.5 * rng.standard_normal((1, h * w, VALUES), np.float32),
            counts=np.array([h * w], np.int32), places=frame_places(h, w, MERGE)[None],
            taps=taps[None], weights=weights[None],
        ))  # fmt: skip
    return join_tiles(parts, len(grids))


def _rows(owners: np.ndarray, per_frame: int) -> np.ndarray:
    """Table row of each token: the frame's rows in order, one a token."""
    rows = np.full(len(owners), -1, np.int32)
    for frame in range(owners.max(initial=-1) + 1):
        (at,) = np.nonzero(owners == frame)
        rows[at] = frame * per_frame + np.arange(len(at))
    return rows


class Batch(NamedTuple):
    """Prompts padded on the right, frames to one size and number."""

    tokens: np.ndarray  # int32 [B, S]
    positions: np.ndarray  # int32 [B, S, 3]
    image_rows: np.ndarray  # int32 [B, S]
    frames: Frames
    lengths: np.ndarray  # int32 [B]


def batch_prompts(
    prompts: Sequence[Prompt], length: int = 0, frames: int = 0, patches: int = 0
) -> Batch:
    """A batch of at least these sizes."""
    length = max([length, *(len(prompt.tokens) for prompt in prompts)])
    parts = [prompt.frames for prompt in prompts]
    patches = max([patches, *(part.patches.shape[1] for part in parts)])
    count = max(frames, sum(map(len, parts)))
    wide = Frames(**{
        name: np.zeros((0, patches, *value.shape[2:]) if value.ndim > 1 else 0, value.dtype)
        for name, value in vars(parts[0]).items()
    })  # fmt: skip

    def pad(values: np.ndarray, fill: int = 0) -> np.ndarray:
        widths = [(0, length - len(values)), *[(0, 0)] * (values.ndim - 1)]
        return np.pad(values, widths, constant_values=fill)

    rows, first = [], 0
    for prompt, part in zip(prompts, parts, strict=True):
        own = prompt.image_rows
        frame, row = np.divmod(own, part.patches.shape[1] // MERGE**2)
        moved = (first + frame) * (patches // MERGE**2) + row
        rows.append(pad(np.where(own >= 0, moved, -1), -1))
        first += len(part)
    return Batch(
        tokens=np.stack([pad(prompt.tokens) for prompt in prompts]),
        positions=np.stack([pad(prompt.positions) for prompt in prompts]),
        image_rows=np.stack(rows).astype(np.int32),
        frames=join_tiles([*parts, wide], count),
        lengths=np.array([len(prompt.tokens) for prompt in prompts], np.int32),
    )  # fmt: skip


def reference_inputs(prompts: Sequence[Prompt]) -> dict[str, torch.Tensor]:
    """The same prompts for transformers: padded on the left, pictures and videos apart."""
    length = max(len(prompt.tokens) for prompt in prompts)

    def left(name: str) -> torch.Tensor:
        return torch.tensor(np.stack([
            np.pad(getattr(prompt, name), (length - len(prompt.tokens), 0)) for prompt in prompts
        ])).long()  # fmt: skip

    inputs = {"input_ids": left("tokens"), "mm_token_type_ids": left("kinds")}
    if len(prompts) > 1:
        inputs["attention_mask"] = torch.tensor(np.stack([
            np.arange(length) >= length - len(prompt.tokens) for prompt in prompts
        ])).long()  # fmt: skip
    pictures = [(prompt, [frame]) for prompt in prompts for frame in prompt.images]
    videos = [(prompt, frames) for prompt in prompts for frames in prompt.videos]
    for values, grid, shown in [
        ("pixel_values", "image_grid_thw", pictures),
        ("pixel_values_videos", "video_grid_thw", videos),
    ]:
        if shown:
            rows = [own_patches(prompt, frame) for prompt, frames in shown for frame in frames]
            grids = [(len(frames), *prompt.grids[frames[0]]) for prompt, frames in shown]
            inputs |= {values: torch.tensor(np.concatenate(rows)), grid: torch.tensor(grids)}
    return inputs


def own_patches(prompt: Prompt, frame: int) -> np.ndarray:
    """[h * w, VALUES]"""
    return prompt.frames.patches[frame, : prompt.frames.counts[frame]]
