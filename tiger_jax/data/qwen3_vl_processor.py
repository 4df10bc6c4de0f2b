"""Qwen3-VL's side of the processor: frames of patches, timestamps, M-RoPE positions.

N: frames, P: patches of a frame (a bucket), T: pictures of a frame (2), H, W: height and width in
pixels, m: merge side, p: patch side, C: channels, S: tokens, f: frames of a prompt.
"""

import math
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float32, Int, Int32, UInt8
from PIL import Image

from tiger_jax.data.processor import Processor, find_settings, image_settings, rgb_pixels
from tiger_jax.data.videos import PUBLISHED_SAMPLING, SAMPLING_CHECKS, Video, VideoSampling
from tiger_jax.data.visual import IMAGE_TOKEN, TEXT, VIDEO_TOKEN, Visual
from tiger_jax.errors import UserError
from tiger_jax.models.config import Qwen3VisionConfig, Qwen3VLConfig
from tiger_jax.models.frame_geometry import (
    frame_places,
    mrope_positions,
    position_taps,
    smart_resize,
    token_kinds,
    token_places,
    video_size,
)
from tiger_jax.models.frames import PATCH_BUCKETS, Frames

VIDEO_SIZE = {"longest_edge": 25165824, "shortest_edge": 4096}
"""Bounds of a video's pixels in the published folders, for a folder without video settings."""
SCALE = 1 / 255
_PLACED = {IMAGE_TOKEN: "image", VIDEO_TOKEN: "video"}


@dataclass(frozen=True)
class PixelSettings:
    """How pictures are resized and scaled; the bounds are areas in pixels."""

    min_pixels: int
    max_pixels: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    resample: Image.Resampling

    def resized(
        self, picture: UInt8[np.ndarray, "H W C"], height: int, width: int
    ) -> UInt8[np.ndarray, "h w C"]:
        """The picture in another size; Pillow's own filter, as the Pil processor class has it."""
        image = Image.fromarray(picture)
        return np.asarray(image.resize((width, height), self.resample))

    def normalised(self, pixels: UInt8[np.ndarray, "... C"]) -> Float32[np.ndarray, "... C"]:
        """(pixel / 255 - mean) / std."""
        scaled = pixels.astype(np.float32) * np.float32(SCALE)
        return (scaled - np.float32(self.mean)) / np.float32(self.std)


@dataclass(frozen=True)
class Qwen3VLProcessor(Processor):
    """Pictures of any size as one frame, videos as a frame for each two pictures."""

    image: PixelSettings
    video: PixelSettings
    sampling: VideoSampling = PUBLISHED_SAMPLING
    """The folder's own."""
    video_prompt: Literal["v5", "4.57"] = "v5"
    """transformers 5 leaves the template's vision marks around the whole video; 4.57 has them
    around each frame only. Text that ends in a sign right before a video is cut into other tokens
    there by 4.57, which tokenises it together with the first time."""

    @classmethod
    def read(
        cls, folder: Path, config: Qwen3VLConfig, tokenizer: Any, template: str | None,
        video_prompt: Literal["v5", "4.57"] = "v5",
    ) -> "Qwen3VLProcessor":  # fmt: skip
        """Raises UserError if the folder's settings are incomplete or not the model's."""
        path, raw = image_settings(folder)
        image = _pixel_settings(path, _with_bounds(raw), config.vision)
        name = "video_preprocessor_config.json"
        found = find_settings(folder, "video_processor", name) or (path, _as_video(raw))
        video, sampling = _pixel_settings(*found, config.vision), _sampling(*found)
        ids = (config.image_token_id, config.video_token_id,
               config.vision_start_token_id, config.vision_end_token_id)  # fmt: skip
        if max(ids) >= len(tokenizer):
            raise UserError(
                f"{folder}: expected the vision tokens {sorted(ids)} of config.json in the "
                f"tokenizer, got {len(tokenizer)} tokens"
            )
        return cls(config, tokenizer, template, image, video, sampling, video_prompt)

    def encode_answer(self, answer: str) -> list[int]:
        return self.encode_piece(f"{answer}{self.tokenizer.eos_token}")

    def prompt(self, question: str, n_images: int = 0, n_videos: int = 0) -> str:
        content = self._content(question, n_images, n_videos)
        if self.chat_template is not None:
            text = self.render(content)
        else:
            body = "".join(
                part["text"] if part["type"] == "text" else self._marked(part["type"])
                for part in content
            )
            text = f"<|im_start|>user\n{body}<|im_end|>\n<|im_start|>assistant\n"
        if self.video_prompt == "4.57":
            text = text.replace(self._marked("video"), self._text(self.config.video_token_id))
        return text

    def placeholder(self, kind: Literal["image", "video"]) -> int:
        return self.config.image_token_id if kind == "image" else self.config.video_token_id

    def visual(self, picture: Image.Image | np.ndarray | Video) -> Visual:
        if isinstance(picture, Video):
            return self._video(picture)
        tiles, (rows, columns) = self._frame_of(picture)
        n = rows * columns
        return Visual(
            tokens=np.full(n, self.config.image_token_id, np.int32),
            rows=np.arange(n, dtype=np.int32),
            places=token_places(rows, columns),
            frames=np.zeros(n, np.int32),
            grids=np.array([[rows, columns]], np.int32),
            tiles=tiles,
            tile_rows=self._tile_rows(tiles),
        )

    def fit(self, picture: UInt8[np.ndarray, "H W 3"], n: int) -> UInt8[np.ndarray, "h w 3"]:
        return self.video.resized(picture, *self._video_size(n, *picture.shape[:2]))

    @property
    def video_sampling(self) -> VideoSampling:
        return self.sampling

    def base_tile(self, picture: Image.Image | np.ndarray) -> Frames:
        return self._frame_of(picture)[0]

    def empty_tiles(self) -> Frames:
        vision, n = self.config.vision, PATCH_BUCKETS[0]
        return Frames(
            patches=np.zeros((0, n, vision.patch_values), np.float32),
            counts=np.zeros(0, np.int32),
            places=np.zeros((0, n, 2), np.int32),
            taps=np.zeros((0, n, 4), np.int32),
            weights=np.zeros((0, n, 4), np.float32),
        )

    def positions(
        self, tokens: Int[np.ndarray, " S"], grids: Int[np.ndarray, "f 2"]
    ) -> Int32[np.ndarray, "S 3"]:
        kinds = token_kinds(tokens, self.config.image_token_id, self.config.video_token_id)
        return mrope_positions(kinds, grids)

    @property
    def picture_marks(self) -> tuple[int, ...]:
        config = self.config
        pad = self.tokenizer.get_vocab().get("<|vision_pad|>", config.image_token_id)
        return (config.image_token_id, config.video_token_id, config.vision_start_token_id,
                config.vision_end_token_id, pad)  # fmt: skip

    def _content(self, question: str, n_images: int, n_videos: int) -> list[dict]:
        """The parts of the user's turn: pictures that the question does not place come first.

        Raises:
            UserError: a placeholder token that does not stand between its marks.
        """
        placed = {mark: kind for mark, kind in _PLACED.items() if kind == "image" or n_videos}
        parts = [part for part in re.split(f"({'|'.join(placed)})", question) if part]
        content = [
            {"type": placed[part]} if part in placed else {"type": "text", "text": part}
            for part in parts
        ]
        front = []
        for kind, count in (("image", n_images), ("video", n_videos)):
            token, marked = self._text(self.placeholder(kind)), self._marked(kind)
            if token in question.replace(marked, ""):
                raise UserError(f"prompt: expected <{kind}> or {marked}, got {token} alone")
            if f"<{kind}>" not in question and marked not in question:
                front += [{"type": kind}] * count
        return [*front, *content]

    def _marked(self, kind: str) -> str:
        """A placeholder as the template writes it, between the marks of vision."""
        start, end = self.config.vision_start_token_id, self.config.vision_end_token_id
        return "".join(map(self._text, (start, self.placeholder(kind), end)))

    def _text(self, token: int) -> str:
        return self.tokenizer.convert_ids_to_tokens(token)

    def _frame_of(self, picture: Image.Image | np.ndarray) -> tuple[Frames, tuple[int, int]]:
        """A picture as one frame, which holds it twice; (rows, columns) in tokens."""
        pixels, image, vision = rgb_pixels(picture), self.image, self.config.vision
        size = smart_resize(
            *pixels.shape[:2], vision.token_side, image.min_pixels, image.max_pixels
        )
        still = image.normalised(image.resized(pixels, *size))
        return _make_frames([[still] * vision.temporal_patch_size], vision), _grid(size, vision)

    def _video(self, video: Video) -> Visual:
        """Each frame of a video between its own marks, behind its time; models.md 5.7."""
        config, settings, vision = self.config, self.video, self.config.vision
        # Twice is not once: the size of pictures that are fitted already can be another one.
        size = self._video_size(
            len(video.pictures), *(video.full_size or video.pictures.shape[1:3])
        )
        rows, columns = _grid(size, vision)
        groups = _groups(list(video.pictures), vision.temporal_patch_size)
        stills = [[settings.normalised(settings.resized(still, *size)) for still in group]
                  for group in groups]  # fmt: skip
        tiles = _make_frames(stills, vision)
        tile_rows, n = self._tile_rows(tiles), rows * columns
        pads = np.full(n, config.video_token_id, np.int32)
        parts = []
        for f, times in enumerate(_groups(video.seconds, vision.temporal_patch_size)):
            time = self.encode_piece(f"<{(times[0] + times[-1]) / 2:.1f} seconds>")
            head, tail = [*time, config.vision_start_token_id], [config.vision_end_token_id]
            here = f * tile_rows + np.arange(n)
            parts.append((
                np.concatenate([head, pads, tail]),
                np.pad(here, (len(head), 1), constant_values=TEXT),
                np.pad(token_places(rows, columns), ((len(head), 1), (0, 0)),
                       constant_values=TEXT),
                np.pad(np.full(n, f), (len(head), 1), constant_values=TEXT),
            ))  # fmt: skip
        tokens, table_rows, places, frames = map(np.concatenate, zip(*parts, strict=True))
        return Visual(
            tokens=tokens.astype(np.int32),
            rows=table_rows.astype(np.int32),
            places=places,
            frames=frames.astype(np.int32),
            grids=np.tile(np.array([[rows, columns]], np.int32), (len(groups), 1)),
            tiles=tiles,
            tile_rows=tile_rows,
        )

    def _video_size(self, n: int, height: int, width: int) -> tuple[int, int]:
        """(height, width) in pixels of each of a video's n pictures for the tower."""
        settings, vision = self.video, self.config.vision
        return video_size(n, height, width, vision.token_side, vision.temporal_patch_size,
                          settings.min_pixels, settings.max_pixels)  # fmt: skip

    def _tile_rows(self, tiles: Frames) -> int:
        return tiles.patches.shape[1] // self.config.vision.merge_size**2


def _groups(items: Sequence, size: int) -> list[list]:
    """Runs of `size` items; the last item is repeated to fill the last run."""
    items = [*items, *[items[-1]] * (-len(items) % size)]
    return [items[i : i + size] for i in range(0, len(items), size)]


def _grid(size: tuple[int, int], vision: Qwen3VisionConfig) -> tuple[int, int]:
    """(rows, columns) in tokens of a picture of `size` pixels."""
    return size[0] // vision.token_side, size[1] // vision.token_side


def _make_frames(stills: Sequence[Sequence[np.ndarray]], vision: Qwen3VisionConfig) -> Frames:
    """Frames of T normalised pictures [H, W, C] each, all of one size, padded to a bucket."""
    height, width, _ = stills[0][0].shape
    rows, columns = height // vision.patch_size, width // vision.patch_size
    n = rows * columns
    padded = next((bucket for bucket in PATCH_BUCKETS if n <= bucket), None)
    if padded is None:
        raise UserError(f"image: expected at most {PATCH_BUCKETS[-1]} patches, got {n}")
    patches = np.zeros((len(stills), padded, vision.patch_values), np.float32)
    for frame, pictures in zip(patches, stills, strict=True):
        frame[:n] = _patches(pictures, vision)
    side = round(vision.num_positions**0.5)
    places = frame_places(rows, columns, vision.merge_size)
    taps, weights = position_taps(rows, columns, side, vision.merge_size)

    def repeated(array: np.ndarray) -> np.ndarray:
        one = np.pad(array, ((0, padded - n), (0, 0)))
        return np.repeat(one[None], len(stills), axis=0)

    counts = np.full(len(stills), n, np.int32)
    return Frames(patches, counts, repeated(places), repeated(taps), repeated(weights))


def _patches(
    pictures: Sequence[np.ndarray], vision: Qwen3VisionConfig
) -> Float32[np.ndarray, "n V"]:
    """One frame's patches in block order; values in the order (C, T, p, p)."""
    frame = np.stack(pictures)
    T, height, width, C = frame.shape
    p, m = vision.patch_size, vision.merge_size
    blocks = frame.reshape(T, height // (m * p), m, p, width // (m * p), m, p, C)
    return blocks.transpose(1, 4, 2, 5, 7, 0, 3, 6).reshape(-1, vision.patch_values)


def _pixel_settings(path: Path, raw: dict, vision: Qwen3VisionConfig) -> PixelSettings:
    """Settings of preprocessor_config.json: nothing has a default but the filter and the scale."""
    for name in ("patch_size", "temporal_patch_size", "merge_size"):
        if raw.get(name) != getattr(vision, name):
            raise UserError(
                f"{path}: expected {name} {getattr(vision, name)} as in config.json, "
                f"got {raw.get(name)}"
            )
    for name in ("do_resize", "do_rescale", "do_normalize"):
        if raw.get(name) is False:
            raise UserError(f"{path}: {name}=false is not supported")
    try:
        size, (r, g, b), (r_std, g_std, b_std) = raw["size"], raw["image_mean"], raw["image_std"]
        settings = PixelSettings(
            min_pixels=operator.index(size["shortest_edge"]),
            max_pixels=operator.index(size["longest_edge"]),
            mean=(float(r), float(g), float(b)),
            std=(float(r_std), float(g_std), float(b_std)),
            resample=Image.Resampling(raw.get("resample", Image.Resampling.BICUBIC)),
        )
        scale = float(raw.get("rescale_factor", SCALE))
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{path}: expected size with shortest_edge and longest_edge in pixels, three numbers "
            f"each as image_mean and image_std, and a resample of Pillow's, got {error!r}"
        ) from None
    if not math.isclose(scale, SCALE, rel_tol=1e-6):
        raise UserError(f"{path}: expected rescale_factor 1/255, got {scale}")
    low, high = settings.min_pixels, settings.max_pixels
    if not 0 < low <= high:
        raise UserError(f"{path}: expected 0 < shortest_edge <= longest_edge, got {low} and {high}")
    if not min(settings.std) > 0:
        raise UserError(f"{path}: expected image_std above 0, got {settings.std}")
    return settings


def _sampling(path: Path, raw: dict) -> VideoSampling:
    """The folder's sampling of videos, with the published numbers where it says nothing.

    Raises:
        UserError: values out of their range, or a number of frames instead of a rate.
    """
    if raw.get("num_frames") is not None:
        raise UserError(f"{path}: expected fps, got num_frames={raw['num_frames']}")
    given = {name: raw[name] for name in SAMPLING_CHECKS if raw.get(name) is not None}
    try:
        own = {name: SAMPLING_CHECKS[name](name, value) for name, value in given.items()}
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
    return VideoSampling(**own).over(PUBLISHED_SAMPLING)


def _with_bounds(raw: dict) -> dict:
    """Older files name the bounds of images min_pixels and max_pixels, and those win over `size`;
    for videos transformers ignores them."""
    named = {"shortest_edge": raw.get("min_pixels"), "longest_edge": raw.get("max_pixels")}
    named = {edge: pixels for edge, pixels in named.items() if pixels is not None}
    size = raw.get("size") or {}
    return raw | {"size": size | named} if named and isinstance(size, dict) else raw


def _as_video(raw: dict) -> dict:
    """Settings of a folder's videos where it has only those of images."""
    return raw | {"size": VIDEO_SIZE}
