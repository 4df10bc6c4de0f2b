"""What a prompt showed, as it was given, and which part of it each visual token of the bank is.

R: visual tokens of the prompt, newlines too, in its order: the bank of a routed drafter.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from tiger_jax.data.batches import PromptInputs
from tiger_jax.data.examples import USUAL_SAMPLING, Pictures, load_pictures
from tiger_jax.data.processor import Processor
from tiger_jax.data.prompts import build_prompt
from tiger_jax.data.records import Request
from tiger_jax.data.videos import Video, VideoSampling
from tiger_jax.errors import UserError
from tiger_jax.models.config import ModelConfig
from tiger_jax.models.patch_boxes import Patch, picture_patches

MOST_PIXELS = 640
"""Of a still's longer side."""


@dataclasses.dataclass(frozen=True)
class View:
    """A picture, or a frame of a video: what one grid of patches lies on."""

    name: str
    size: tuple[int, int]
    """(height, width) in pixels as it was given; boxes are in these."""
    stills: tuple[UInt8[np.ndarray, "h w 3"], ...]
    """The picture, or the pictures that a frame stands for; shrunk to at most MOST_PIXELS a side,
    for a page shows no more and many requests may be held."""


@dataclasses.dataclass(frozen=True)
class Shown:
    """The views of a prompt and the place of each visual token."""

    views: tuple[View, ...] = ()
    patches: tuple[tuple[int, Patch], ...] = ()
    """(view, patch) of each of the R tokens."""


def shown_in(
    processor: Processor, request: Request, inputs: PromptInputs,
    video: VideoSampling = USUAL_SAMPLING,
) -> Shown:  # fmt: skip
    """Read a request's pictures again, and place its visual tokens on them.

    Args:
        inputs: the prompt that was made of the request.
        video: as it was sampled then.

    Raises:
        UserError: a file that could be read before cannot be read now, or is another one.
    """
    pictures = load_pictures(request, processor, video)
    counts = len(pictures.images), len(pictures.videos)
    text = build_prompt(processor, request.prompt, *counts)
    return place(list(_views(processor, text, pictures)), processor.config, inputs)


def place(views: list[View], config: ModelConfig, inputs: PromptInputs) -> Shown:
    """The patches of each view, in the order of the prompt's visual tokens.

    Raises:
        UserError: the prompt has other views, or other tokens of one, than the geometry says: its
            files are no longer those that it was made of.
    """
    ids = inputs.image_ids[inputs.image_ids >= 0]
    if int(ids.max(initial=-1)) + 1 != len(views):
        raise UserError(f"views: expected {int(ids.max(initial=-1)) + 1}, got {len(views)}")
    patches: list[tuple[int, Patch]] = []
    for number, view in enumerate(views):
        where = inputs.places[inputs.image_ids == number]
        own = picture_patches(config, *view.size, where)
        if len(own) != len(where):
            raise UserError(
                f"{view.name}: expected {len(where)} visual tokens as it was answered with, got "
                f"{len(own)}"
            )
        patches += [(number, patch) for patch in own]
    return Shown(tuple(views), tuple(patches))


def _views(processor: Processor, text: str, pictures: Pictures) -> Iterator[View]:
    """Views in the order of their placeholders, which is that of the prompt's frames."""
    images, videos = enumerate(pictures.images, 1), enumerate(pictures.videos, 1)
    image, video = processor.placeholder("image"), processor.placeholder("video")
    waiting = {image: len(pictures.images), video: len(pictures.videos)}
    for token in processor.encode_prompt(text, len(pictures.videos)):
        if not waiting.get(token):
            continue
        waiting[token] -= 1
        if token == image:
            number, picture = next(images)
            pixels = np.asarray(picture)
            yield View(f"picture {number}", pixels.shape[:2], (shrunk(pixels),))
        else:
            yield from video_views(*next(videos), _frame_pictures(processor))


def _frame_pictures(processor: Processor) -> int:
    """Pictures of a video that one frame of patches stands for."""
    return getattr(processor.config.vision, "temporal_patch_size", 1)


def video_views(number: int, video: Video, together: int) -> Iterator[View]:
    """A view for each `together` pictures of a video; the last one may hold fewer."""
    size = video.full_size or video.pictures.shape[1:3]
    for frame, first in enumerate(range(0, len(video.pictures), together), 1):
        stills = video.pictures[first : first + together]
        times = video.seconds[first : first + together]
        when = f"{times[0]:.1f}" if len(times) == 1 else f"{times[0]:.1f} and {times[-1]:.1f}"
        name = f"video {number}, frame {frame} ({when} s)"
        yield View(name, tuple(size), tuple(map(shrunk, stills)))


def shrunk(pixels: UInt8[np.ndarray, "H W 3"]) -> UInt8[np.ndarray, "h w 3"]:
    """A picture with at most MOST_PIXELS on a side, in its own shape."""
    picture = Image.fromarray(pixels)
    picture.thumbnail((MOST_PIXELS, MOST_PIXELS), Image.Resampling.LANCZOS)
    return np.asarray(picture)
