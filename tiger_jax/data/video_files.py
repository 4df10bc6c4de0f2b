"""Reads chosen pictures of a video file with PyAV, and skips what lies far between them.

n: chosen pictures, H, W: height, width in pixels, h, w: those that are kept.
"""

import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import numpy as np
from jaxtyping import Int, UInt8

from tiger_jax.data.images import first_bytes
from tiger_jax.errors import UserError

Fit = Callable[[UInt8[np.ndarray, "H W 3"], int], UInt8[np.ndarray, "h w 3"]]
"""(picture, n) -> the picture in the size that a model takes of a video of n pictures."""
Choose = Callable[[int, float], Int[np.ndarray, " n"]]
"""(number of pictures, pictures a second) -> numbers of those to read, rising."""
_UNKNOWN_FPS = 24.0
_LEAST_JUMP = 16
"""Pictures that are decoded rather than jumped over: a jump empties the decoder."""
_COVER = 0x400  # AV_DISPOSITION_ATTACHED_PIC: the picture on an album


@dataclass
class Shelf:
    """Pictures of one video, fitted as they come: those of full size are not kept."""

    count: int
    fit: Fit | None
    size: tuple[int, int] | None = None
    """(height, width) before `fit`."""
    pictures: list[np.ndarray] = field(default_factory=list)

    def put(self, picture: UInt8[np.ndarray, "H W 3"]) -> None:
        """Raises UserError for a picture of another size than the first."""
        size = picture.shape[:2]
        self.size = self.size or size
        if size != self.size:
            (height, width), first = size, self.size
            raise UserError(
                f"expected {first[1]}x{first[0]} pixels as the first picture, got {width}x{height}"
            )
        self.pictures.append(self.fit(picture, self.count) if self.fit else picture)


@dataclass(frozen=True)
class Contents:
    """What a video's packets tell before anything is decoded."""

    total: int
    rate: float
    """Pictures a second, on average."""
    times: tuple[int, ...] = ()
    """When each picture is shown, in the stream's units; none if the packets do not tell."""
    starts: tuple[int, ...] = ()
    """Numbers of the pictures at which decoding can begin."""

    def start_of(self, number: int) -> int:
        """The last of `starts` up to a picture; 0 if there is none."""
        place = bisect_right(self.starts, number)
        return self.starts[place - 1] if place else 0

    def worth_jumping(self, chosen: Sequence[int]) -> bool:
        """True if a start lies far enough between two neighbours to leave pictures out."""
        pairs = zip((-1, *chosen), chosen, strict=False)
        return bool(self.times) and any(
            self.start_of(b) - a > _LEAST_JUMP for a, b in pairs
        )  # fmt: skip


def read_file(path: Path, choose: Choose, fit: Fit | None) -> tuple[Shelf, list[float]]:
    """The chosen pictures of a file, and when each of them is shown.

    Raises:
        UserError: not a video, damaged, no pictures, or PyAV is not installed.
    """
    av = _pyav()
    try:
        contents = _look_through(av, path)
        total = contents.total
        while True:
            chosen = choose(total, contents.rate).tolist()
            shelf, decoded = _read(av, path, chosen, contents, fit)
            if len(shelf.pictures) == len(chosen):
                return shelf, [k / contents.rate for k in chosen]
            # Packets are counted, and not each of them became a picture: sample what there is.
            if not decoded:
                raise UserError("damaged video, no picture of it can be decoded")
            total = decoded
    except av.error.FFmpegError as error:
        raise UserError(f"{path}: damaged video ({error})") from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _pyav() -> ModuleType:
    try:
        import av
        import av.error
    except ImportError:
        raise UserError(
            "videos are read by PyAV, which is not installed: pip install tiger_jax[video]"
        ) from None
    return av


def _open(av: ModuleType, path: Path):
    """The file and nothing that it refers to: a playlist must not lead to an address. Titles and
    the like may be in any encoding: nobody reads them."""
    only_files = {"protocol_whitelist": "file"}
    return av.open(f"file:{path}", options=only_files, metadata_errors="ignore")


def _stream_of(container):
    """The first video stream that is no cover picture."""
    # FFmpeg draws text as a terminal shows it, and calls that a video.
    streams = [] if container.format.name == "tty" else container.streams.video
    for stream in streams:
        if not int(stream.disposition) & _COVER:
            stream.thread_type = "AUTO"
            return stream
    raise UserError("expected a video, found no pictures in it")


def _look_through(av: ModuleType, path: Path) -> Contents:
    """Counts the packets, because headers are often wrong: nothing is decoded."""
    try:
        with _open(av, path) as container:
            stream = _stream_of(container)
            # Packets to discard make up what comes before the first picture that is shown.
            packets = [(packet.pts, packet.is_keyframe) for packet in container.demux(stream)
                       if packet.size > 0 and not packet.is_discard]  # fmt: skip
            rate = float(stream.average_rate or stream.guessed_rate or 0)
            unit = float(stream.time_base)
    except av.error.InvalidDataError:
        raise UserError(f"expected a video, got {first_bytes(path)}") from None
    if not packets:
        raise UserError("expected a video, found no pictures in it")
    times = {time: key for time, key in packets if time is not None}
    if len(times) < len(packets):  # an AVI file with B pictures: packets in no order of showing
        times = {}
    shown = sorted(times)
    rate = _rate(rate, [unit * time for time in shown])
    if not rate:
        warnings.warn(f"{path}: the video names no rate, {_UNKNOWN_FPS:g} is assumed", stacklevel=4)
        rate = _UNKNOWN_FPS
    return Contents(
        len(packets), rate, tuple(shown), tuple(i for i, t in enumerate(shown) if times[t])
    )


def _rate(named: float, seconds: Sequence[float]) -> float:
    """Pictures a second: the header's, unless the times of showing cannot agree with it; 0 if
    neither tells."""
    steps = len(seconds) - 1
    span = seconds[-1] - seconds[0] if seconds else 0.0
    if not span:
        return named
    # How long the last picture is shown is not known: perhaps as long as all others together.
    agrees = 0.5 * steps / span <= named <= 1.1 * (steps + 1) / span
    return named if agrees else steps / span


def _read(
    av: ModuleType, path: Path, chosen: Sequence[int], contents: Contents, fit: Fit | None
) -> tuple[Shelf, int]:
    """The chosen pictures, and how many were decoded to find them."""
    if contents.worth_jumping(chosen):
        try:
            shelf = Shelf(len(chosen), fit)
            return shelf, _take(_jumps(av, path, chosen, contents), chosen, shelf)
        except (_LostPlace, av.error.FFmpegError):
            pass  # the file's own index is wrong: only decoding all of it is exact
    shelf = Shelf(len(chosen), fit)
    return shelf, _take(_all(av, path), chosen, shelf)


def _take(frames: Iterator[tuple[int, object]], chosen: Sequence[int], shelf: Shelf) -> int:
    """Puts the chosen ones of numbered frames on the shelf; returns how many frames came."""
    wanted, came = set(chosen), 0
    for number, frame in frames:
        came += 1
        if number in wanted:
            shelf.put(_upright(frame))
        if len(shelf.pictures) == len(wanted):
            break
    return came


def _all(av: ModuleType, path: Path) -> Iterator[tuple[int, object]]:
    with _open(av, path) as container:
        yield from enumerate(container.decode(_stream_of(container)))


class _LostPlace(Exception):
    """A picture that is not the one which the packets promised."""


def _jumps(
    av: ModuleType, path: Path, chosen: Sequence[int], contents: Contents
) -> Iterator[tuple[int, object]]:
    """Frames with their numbers, from the start before each chosen one to that one.

    Every time is compared with that of the packets, so a wrong picture cannot come through.

    Raises:
        _LostPlace: it is another one.
    """
    with _open(av, path) as container:
        stream = _stream_of(container)
        number, frames = 0, container.decode(stream)
        for k in chosen:
            start = contents.start_of(k)
            if start - number > _LEAST_JUMP:
                time = contents.times[start]
                container.seek(time, stream=stream)
                number, frames = start, _frames_from(container, stream, time)
            while number <= k:
                frame = next(frames, None)
                if frame is None or frame.pts != contents.times[number] or frame.is_corrupt:
                    raise _LostPlace
                yield number, frame
                number += 1


def _frames_from(container, stream, time: int) -> Iterator:
    """Frames from a start that is shown at `time`."""
    first = True
    for packet in container.demux(stream):
        if first and (packet.pts != time or not packet.is_keyframe):
            raise _LostPlace
        first = False
        for frame in packet.decode():
            # B pictures that come behind a start and are shown before it lack what they refer to.
            if frame.pts is None or frame.pts >= time:
                yield frame


def _upright(frame) -> UInt8[np.ndarray, "H W 3"]:
    """RGB of a decoded picture, turned as a phone's file asks for: degrees anticlockwise."""
    pixels = frame.to_ndarray(format="rgb24")
    turns = round(frame.rotation / 90) % 4
    return np.ascontiguousarray(np.rot90(pixels, turns))
