"""Opens a video file, an animated picture or a folder of pictures, and samples it in time.

n: sampled pictures, H, W: height, width in pixels.
"""

import math
import os
import re
import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, UInt8
from PIL import Image, ImageFile, UnidentifiedImageError

from tiger_jax.data.images import check_file, load_image, to_rgb
from tiger_jax.data.json_lines import Check, number
from tiger_jax.data.video_files import Choose, Fit, Shelf, read_file
from tiger_jax.errors import UserError

FPS, MIN_FRAMES, MAX_FRAMES = 2.0, 4, 768
"""What Qwen3-VL's folders have where they say nothing."""
MOST_FRAMES = 1536
"""Of a video, whatever is asked for: a tower takes no more (768 tiles of two)."""
_UNKNOWN_DURATION = 100  # ms of an animation's picture that names none, as browsers show it
_NO_PICTURES = ("EPS", "MPEG")  # which Pillow knows, and opens with other programs or not at all
# What Pillow's readers come to, depending on where a file was cut.
_DAMAGE = (OSError, SyntaxError, ValueError, EOFError, IndexError, struct.error)


class VideoSampling(NamedTuple):
    """Which pictures of a video are read; None leaves it to who is asked next: a request asks the
    run, and that the model's folder."""

    fps: float | None = None
    """Pictures of a second."""
    max_frames: int | None = None
    """Most of a video."""
    min_frames: int | None = None
    """Fewest of a video that has as many."""

    def over(self, other: "VideoSampling") -> "VideoSampling":
        """This one, and the other where it says nothing."""
        pairs = zip(self, other, strict=True)
        return VideoSampling(*(theirs if own is None else own for own, theirs in pairs))


PUBLISHED_SAMPLING = VideoSampling(FPS, MAX_FRAMES, MIN_FRAMES)


SAMPLING_CHECKS: dict[str, Check] = {
    "fps": number(whole=False, low=1e-6, high=1_000_000),  # a picture in 11 days, or a microsecond
    "max_frames": number(whole=True, low=1, high=MOST_FRAMES),
    "min_frames": number(whole=True, low=1, high=MOST_FRAMES),
}
"""Those of a file's fields; a record has no min_frames."""


@dataclass(frozen=True, eq=False)
class Video:
    """Sampled pictures of a video, all of one size."""

    pictures: UInt8[np.ndarray, "n H W 3"]
    seconds: tuple[float, ...]
    """When each of them is shown, from the start of the video."""
    full_size: tuple[int, int] | None = None
    """(height, width) before the pictures were fitted while reading; None: they are as read."""

    def __post_init__(self) -> None:
        shape, kind = self.pictures.shape, self.pictures.dtype
        if len(shape) != 4 or shape[3] != 3 or kind != np.uint8 or 0 in shape:
            raise UserError(f"video: expected uint8 [n, H, W, 3], got {kind} {shape}")
        if len(self.seconds) != len(self.pictures):
            raise UserError(
                f"video: expected one time for each of {len(self.pictures)} pictures, "
                f"got {len(self.seconds)}"
            )


def sample_indices(
    total: int, source_fps: float, fps: float = FPS, max_frames: int = MAX_FRAMES,
    min_frames: int = MIN_FRAMES,
) -> Int[np.ndarray, " n"]:  # fmt: skip
    """Which of `total` pictures to take so that `fps` of them fall on a second; models.md 5.7.

    Evenly from the first to the last, halves to even; at least `min_frames` where there are as
    many, and at most `max_frames`.

    Raises:
        UserError: a rate or a number that is not above zero.
    """
    for name, value in (("pictures", total), ("source_fps", source_fps), ("fps", fps),
                        ("max_frames", max_frames)):  # fmt: skip
        if not 0 < value < float("inf"):
            raise UserError(f"video: expected {name} above 0, got {value}")
    wanted = int(min(total / source_fps * fps, total))
    return _spread(total, min(max(wanted, min_frames), max_frames))


def load_video(
    path: str | os.PathLike, fps: float = FPS, max_frames: int = MAX_FRAMES,
    min_frames: int = MIN_FRAMES, fit: Fit | None = None,
) -> Video:  # fmt: skip
    """Pictures of the video at `path`, `fps` for each second of it.

    - A video file is read by PyAV. A picture's time is its number over the average rate (24, with
      a warning, where the file names none).
    - An animated GIF, WebP or PNG is read by Pillow and sampled as a video file that shows the
      same at a constant rate: each of its pictures as often as it is shown that long.
    - A folder's pictures, in natural order of their names (2.jpg before 10.jpg), count as sampled
      at `fps` already: one every 1 / fps seconds. Only more than `max_frames` are thinned out.

    Of all other pictures, a few are in memory at a time. Where the sampled ones lie far apart, a
    file is decoded from the key picture before each of them only: the same pictures, in less time.

    Args:
        fit: applied to each sampled picture as it is read. Without it all of them are in memory at
            full size, n * H * W * 3 bytes: 4.8 GB for 768 of 1920x1080.

    Raises:
        UserError: nothing there, not a video, damaged, no pictures, a still picture, or PyAV is
            needed and not installed.
    """
    path = Path(path)
    try:
        sample_indices(1, 1.0, fps, max_frames)  # says what is wrong with the settings
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    try:
        is_folder = path.is_dir()
    except (OSError, ValueError):
        is_folder = False  # check_file says why
    if is_folder:
        return _load_folder(path, fps, max_frames, fit)
    choose = partial(sample_indices, fps=fps, max_frames=max_frames, min_frames=min_frames)
    check_file(path, "a video file or a folder of pictures")
    if not path.stat().st_size:
        raise UserError(f"{path}: expected a video, got an empty file")
    try:
        with Image.open(path) as image:
            if image.format != "MPEG":  # which Pillow names but cannot read
                return _load_animation(image, choose, fps, fit)
    except UnidentifiedImageError:
        pass
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise UserError(f"{path}: pictures too large ({error})") from None
    except _DAMAGE as error:
        raise UserError(f"{path}: damaged animation ({error})") from None
    shelf, seconds = read_file(path, choose, fit)
    return _video(shelf, seconds)


def _video(shelf: Shelf, seconds: Sequence[float]) -> Video:
    full_size = shelf.size if shelf.fit else None
    return Video(np.stack(shelf.pictures), tuple(seconds), full_size)


def _load_folder(folder: Path, fps: float, max_frames: int, fit: Fit | None) -> Video:
    known = _picture_endings()
    try:
        names = [path for path in folder.iterdir()
                 if path.suffix.lower() in known and not path.name.startswith(".")]  # fmt: skip
    except OSError as error:
        raise UserError(f"{folder}: cannot read this folder ({error.strerror})") from None
    if not names:
        raise UserError(f"{folder}: expected a folder of pictures, found none in it")
    names = sorted(names, key=_natural)
    taken = _spread(len(names), max_frames)
    shelf = Shelf(len(taken), fit)
    for k in taken:
        picture = np.asarray(load_image(names[k]))
        try:
            shelf.put(picture)
        except UserError as error:
            raise UserError(f"{names[k]}: {error}") from None
    return _video(shelf, (taken / fps).tolist())


def _picture_endings() -> set[str]:
    """Endings of the files that Pillow reads by itself; it names others that it only writes, or
    reads with a program that is not part of it."""
    endings = Image.registered_extensions()  # fills Image.OPEN too
    return {
        ending for ending, kind in endings.items()
        if kind in Image.OPEN and kind not in _NO_PICTURES and not _is_stub(Image.OPEN[kind][0])
    }  # fmt: skip


def _is_stub(reader: object) -> bool:
    return isinstance(reader, type) and issubclass(reader, ImageFile.StubImageFile)


def _load_animation(image: Image.Image, choose: Choose, fps: float, fit: Fit | None) -> Video:
    durations = _durations(image)
    ends = list(accumulate(durations))
    # The lowest constant rate, not below fps, at which a video file would show the same.
    unit = math.gcd(*durations)
    repeats = math.ceil(fps * unit / 1000)
    taken = choose(ends[-1] // unit * repeats, 1000 * repeats / unit).tolist()
    shelf = Shelf(len(taken), fit)
    for k in taken:
        image.seek(bisect_right(ends, k * unit // repeats))
        shelf.put(np.asarray(to_rgb(image)))
    return _video(shelf, [k * unit / repeats / 1000 for k in taken])


def _durations(image: Image.Image) -> list[int]:
    """How long each picture of an animation is shown, in ms. Raises UserError for a single one."""
    total = getattr(image, "n_frames", 1)
    if total == 1:
        raise UserError("expected a video, got one picture: a still one, or a damaged animation")
    durations = []
    for k in range(total):
        image.seek(k)
        image.load()  # WebP knows a picture's duration only then
        durations.append(round(image.info.get("duration") or 0) or _UNKNOWN_DURATION)
    return durations


def _spread(total: int, count: int) -> Int[np.ndarray, " n"]:
    return np.linspace(0, total - 1, min(count, total)).round().astype(int)


def _natural(path: Path) -> list[tuple[bool, int, str]]:
    """Sorts 2.jpg before 10.jpg."""
    return list(_pieces(path.name))


def _pieces(name: str) -> Iterator[tuple[bool, int, str]]:
    for piece in re.findall(r"\d+|\D+", name):
        yield (False, int(piece), piece) if piece.isdecimal() else (True, 0, piece.lower())
