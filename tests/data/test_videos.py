"""Which pictures of a video are taken and when they are shown; animations and folders."""

import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.published_source import from_source
from tiger_jax.data.batches import TILE_BUCKETS
from tiger_jax.data.processor import MOST_TILES
from tiger_jax.data.videos import (
    MOST_FRAMES,
    PUBLISHED_SAMPLING,
    SAMPLING_CHECKS,
    Video,
    VideoSampling,
    load_video,
    sample_indices,
)
from tiger_jax.errors import UserError


def grey(k: int, size: tuple[int, int] = (48, 32)) -> Image.Image:
    """Picture k of a test video: its number can be read from its brightness."""
    return Image.new("RGB", size, (10 * k,) * 3)


def numbers(video: Video) -> list[int]:
    return [round(float(frame.mean()) / 10) for frame in video.pictures]


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
    assert sample_indices(3, 1e-3, fps=1e308).tolist() == [0, 1, 2]


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
    assert video.pictures.shape == (6, 32, 48, 3)
    assert numbers(video) == [0, 2, 4, 7, 9, 11]
    assert video.seconds == (0.0, 0.5, 1.0, 1.75, 2.25, 2.75)
    assert numbers(load_video(path, max_frames=2)) == [0, 11]


def test_animation_without_durations_shows_ten_pictures_a_second(tmp_path):
    pictures = [grey(k) for k in range(20)]
    pictures[0].save(tmp_path / "film.gif", save_all=True, append_images=pictures[1:])
    assert load_video(tmp_path / "film.gif").seconds[-1] == 1.9


def test_pictures_of_an_animation_have_their_own_times(tmp_path):
    """5 of .1 s, then 5 of 1 s: 11 of the 55 that a file of 10 a second would have."""
    pictures = [grey(k) for k in range(10)]
    durations = [100] * 5 + [1000] * 5
    path = tmp_path / "film.gif"
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=durations)
    video = load_video(path)
    assert numbers(video) == [0, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9]
    times = [0, 0.5, 1.1, 1.6, 2.2, 2.7, 3.2, 3.8, 4.3, 4.9, 5.4]
    assert video.seconds == pytest.approx(times)
    few = load_video(path, max_frames=3)
    assert numbers(few) == [0, 7, 9]
    assert few.seconds == pytest.approx((0.0, 2.7, 5.4))


def test_a_short_beginning_takes_no_more_than_its_time(tmp_path):
    """10 pictures in the first .2 s of 5.2 s: one of the 10 samples falls there."""
    pictures = [grey(k) for k in range(11)]
    path = tmp_path / "film.gif"
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=[20] * 10 + [5000])
    assert numbers(load_video(path)) == [0, *[10] * 9]


def test_a_rate_beyond_all_reason_costs_no_memory(tmp_path):
    """Three stills of a second at a million pictures a second: 3,000,000 of which 5 are made."""
    pictures = [grey(k) for k in range(3)]
    path = tmp_path / "film.gif"
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=1000)
    tracemalloc.start()
    video = load_video(path, fps=1e6, max_frames=5)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert numbers(video) == [0, 0, 1, 2, 2]
    assert peak < 5e6


def test_no_more_frames_than_a_tower_takes():
    """Two pictures a tile of Qwen3-VL, one a tile of LLaVA."""
    assert 2 * MOST_TILES == MOST_FRAMES == TILE_BUCKETS[-1]
    with pytest.raises(ValueError, match=r"max_frames: expected a whole number in 1..1536"):
        SAMPLING_CHECKS["max_frames"]("max_frames", 1537)


def test_a_film_whose_repetitions_its_writer_left_out(tmp_path):
    """Pillow writes a picture that is there twice once, for twice as long."""
    pictures = [grey(k // 2) for k in range(6)]
    path = tmp_path / "film.gif"
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=500)
    with Image.open(path) as film:
        assert film.n_frames == 3
    video = load_video(path)
    assert numbers(video) == [0, 0, 1, 1, 2, 2]
    assert video.seconds == (0.0, 0.5, 1.0, 1.5, 2.0, 2.5)


def test_fewest_pictures(tmp_path):
    """12 pictures in 3 seconds at 1 a second: 3, or as many as are asked for at least."""
    pictures = [grey(k) for k in range(12)]
    path = tmp_path / "film.gif"
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=250)
    assert len(load_video(path, fps=1.0).pictures) == 4
    assert len(load_video(path, fps=1.0, min_frames=1).pictures) == 3
    assert len(load_video(path, fps=1.0, min_frames=7).pictures) == 7
    assert len(load_video(path, fps=1.0, min_frames=7, max_frames=5).pictures) == 5


def test_each_field_of_a_sampling_falls_back_by_itself():
    asked, run = VideoSampling(max_frames=5), VideoSampling(1.0, 9)
    assert asked.over(run) == VideoSampling(1.0, 5, None)
    assert asked.over(run).over(PUBLISHED_SAMPLING) == VideoSampling(1.0, 5, 4)
    assert VideoSampling().over(PUBLISHED_SAMPLING) == VideoSampling(2.0, 768, 4)


def test_folder_is_sampled_already_and_sorted_by_number(tmp_path):
    for k in range(12):
        grey(k).save(tmp_path / f"frame{k}.png")  # frame10 stands before frame2 as text
    for stray in ("notes.txt", "data.h5", "page.PDF", "clip.mpg", "field.grib", "page.eps"):
        (tmp_path / stray).write_text("not a picture")
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


def test_folder_that_cannot_be_read(tmp_path, monkeypatch):
    """By a patch, because the superuser may read any."""

    def closed(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", closed)
    with pytest.raises(UserError, match=r"cannot read this folder \(Permission denied\)$"):
        load_video(tmp_path)


def test_files_that_fail_without_a_decoder(tmp_path):
    grey(1).save(tmp_path / "still.png")
    pictures = [grey(k) for k in range(9)]
    pictures[0].save(tmp_path / "film.png", save_all=True, append_images=pictures[1:])
    (tmp_path / "cut.png").write_bytes((tmp_path / "film.png").read_bytes()[:400])
    (tmp_path / "empty.mp4").write_bytes(b"")
    for name, message in [
        ("still.png", "got one picture: a still one, or a damaged animation"),
        ("cut.png", "damaged"),
        ("empty.mp4", "expected a video, got an empty file"),
        ("none.mp4", "expected a video file or a folder of pictures, found nothing there"),
        ("a\0b.mp4", "readable path|nothing there"),
    ]:
        with pytest.raises(UserError, match=message) as caught:
            load_video(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_an_animation_cut_anywhere_is_read_or_refused_in_one_line(tmp_path):
    rng = np.random.default_rng(0)
    pictures = [Image.fromarray(rng.integers(0, 256, (6, 8, 3), np.uint8)) for _ in range(3)]
    pictures[0].save(tmp_path / "film.gif", save_all=True, append_images=pictures[1:])
    whole = (tmp_path / "film.gif").read_bytes()
    refused = []
    for end in range(1, len(whole), 7):
        (tmp_path / "cut.gif").write_bytes(whole[:end])
        try:
            load_video(tmp_path / "cut.gif")
        except UserError as error:
            refused.append(str(error))
    assert len(refused) > len(whole) // 14
    assert all(line.startswith(str(tmp_path / "cut.gif")) for line in refused)
    assert not any("\n" in line for line in refused)


def test_missing_decoder_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    (tmp_path / "film.mp4").write_bytes(b"anything")
    with pytest.raises(UserError, match=r"pip install tiger_jax\[video\]"):
        load_video(tmp_path / "film.mp4")


def test_pictures_are_fitted_as_they_are_read(tmp_path):
    """`fit` sees each sampled picture at full size and how many of them there are."""
    seen = []

    def fit(picture: np.ndarray, n: int) -> np.ndarray:
        seen.append((picture.shape, n))
        return picture[::2, ::4]

    pictures = [grey(k) for k in range(12)]
    for k, picture in enumerate(pictures):
        (tmp_path / "film").mkdir(exist_ok=True)
        picture.save(tmp_path / f"film/{k}.png")
    pictures[0].save(tmp_path / "film.gif", save_all=True, append_images=pictures[1:], duration=250)
    for name in ("film", "film.gif"):
        seen.clear()
        video, whole = (load_video(tmp_path / name, max_frames=5, fit=f) for f in (fit, None))
        assert seen == [((32, 48, 3), 5)] * 5
        assert np.array_equal(video.pictures, whole.pictures[:, ::2, ::4])
        assert video.seconds == whole.seconds
        assert (video.full_size, whole.full_size) == ((32, 48), None)
