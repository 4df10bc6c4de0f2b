"""Which pictures of a video are taken and when they are shown; every kind of file that fails."""

import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from tests.published_source import from_source
from tiger_jax.data import videos
from tiger_jax.data.videos import Video, load_video, sample_indices
from tiger_jax.errors import UserError

BUNNY = Path(__file__).parents[3] / "shared/data/video/bigbuckbunny.mp4"


def grey(k: int, size: tuple[int, int] = (48, 32)) -> Image.Image:
    """Picture k of a test video: its number can be read from its brightness."""
    return Image.new("RGB", size, (10 * k,) * 3)


def numbers(video: Video) -> list[int]:
    return [round(float(frame.mean()) / 10) for frame in video.frames]


@pytest.mark.parametrize(
    ("total", "rate", "expected"),
    [
        (10, 5, [0, 3, 6, 9]),
        (100, 25, [0, 14, 28, 42, 57, 71, 85, 99]),
        (3, 30, [0, 1, 2]),
        (48, 24, [0, 16, 31, 47]),
        (1, 30, [0]),
    ],
)
def test_published_samples(total, rate, expected):
    assert sample_indices(total, float(rate)).tolist() == expected


def test_samples_equal_transformers():
    published = from_source("models/qwen3_vl/video_processing_qwen3_vl.py", "sample_frames")
    rng = np.random.default_rng(0)
    for _ in range(300):
        total, rate, fps = int(rng.integers(1, 5000)), float(rng.uniform(1, 60)), 0.5
        own = type("Own", (), {"fps": 2, "min_frames": 4, "max_frames": 768})
        metadata = type("Metadata", (), {"total_num_frames": total, "fps": rate})
        expected = published(own, metadata, None, fps)
        assert sample_indices(total, rate, fps).tolist() == expected.tolist()


def test_samples_are_capped_evenly():
    assert sample_indices(1000, 10.0, fps=10.0, max_frames=5).tolist() == [0, 250, 500, 749, 999]
    assert sample_indices(10, 1.0, fps=0.1, max_frames=2).tolist() == [0, 9]


@pytest.mark.parametrize("bad", [{"total": 0}, {"source_fps": 0.0}, {"fps": -1.0},
                                 {"max_frames": 0}, {"fps": float("nan")}])  # fmt: skip
def test_rates_and_numbers_above_zero(bad):
    with pytest.raises(UserError, match=f"expected {next(iter(bad)).replace('total', 'pictures')}"):
        sample_indices(**{"total": 5, "source_fps": 5.0} | bad)


def test_video_checks_its_arrays():
    frames = np.zeros((2, 4, 5, 3), np.uint8)
    with pytest.raises(UserError, match="one time for each of 2"):
        Video(frames, (0.0,))
    with pytest.raises(UserError, match=r"expected uint8 \[n, H, W, 3\], got uint8 \(0, 4, 5, 3\)"):
        Video(frames[:0], ())


@pytest.mark.parametrize("ending", ["gif", "webp", "png"])
def test_animation(tmp_path, ending):
    """12 pictures of 250 ms: 4 a second, so 2 fps takes 6 of them."""
    path = tmp_path / f"film.{ending}"
    more = {"lossless": True} if ending == "webp" else {}
    pictures = [grey(k) for k in range(12)]
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=250, **more)
    video = load_video(path)
    assert video.frames.shape == (6, 32, 48, 3)
    assert numbers(video) == [0, 2, 4, 7, 9, 11]
    assert video.seconds == (0.0, 0.5, 1.0, 1.75, 2.25, 2.75)
    assert numbers(load_video(path, max_frames=2)) == [0, 11]


def test_animation_without_durations_shows_ten_pictures_a_second(tmp_path):
    pictures = [grey(k) for k in range(20)]
    pictures[0].save(tmp_path / "film.gif", save_all=True, append_images=pictures[1:])
    assert load_video(tmp_path / "film.gif").seconds[-1] == 1.9


def test_folder_is_sampled_already_and_sorted_by_number(tmp_path):
    for k in range(12):
        grey(k).save(tmp_path / f"frame{k}.png")  # frame10 stands before frame2 as text
    (tmp_path / "notes.txt").write_text("not a picture")
    (tmp_path / ".hidden.png").write_bytes(b"")
    video = load_video(tmp_path, fps=4.0)
    assert numbers(video) == list(range(12))
    assert video.seconds[:3] == (0.0, 0.25, 0.5)
    thinned = load_video(tmp_path, fps=1.0, max_frames=3)
    assert numbers(thinned) == [0, 6, 11]  # 5.5 goes to the even one
    assert thinned.seconds == (0.0, 6.0, 11.0)


def test_folders_that_fail(tmp_path):
    with pytest.raises(UserError, match="expected a folder of pictures, found none"):
        load_video(tmp_path)
    grey(1).save(tmp_path / "1.png")
    grey(1, (9, 9)).save(tmp_path / "2.png")
    with pytest.raises(UserError, match=r"2\.png: expected 48x32 pixels .* got 9x9"):
        load_video(tmp_path)
    (tmp_path / "2.png").write_text("<html>")
    with pytest.raises(UserError, match=r"2\.png: expected an image"):
        load_video(tmp_path)


def test_files_that_fail_without_a_decoder(tmp_path):
    grey(1).save(tmp_path / "still.png")
    pictures = [grey(k) for k in range(9)]
    pictures[0].save(tmp_path / "film.png", save_all=True, append_images=pictures[1:])
    (tmp_path / "cut.png").write_bytes((tmp_path / "film.png").read_bytes()[:400])
    (tmp_path / "empty.mp4").write_bytes(b"")
    for name, message in [
        ("still.png", "got a still picture"),
        ("cut.png", "damaged"),
        ("empty.mp4", "expected a video, got an empty file"),
        ("none.mp4", "expected a video file or a folder of pictures, found nothing there"),
        ("a\0b.mp4", "readable path|nothing there"),
    ]:
        with pytest.raises(UserError, match=message) as caught:
            load_video(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_missing_decoder_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    (tmp_path / "film.mp4").write_bytes(b"anything")
    with pytest.raises(UserError, match=r"pip install tiger_jax\[video\]"):
        load_video(tmp_path / "film.mp4")


def write_film(path: Path, n: int = 30, rate: int = 10) -> Path:
    """n pictures, 5 units brighter each."""
    av = pytest.importorskip("av")
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=rate)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for k in range(n):
            pixels = np.full((48, 64, 3), 5 * k + 20, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return path


@pytest.mark.parametrize("ending", ["mp4", "avi", "mkv"])
def test_video_file(tmp_path, ending):
    """3 seconds at 10 a second: 2 fps takes 6 of 30."""
    video = load_video(write_film(tmp_path / f"film.{ending}"))
    assert video.frames.shape == (6, 48, 64, 3)
    found = [round((float(frame.mean()) - 20) / 5) for frame in video.frames]
    assert found == [0, 6, 12, 17, 23, 29]
    assert video.seconds == (0.0, 0.6, 1.2, 1.7, 2.3, 2.9)


def test_video_files_that_fail(tmp_path):
    pytest.importorskip("av")
    whole = write_film(tmp_path / "film.mp4", 60).read_bytes()
    (tmp_path / "text.mp4").write_text("this is no video\n" * 50)
    (tmp_path / "cut.mp4").write_bytes(whole[: len(whole) // 2])  # its index stood at the end
    shutil.copy(tmp_path / "text.mp4", tmp_path / "text.txt")
    for name in ("text.mp4", "text.txt", "cut.mp4"):
        with pytest.raises(UserError, match=f"{name}: (expected a video|damaged)") as caught:
            load_video(tmp_path / name)
        assert "\n" not in str(caught.value)


class FakeContainer:
    """PyAV's face over a stream whose packets, pictures, rate and turn are given."""

    def __init__(self, packets: int, pictures: int, rate: float | None, turn: int = 0):
        self.streams = SimpleNamespace(
            video=[SimpleNamespace(average_rate=rate, guessed_rate=None, thread_type="")]
        )
        self.format = SimpleNamespace(name="fake")
        self.packets, self.pictures, self.turn = packets, pictures, turn

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def demux(self, _):
        return [SimpleNamespace(size=5)] * self.packets + [SimpleNamespace(size=0)]

    def decode(self, _):
        for k in range(self.pictures):
            pixels = np.asarray(grey(k, (6, 4))).copy()
            pixels[0, 0] = 255  # marks the upper left corner
            yield SimpleNamespace(rotation=self.turn, to_ndarray=lambda format, p=pixels: p)


def open_fake(monkeypatch, tmp_path, *facts) -> Video:
    error = type("FFmpegError", (Exception,), {})
    names = SimpleNamespace(FFmpegError=error, InvalidDataError=type("Other", (error,), {}))
    fake = ModuleType("av")
    fake.error, fake.open = names, lambda *_, **__: FakeContainer(*facts)
    monkeypatch.setattr(videos, "_pyav", lambda: fake)
    (tmp_path / "film.mp4").write_bytes(b"anything")
    return load_video(tmp_path / "film.mp4")


def test_packets_that_become_no_picture_are_not_counted(monkeypatch, tmp_path):
    """20 packets at 5 a second would be sampled up to picture 19; there are 16."""
    video = open_fake(monkeypatch, tmp_path, 20, 16, 5.0)
    assert video.seconds == (0.0, 0.6, 1.2, 1.8, 2.4, 3.0)
    assert len(video.frames) == 6
    with pytest.raises(UserError, match="no picture of it can be decoded"):
        open_fake(monkeypatch, tmp_path, 20, 0, 5.0)
    with pytest.raises(UserError, match="found no pictures"):
        open_fake(monkeypatch, tmp_path, 0, 0, 5.0)


def test_unknown_rate_is_24_with_a_warning(monkeypatch, tmp_path):
    with pytest.warns(UserWarning, match="no rate, 24 is assumed"):
        assert open_fake(monkeypatch, tmp_path, 20, 20, None).seconds[-1] == 19 / 24


def test_turned_video_stands_upright(monkeypatch, tmp_path):
    video = open_fake(monkeypatch, tmp_path, 4, 4, 2.0, -90)  # a quarter clockwise
    assert video.frames.shape == (4, 6, 4, 3)
    assert video.frames[0, 0, 3].tolist() == [255] * 3


@pytest.mark.skipif(not BUNNY.is_file(), reason="shared/data is not beside the repository")
def test_real_video():
    """132 pictures at 25 a second: 10 at 2 fps, 5 at 1."""
    pytest.importorskip("av")
    video = load_video(BUNNY, max_frames=64)
    assert video.frames.shape == (10, 720, 1280, 3)
    assert video.seconds == tuple(k / 25 for k in (0, 15, 29, 44, 58, 73, 87, 102, 116, 131))
    assert len({frame.tobytes() for frame in video.frames}) == 10
    assert len(load_video(BUNNY, fps=1.0).frames) == 5
