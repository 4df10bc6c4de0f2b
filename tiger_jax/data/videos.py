"""Opens a video file, an animated picture or a folder of pictures, and samples it in time.

n: sampled pictures, H, W: height, width in pixels.
"""

import os
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
from jaxtyping import Int, UInt8
from PIL import Image, UnidentifiedImageError

from tiger_jax.data.images import check_file, first_bytes, load_image, to_rgb
from tiger_jax.errors import UserError

MIN_FRAMES, MAX_FRAMES = 4, 768
_UNKNOWN_FPS = 24.0
_UNKNOWN_DURATION = 100  # ms of an animation's picture that names none, as browsers show it


@dataclass(frozen=True, eq=False)
class Video:
    """Sampled pictures of a video, all of one size."""

    frames: UInt8[np.ndarray, "n H W 3"]
    seconds: tuple[float, ...]
    """When each of them is shown, from the start of the video."""

    def __post_init__(self) -> None:
        shape, kind = self.frames.shape, self.frames.dtype
        if len(shape) != 4 or shape[3] != 3 or kind != np.uint8 or 0 in shape:
            raise UserError(f"video: expected uint8 [n, H, W, 3], got {kind} {shape}")
        if len(self.seconds) != len(self.frames):
            raise UserError(
                f"video: expected one time for each of {len(self.frames)} pictures, "
                f"got {len(self.seconds)}"
            )


def sample_indices(
    total: int, source_fps: float, fps: float = 2.0, max_frames: int = MAX_FRAMES,
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
    return _spread(total, min(max(int(total / source_fps * fps), min_frames), max_frames))


def load_video(path: str | os.PathLike, fps: float = 2.0, max_frames: int = MAX_FRAMES) -> Video:
    """Pictures of the video at `path`, `fps` for each second of it, at their full size.

    - A video file is read by PyAV. A picture's time is its number over the average rate (24, with
      a warning, where the file names none).
    - An animated GIF, WebP or PNG is read by Pillow; its rate is that of its mean duration.
    - A folder's pictures, in natural order of their names (2.jpg before 10.jpg), count as sampled
      at `fps` already: one every 1 / fps seconds. Only more than `max_frames` are thinned out.

    All sampled pictures are in memory at once: n * H * W * 3 bytes.

    Raises:
        UserError: nothing there, not a video, damaged, no pictures, a still picture, or PyAV is
            needed and not installed.
    """
    path = Path(path)
    try:
        is_folder = path.is_dir()
    except (OSError, ValueError):
        is_folder = False  # check_file says why
    if is_folder:
        return _load_folder(path, fps, max_frames)
    check_file(path, "a video file or a folder of pictures")
    if not path.stat().st_size:
        raise UserError(f"{path}: expected a video, got an empty file")
    try:
        with Image.open(path) as image:
            if image.format != "MPEG":  # which Pillow names but cannot read
                return _load_animation(image, fps, max_frames)
    except UnidentifiedImageError:
        pass
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise UserError(f"{path}: pictures too large ({error})") from None
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        raise UserError(f"{path}: damaged animation ({error})") from None
    return _load_file(path, fps, max_frames)


def _load_folder(folder: Path, fps: float, max_frames: int) -> Video:
    known = Image.registered_extensions()
    names = [path for path in folder.iterdir()
             if path.suffix.lower() in known and not path.name.startswith(".")]  # fmt: skip
    if not names:
        raise UserError(f"{folder}: expected a folder of pictures, found none in it")
    names = sorted(names, key=_natural)
    sample_indices(len(names), fps, fps, max_frames)  # says what is wrong with the settings
    taken = _spread(len(names), max_frames)
    pictures, first = [], None
    for k in taken:
        picture = load_image(names[k])
        first = first or picture.size
        if picture.size != first:
            raise UserError(
                f"{names[k]}: expected {first[0]}x{first[1]} pixels as the folder's first picture, "
                f"got {picture.size[0]}x{picture.size[1]}"
            )
        pictures.append(np.asarray(picture))
    return Video(np.stack(pictures), tuple(float(k / fps) for k in taken))


def _load_animation(image: Image.Image, fps: float, max_frames: int) -> Video:
    total = getattr(image, "n_frames", 1)
    if total == 1:
        raise UserError("expected a video, got a still picture; give it as an image")
    length = 0.0
    for k in range(total):
        image.seek(k)
        image.load()  # WebP knows a picture's duration only then
        length += image.info.get("duration") or _UNKNOWN_DURATION
    rate = 1000 * total / length
    taken = sample_indices(total, rate, fps, max_frames)
    pictures = []
    for k in taken:
        image.seek(int(k))
        pictures.append(np.asarray(to_rgb(image)))
    return Video(np.stack(pictures), tuple(float(k / rate) for k in taken))


def _load_file(path: Path, fps: float, max_frames: int) -> Video:
    av = _pyav()
    try:
        total, rate = _count_frames(av, path)
        while True:
            taken = sample_indices(total, rate, fps, max_frames)
            pictures, decoded = _decode(av, path, taken)
            if len(pictures) == len(taken):
                break
            # Packets are counted, and not each of them became a picture: sample what there is.
            if not decoded:
                raise UserError("damaged video, no picture of it can be decoded")
            total = decoded
    except av.error.InvalidDataError:
        raise UserError(f"{path}: expected a video, got {first_bytes(path)}") from None
    except av.error.FFmpegError as error:
        raise UserError(f"{path}: damaged video ({error})") from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return Video(np.stack(pictures), tuple(float(k / rate) for k in taken))


def _open(av: ModuleType, path: Path):
    """The file and nothing that it refers to: a playlist must not lead to an address."""
    return av.open(f"file:{path}", options={"protocol_whitelist": "file"})


def _count_frames(av: ModuleType, path: Path) -> tuple[int, float]:
    """Pictures of the first video stream and how many are shown in a second.

    Headers are often wrong about the number, so the packets are counted: nothing is decoded.
    """
    with _open(av, path) as container:
        # FFmpeg draws text as a terminal shows it, and calls that a video.
        if container.format.name == "tty" or not container.streams.video:
            raise UserError("expected a video, found no pictures in it")
        stream = container.streams.video[0]
        total = sum(packet.size > 0 for packet in container.demux(stream))
        rate = float(stream.average_rate or stream.guessed_rate or 0)
    if not total:
        raise UserError("expected a video, found no pictures in it")
    if not rate:
        warnings.warn(f"{path}: the video names no rate, {_UNKNOWN_FPS:g} is assumed", stacklevel=2)
    return total, rate or _UNKNOWN_FPS


def _decode(
    av: ModuleType, path: Path, taken: Int[np.ndarray, " n"]
) -> tuple[list[np.ndarray], int]:
    """The pictures with these numbers, and how many were decoded to find them."""
    wanted, pictures, decoded = set(taken.tolist()), [], 0
    with _open(av, path) as container:
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        for frame in container.decode(stream):
            if decoded in wanted:
                pictures.append(_upright(frame))
            decoded += 1
            if len(pictures) == len(wanted):
                break
    return pictures, decoded


def _upright(frame) -> np.ndarray:
    """RGB of a decoded picture, turned as a phone's file asks for: degrees anticlockwise."""
    pixels = frame.to_ndarray(format="rgb24")
    turns = round(getattr(frame, "rotation", 0) / 90) % 4
    return np.ascontiguousarray(np.rot90(pixels, turns))


def _spread(total: int, count: int) -> Int[np.ndarray, " n"]:
    return np.linspace(0, total - 1, min(count, total)).round().astype(int)


def _natural(path: Path) -> list[tuple[bool, int, str]]:
    """Sorts 2.jpg before 10.jpg."""
    return list(_pieces(path.name))


def _pieces(name: str) -> Iterator[tuple[bool, int, str]]:
    for piece in re.findall(r"\d+|\D+", name):
        yield (False, int(piece), piece) if piece.isdecimal() else (True, 0, piece.lower())


def _pyav() -> ModuleType:
    try:
        import av
        import av.error
    except ImportError:
        raise UserError(
            "videos are read by PyAV, which is not installed: pip install tiger_jax[video]"
        ) from None
    return av
