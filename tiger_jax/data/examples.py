"""Training examples of a JSON Lines file: pictures, prompt, and perhaps a response.

    {"images": ["cats/1.jpg"], "prompt": "How many cats are there?", "response": "There are 2."}
    {"videos": ["cats/1.mp4"], "prompt": "What does the cat do?", "fps": 1}

All but `prompt` and the pictures may be absent. Paths are relative to the file. A prompt without
"<image>" or "<video>" gets its pictures in front; one with them says where each of them goes.
Without videos "<video>" is text.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int32
from PIL import Image

from tiger_jax.data.batches import PromptInputs, make_prompt
from tiger_jax.data.images import load_image
from tiger_jax.data.json_lines import (
    RecordError,
    check_fields,
    identifier,
    read_json_lines,
    text,
    texts,
)
from tiger_jax.data.processor import Processor
from tiger_jax.data.prompts import IMAGE_TOKEN, VIDEO_TOKEN, build_prompt
from tiger_jax.data.public.dataset import decode_picture
from tiger_jax.data.public.record import Picture
from tiger_jax.data.videos import SAMPLING_CHECKS, Video, VideoSampling, load_video
from tiger_jax.errors import UserError


class Pictures(NamedTuple):
    """What a prompt shows, each kind in the order of its placeholders."""

    images: Sequence[Image.Image | np.ndarray] = ()
    videos: Sequence[Video] = ()


@runtime_checkable
class Shown(Protocol):
    """A drawn record: a picture or a video."""

    shown: np.ndarray | Video


def shown_in(record: Shown) -> Pictures:
    """What the prompts of a scene or clip show."""
    shown = record.shown
    return Pictures(videos=[shown]) if isinstance(shown, Video) else Pictures([shown])


USUAL_SAMPLING = VideoSampling()
"""As the model's folder says."""


@runtime_checkable
class Pictured(Protocol):
    """A record with what it shows, as paths or, of pictures, as encoded bytes; None leaves the
    sampling to the run."""

    images: tuple[str | Picture, ...]
    videos: tuple[str, ...]
    fps: float | None
    max_frames: int | None


@dataclass(frozen=True)
class Example:
    """One prompt with its pictures; `tag` is what the prompt filter made of it."""

    id: str
    prompt: str
    images: tuple[str | Picture, ...]
    """Paths, or the encoded pictures of a pool."""
    source: str
    response: str | None = None
    tag: str | None = None
    videos: tuple[str, ...] = ()
    fps: float | None = None
    max_frames: int | None = None


@dataclass(frozen=True)
class PreparedExample:
    """An example as arrays; `response` ends with the end token, None where there is none."""

    example: Example
    prompt: PromptInputs
    response: Int32[np.ndarray, " T"] | None


@dataclass(frozen=True)
class DroppedExample:
    """An example that cannot be used, in one line: a broken picture, a prompt that is too long."""

    id: str
    source: str
    message: str


def read_examples(path: str | os.PathLike) -> list[Example | RecordError]:
    """Every line of a JSONL file that is not blank, in order; no picture is opened.

    A missing id becomes "line-N", a missing source the file's name without its ending.

    Raises:
        UserError: the file cannot be read.
    """
    return list(read_json_lines(path, "examples", partial(_example, path=Path(path))))


def open_picture(picture: str | Picture) -> Image.Image:
    """A picture as upright RGB, from its file or from bytes. Raises UserError."""
    return load_image(picture) if isinstance(picture, str) else decode_picture(picture)


def load_pictures(
    record: Pictured, processor: Processor, video: VideoSampling = USUAL_SAMPLING
) -> Pictures:
    """The pictures as upright RGB, and the videos sampled and fitted for the processor's model.

    Args:
        video: how they are sampled where the record does not say; else as the model's folder says.

    Raises:
        UserError: the first that cannot be used.
    """
    own = VideoSampling(record.fps, record.max_frames)
    sampling = own.over(video).over(processor.video_sampling)
    return Pictures(
        [open_picture(picture) for picture in record.images],
        [load_video(path, **sampling._asdict(), fit=processor.fit) for path in record.videos],
    )


@dataclass(frozen=True)
class PrepareExample:
    """Example -> PreparedExample, or DroppedExample where it cannot be used.

    A class, not a closure, so that worker processes can receive it.
    """

    processor: Processor
    max_length: int | None = None
    """Longest prompt in tokens; as `make_prompt` by default."""

    def __call__(self, example: Example) -> PreparedExample | DroppedExample:
        processor = self.processor
        try:
            images, videos = load_pictures(example, processor)
            rendered = build_prompt(processor, example.prompt, len(images), len(videos))
            prompt = make_prompt(
                processor, processor.config, rendered, images, self.max_length, videos
            )
        except UserError as error:
            return DroppedExample(example.id, example.source, str(error))
        response = example.response
        if response is not None:
            response = np.array(processor.encode_answer(response), np.int32)
        return PreparedExample(example, prompt, response)


def _example(fields: dict, default_id: str, path: Path) -> Example:
    values = check_fields(fields, _CHECKS, required=("prompt",))
    if "images" not in values and "videos" not in values:
        raise ValueError("images: expected a list of paths, or one of videos, found neither")
    for name, mark in (("images", IMAGE_TOKEN), ("videos", VIDEO_TOKEN)):
        paths = values.get(name, ())
        placed = values["prompt"].count(mark)
        is_text = name == "videos" and not paths
        if placed not in (0, len(paths)) and not is_text:
            raise ValueError(
                f"prompt: expected no {mark}, or one for each of the {len(paths)} {name}, "
                f"got {placed}"
            )
        values[name] = tuple(str(path.parent / picture) for picture in paths)
    return Example(**{"id": default_id, "source": path.stem} | values)


def _response(name: str, value: Any) -> str:
    """A text; an empty one is the end token alone."""
    return value if value == "" else text(name, value)


_CHECKS = {
    "id": identifier,
    "images": texts,
    "videos": texts,
    "prompt": text,
    "response": _response,
    "source": text,
    "fps": SAMPLING_CHECKS["fps"],
    "max_frames": SAMPLING_CHECKS["max_frames"],
}
