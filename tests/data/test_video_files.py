"""The right pictures of a video file, whatever its container, order of coding, turn or faults."""

import shutil
import struct
from fractions import Fraction
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from tiger_jax.data import video_files
from tiger_jax.data.videos import Video, load_video, sample_indices
from tiger_jax.errors import UserError

BUNNY = Path(__file__).parents[3] / "shared/data/video/bigbuckbunny.mp4"
WIDTH, HEIGHT, BLOCK = 96, 64, 16


def drawn(number: int) -> np.ndarray:
    """A picture whose number survives any coding: twelve blocks, black for 0 and white for 1."""
    bits = (number >> np.arange(12)).reshape(2, 6) & 1
    blocks = np.kron(bits, np.ones((HEIGHT // 2, BLOCK), int))
    return np.repeat((255 * blocks).astype(np.uint8)[:, :, None], 3, axis=2)


def read_off(picture: np.ndarray) -> int:
    bits = picture[HEIGHT // 4 :: HEIGHT // 2, BLOCK // 2 :: BLOCK, 0].ravel() > 127
    return int((bits << np.arange(12)).sum())


def numbers(video: Video) -> list[int]:
    return [read_off(picture) for picture in video.pictures]


def write_film(
    path: Path, n: int = 30, rate: int = 10, codec: str = "mpeg4", start: int = 0,
    turn: int | None = None, apart: int = 1, title: str | None = None, **options: object,
) -> Path:  # fmt: skip
    """Pictures 0 .. n - 1, the first of them shown at `start` pictures, the next `apart` later."""
    av = pytest.importorskip("av")
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.options = {name.replace("_", "-"): str(value) for name, value in options.items()}
        if title is not None:
            container.metadata["title"] = title
        if turn is not None:
            stream.set_display_rotation(turn)
        for k in range(n):
            frame = av.VideoFrame.from_ndarray(drawn(k), format="rgb24")
            frame.pts, frame.time_base = start + k * apart, Fraction(1, rate)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def decoded(path: Path) -> list[np.ndarray]:
    """Every picture in the order of showing, as PyAV alone gives them."""
    av = pytest.importorskip("av")
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


@pytest.fixture
def counted(monkeypatch) -> list[int | None]:
    """Pictures that each reading of a file decoded; None where it gave its place up."""
    counts, take = [], video_files._take

    def count(*arguments) -> int:
        counts.append(None)
        counts[-1] = take(*arguments)
        return counts[-1]

    monkeypatch.setattr(video_files, "_take", count)
    return counts


@pytest.mark.parametrize("ending", ["mp4", "avi", "mkv"])
def test_video_file(tmp_path, ending):
    """3 seconds at 10 a second: 2 fps takes 6 of 30."""
    video = load_video(write_film(tmp_path / f"film.{ending}"))
    assert video.pictures.shape == (6, HEIGHT, WIDTH, 3)
    assert numbers(video) == [0, 6, 12, 17, 23, 29]
    assert video.seconds == (0.0, 0.6, 1.2, 1.7, 2.3, 2.9)


@pytest.mark.parametrize(
    ("ending", "start", "options"),
    [
        ("mp4", 0, {}),
        ("mkv", 125, {}),
        ("avi", 0, {}),  # tells no time of showing
        ("mp4", 7, {"x264_params": "open-gop=1"}),
        ("ts", 0, {}),
    ],
)
def test_pictures_that_are_coded_in_another_order(tmp_path, ending, start, options):
    """B pictures, and a first picture that is not shown at 0. In the order of coding, number 5
    would be another picture; by the time in the file, number 0 would be 12.5 seconds off."""
    path = write_film(
        tmp_path / f"film.{ending}", 30, codec="libx264", start=start, bf=3, g=12, **options
    )
    video = load_video(path, fps=10.0)
    assert numbers(video) == list(range(30))
    assert video.seconds == tuple(k / 10 for k in range(30))
    assert numbers(load_video(path, fps=0.5)) == [0, 10, 19, 29]


@pytest.mark.parametrize(
    ("ending", "codec", "options", "most"),
    [
        ("mp4", "libx264", {"g": 12, "bf": 3}, 40),
        ("mkv", "libx264", {"g": 12, "bf": 3, "x264_params": "open-gop=1"}, 80),
        ("webm", "libvpx-vp9", {"g": 20}, 80),
        ("avi", "mpeg4", {"g": 12}, 60),
    ],
)
def test_pictures_far_apart_are_jumped_to(tmp_path, counted, ending, codec, options, most):
    path = write_film(tmp_path / f"film.{ending}", 300, 25, codec, start=3, **options)
    whole = decoded(path)
    video = load_video(path, max_frames=6)
    chosen = sample_indices(300, 25.0, max_frames=6)
    assert numbers(video) == chosen.tolist() == [0, 60, 120, 179, 239, 299]
    assert all(np.array_equal(whole[k], got) for k, got in zip(chosen, video.pictures, strict=True))
    assert len(counted) == 1
    assert counted[0] < most


@pytest.mark.parametrize(
    ("ending", "codec", "options"),
    [
        # starts at which a picture is whole only after some more of them
        ("mkv", "libx264", {"g": 24, "x264_params": "intra-refresh=1"}),
        ("ts", "libx264", {"g": 12, "bf": 3}),  # has no index
    ],
)
def test_jumps_that_would_show_another_picture_are_not_made(
    tmp_path, counted, ending, codec, options
):
    path = write_film(tmp_path / f"film.{ending}", 200, 25, codec, **options)
    assert numbers(load_video(path, max_frames=3)) == [0, 100, 199]  # 99.5 goes to the even one
    assert counted == [None, 200]


def test_one_start_is_decoded_once_through(tmp_path, counted):
    path = write_film(tmp_path / "film.mp4", 100, 25, "libx264", g=300)
    assert numbers(load_video(path, max_frames=2)) == [0, 99]
    assert counted == [100]


def corners(picture: np.ndarray) -> list[int]:
    """Upper left, upper right, lower left, lower right: white ones."""
    ends = slice(0, BLOCK), slice(-BLOCK, None)
    return [int(picture[y, x].mean() > 127) for y in ends for x in ends]


@pytest.mark.parametrize("ending", ["mp4", "mkv"])
@pytest.mark.parametrize(
    ("turn", "expected"),
    [(None, [1, 0, 0, 0]), (90, [0, 0, 1, 0]), (-90, [0, 1, 0, 0]), (180, [0, 0, 0, 1])],
)
def test_turned_file_stands_upright(tmp_path, ending, turn, expected):
    """Picture 1 is white in its upper left corner; turns are anticlockwise."""
    path = write_film(tmp_path / f"film.{ending}", 4, 2, turn=turn)
    video = load_video(path)
    assert video.pictures.shape[1:3] == ((WIDTH, HEIGHT) if turn in (90, -90) else (HEIGHT, WIDTH))
    assert corners(video.pictures[1]) == expected


def test_turn_as_quicktime_writes_it(tmp_path):
    """x' = height - y, y' = x in the track's header: the upper left corner comes to the right,
    whatever sign the library gives to the angle."""
    path = write_film(tmp_path / "film.mp4", 4, 2)
    content = bytearray(path.read_bytes())
    matrix = content.index(b"tkhd") + 44  # version 0: 4 + 4 + 20 + 8 + 8 bytes stand before
    straight = struct.pack(">9i", 1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
    assert content[matrix : matrix + 36] == straight
    turned = struct.pack(">9i", 0, 1 << 16, 0, -1 << 16, 0, 0, HEIGHT << 16, 0, 1 << 30)
    content[matrix : matrix + 36] = turned
    path.write_bytes(content)
    assert corners(load_video(path).pictures[1]) == [0, 1, 0, 0]


def test_fitted_file(tmp_path):
    path = write_film(tmp_path / "film.mp4", turn=90)
    seen = []

    def fit(picture: np.ndarray, n: int) -> np.ndarray:
        seen.append((picture.shape, n))
        return picture[::4, ::4]

    video, whole = (load_video(path, fit=f) for f in (fit, None))
    assert seen == [((WIDTH, HEIGHT, 3), 6)] * 6  # upright, before it is fitted
    assert np.array_equal(video.pictures, whole.pictures[:, ::4, ::4])
    assert (video.full_size, whole.full_size) == ((WIDTH, HEIGHT), None)


def test_video_files_that_fail(tmp_path):
    av = pytest.importorskip("av")
    whole = write_film(tmp_path / "film.mp4", 60).read_bytes()
    (tmp_path / "text.mp4").write_text("this is no video\n" * 50)
    (tmp_path / "cut.mp4").write_bytes(whole[: len(whole) // 2])  # its index stood at the end
    shutil.copy(tmp_path / "text.mp4", tmp_path / "text.txt")
    with av.open(str(tmp_path / "sound.wav"), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=8000)
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), layout="mono")
        sound.sample_rate = 8000
        container.mux(stream.encode(sound))
    for name, message in [
        ("text.mp4", "expected a video"),
        ("text.txt", "expected a video"),
        ("cut.mp4", "expected a video, got a file that starts with"),
        ("sound.wav", "expected a video, found no pictures"),
    ]:
        with pytest.raises(UserError, match=f"{name}: {message}") as caught:
            load_video(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_a_file_that_ends_early_gives_what_is_there(tmp_path):
    content = write_film(tmp_path / "film.mkv", 60).read_bytes()
    (tmp_path / "cut.mkv").write_bytes(content[: len(content) * 2 // 3])
    found = numbers(load_video(tmp_path / "cut.mkv", fps=10.0))
    assert found == list(range(len(found)))
    assert 20 < len(found) < 60


def test_a_rate_that_the_times_contradict(tmp_path):
    """30 pictures in 3 s under a header of 1,000 a second: sampled at 2 a second are six."""
    path = write_film(tmp_path / "film.mkv", 30, rate=1000, apart=100)
    video = load_video(path)
    assert numbers(video) == [0, 6, 12, 17, 23, 29]
    assert video.seconds == pytest.approx([0, 0.6, 1.2, 1.7, 2.3, 2.9])


@pytest.mark.parametrize(
    ("named", "seconds", "rate"),
    [
        (25.0, [], 25.0),
        (25.0, [0.0], 25.0),
        (0.0, [], 0.0),
        (0.0, [0.0, 0.5, 1.0], 2.0),
        (2.0, [3.0, 3.5, 4.0], 2.0),
        (1.0, [0.0, 0.5, 1.0], 1.0),  # the last one is shown for 2 s
        (0.9, [0.0, 0.5, 1.0], 2.0),
        (3.0, [0.0, 0.5, 1.0], 3.0),  # the last one is hardly shown
        (1000.0, [0.0, 0.5, 1.0], 2.0),
    ],
)
def test_rate_by_header_and_times(named, seconds, rate):
    assert video_files._rate(named, seconds) == rate


def test_a_title_in_another_encoding(tmp_path):
    content = write_film(tmp_path / "film.mkv", 10, title="Cafe").read_bytes()
    assert content.count(b"Cafe") == 1
    (tmp_path / "latin1.mkv").write_bytes(content.replace(b"Cafe", b"Caf\xe9"))
    assert numbers(load_video(tmp_path / "latin1.mkv", fps=10.0)) == list(range(10))


def test_settings_that_are_wrong_name_the_file(tmp_path):
    path = write_film(tmp_path / "film.mp4", 4)
    with pytest.raises(UserError, match=r"film\.mp4: video: expected fps above 0, got 0"):
        load_video(path, fps=0.0)


class FakeContainer:
    """PyAV's face over a stream whose packets, pictures and rate are given."""

    def __init__(self, packets: int, sizes: list[tuple[int, int]], rate: float | None):
        stream = SimpleNamespace(
            average_rate=rate, guessed_rate=None, disposition=1, time_base=Fraction(1, 1000)
        )
        cover = SimpleNamespace(average_rate=90_000, guessed_rate=None, disposition=0x400)
        self.streams = SimpleNamespace(video=[cover, stream])
        self.format = SimpleNamespace(name="fake")
        self.packets, self.sizes, self.wanted = packets, sizes, stream

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def demux(self, stream):
        assert stream is self.wanted
        facts = {"pts": None, "is_keyframe": True, "is_discard": False}
        sizes = [5] * self.packets + [0]  # the last one empties the decoder
        return [SimpleNamespace(size=size, **facts) for size in sizes]

    def decode(self, stream):
        assert stream is self.wanted
        for k, size in enumerate(self.sizes):
            pixels = np.full((*size, 3), k, np.uint8)
            yield SimpleNamespace(rotation=0, to_ndarray=lambda format, p=pixels: p)


def open_fake(monkeypatch, tmp_path, *facts) -> Video:
    error = type("FFmpegError", (Exception,), {})
    names = SimpleNamespace(FFmpegError=error, InvalidDataError=type("Other", (error,), {}))
    fake = ModuleType("av")
    fake.error, fake.open = names, lambda *_, **__: FakeContainer(*facts)
    monkeypatch.setattr(video_files, "_pyav", lambda: fake)
    (tmp_path / "film.mp4").write_bytes(b"anything")
    return load_video(tmp_path / "film.mp4")


def test_packets_that_become_no_picture_are_not_counted(monkeypatch, tmp_path):
    """20 packets at 5 a second would be sampled up to picture 19; there are 16."""
    video = open_fake(monkeypatch, tmp_path, 20, [(6, 4)] * 16, 5.0)
    assert video.seconds == (0.0, 0.6, 1.2, 1.8, 2.4, 3.0)
    assert video.pictures[:, 0, 0, 0].tolist() == [0, 3, 6, 9, 12, 15]
    with pytest.raises(UserError, match="no picture of it can be decoded"):
        open_fake(monkeypatch, tmp_path, 20, [], 5.0)
    with pytest.raises(UserError, match="found no pictures"):
        open_fake(monkeypatch, tmp_path, 0, [], 5.0)


def test_pictures_of_two_sizes(monkeypatch, tmp_path):
    with pytest.raises(UserError, match=r"film\.mp4: expected 4x6 pixels .* got 8x6"):
        open_fake(monkeypatch, tmp_path, 4, [(6, 4), (6, 8)] * 2, 2.0)


def test_unknown_rate_is_24_with_a_warning(monkeypatch, tmp_path):
    with pytest.warns(UserWarning, match="no rate, 24 is assumed"):
        video = open_fake(monkeypatch, tmp_path, 20, [(6, 4)] * 20, None)
    assert video.seconds[-1] == 19 / 24


@pytest.mark.skipif(not BUNNY.is_file(), reason="shared/data is not beside the repository")
def test_real_video():
    """132 pictures at 25 a second: 10 at 2 fps, 5 at 1."""
    whole = decoded(BUNNY)
    assert len(whole) == 132
    video = load_video(BUNNY, max_frames=64)
    chosen = (0, 15, 29, 44, 58, 73, 87, 102, 116, 131)
    assert video.pictures.shape == (10, 720, 1280, 3)
    assert video.seconds == tuple(k / 25 for k in chosen)
    assert all(np.array_equal(whole[k], got) for k, got in zip(chosen, video.pictures, strict=True))
    assert len({frame.tobytes() for frame in video.pictures}) == 10
    assert len(load_video(BUNNY, fps=1.0).pictures) == 5
