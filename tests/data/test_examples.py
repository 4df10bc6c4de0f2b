"""Training examples: bad lines and broken pictures cost only themselves."""

import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from tiger_jax.data.examples import (
    USUAL_SAMPLING,
    DroppedExample,
    Example,
    PreparedExample,
    PrepareExample,
    VideoSampling,
    load_pictures,
    read_examples,
)
from tiger_jax.data.json_lines import RecordError
from tiger_jax.data.records import Request
from tiger_jax.data.videos import load_video
from tiger_jax.errors import UserError

GOOD = {"images": ["cats/1.png"], "prompt": "How many cats are there?"}


def write(folder, *records) -> str:
    path = folder / "pets.jsonl"
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def example(*images, prompt="Hi?", response=None) -> Example:
    return Example("a", prompt, tuple(map(str, images)), "pets", response)


def test_all_fields_and_defaults(tmp_path):
    full = {**GOOD, "id": 7, "response": "There are 2.", "source": "zoo"}
    path = write(tmp_path, full, "", GOOD, {**GOOD, "images": "/abs.png", "response": ""})
    cat = str(tmp_path / "cats/1.png")  # relative to the file; nothing is opened
    assert read_examples(path) == [
        Example("7", GOOD["prompt"], (cat,), "zoo", "There are 2."),
        Example("line-3", GOOD["prompt"], (cat,), "pets"),
        Example("line-4", GOOD["prompt"], ("/abs.png",), "pets", ""),
    ]


def test_videos_stand_beside_images(tmp_path):
    """Placeholders of one kind may be left out where those of the other are placed."""
    both = {**GOOD, "videos": ["cats/1.mp4", "/abs.gif"], "fps": 1, "max_frames": 9}
    placed = {**both, "prompt": "Before <video> and after <video>?"}
    alone = {"videos": "film", "prompt": "What?"}
    nothing = {"images": [], "prompt": "Hi?"}
    tag = {**GOOD, "prompt": "What is <video>? And <image>?"}
    path = write(tmp_path, both, placed, alone, nothing, tag)
    first, second, third, fourth, fifth = read_examples(path)
    assert fifth.prompt == tag["prompt"]  # without videos it is text
    assert first.images == (str(tmp_path / "cats/1.png"),)
    assert first.videos == (str(tmp_path / "cats/1.mp4"), "/abs.gif")
    assert (first.fps, first.max_frames) == (1.0, 9)
    assert second.prompt == placed["prompt"]
    assert (third.images, third.videos) == ((), (str(tmp_path / "film"),))
    assert (third.fps, third.max_frames) == (None, None)
    assert (fourth.images, fourth.videos) == ((), ())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": None}, "images: expected a list of paths, or one of videos, found neither"),
        ({"videos": 5}, "videos: expected a list of non-empty texts, got 5"),
        ({"fps": -1}, "fps: expected a number in 1e-06..1000000, got -1"),
        ({"fps": 0}, "fps: expected a number in 1e-06..1000000, got 0"),
        ({"max_frames": 0}, "max_frames: expected a whole number in 1..1536, got 0"),
        ({"images": [""]}, "images: expected a list of non-empty texts"),
        ({"prompt": None}, "missing field 'prompt'"),
        ({"prompt": ""}, "prompt: expected a non-empty text, got ''"),
        ({"response": 5}, "response: expected a non-empty text, got 5"),
        ({"source": ""}, "source: expected a non-empty text"),
        ({"prompt": "\ud800?"}, "prompt: expected valid Unicode text"),
        ({"answer": "2"}, "unknown field 'answer'"),
        ({"prompt": "<image> <image>?"}, "no <image>, or one for each of the 1 images, got 2"),
        ({"images": [], "prompt": "<image>?"}, "one for each of the 0 images, got 1"),
        ({"videos": ["a.mp4", "b.mp4"], "prompt": "<video>?"}, "of the 2 videos, got 1"),
        (
            {"images": ["1.png"] * 2, "videos": "a.mp4", "prompt": "<video> <image>?"},
            "of the 2 images, got 1",
        ),
    ],
)
def test_faults_are_one_line_each_and_spoil_no_neighbour(tmp_path, change, message):
    first, bad, last = read_examples(write(tmp_path, GOOD, {**GOOD, **change}, GOOD))
    assert isinstance(bad, RecordError)
    assert bad.line == 2
    assert message in bad.message
    assert "\n" not in bad.message
    assert (first.id, last.id) == ("line-1", "line-3")


def test_broken_json_and_repeated_id(tmp_path):
    records = read_examples(write(tmp_path, {**GOOD, "id": "a"}, '{"cut', {**GOOD, "id": "a"}))
    assert isinstance(records[0], Example)
    assert "not valid JSON" in records[1].message
    assert records[2].message == "id 'a' was already used on line 1"


def test_missing_file(tmp_path):
    with pytest.raises(UserError, match=r"JSON Lines file of examples, found none"):
        read_examples(tmp_path / "none.jsonl")


def test_prepared_example_is_the_prompt_with_its_picture(processor, tmp_path):
    path = tmp_path / "grey.png"
    Image.new("L", (112, 112), 90).save(path)
    prepared = PrepareExample(processor)(example(path, response="It is grey."))
    assert isinstance(prepared, PreparedExample)
    assert len(prepared.prompt.tiles) == 2
    assert (prepared.prompt.image_ids == 0).sum() == 136
    assert processor.decode(prepared.response) == " It is grey."
    assert prepared.response[-1] == processor.config.eos_token_ids[0]
    assert prepared.response.tolist() == processor.encode_answer("It is grey.")
    assert PrepareExample(processor)(example(path)).response is None
    placed = PrepareExample(processor)(example(path, prompt="Look: <image> What?"))
    assert processor.decode(placed.prompt.tokens).startswith("USER: Look:")


def test_unusable_example_says_why(processor, tmp_path):
    whole = tmp_path / "whole.png"
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    Image.fromarray(noise).save(whole)
    (tmp_path / "cut.png").write_bytes(whole.read_bytes()[:900])
    prepare = PrepareExample(processor, max_length=200)
    cases = {
        "cut.png: damaged image": example(whole, tmp_path / "cut.png"),
        "none.png: expected an image file, found nothing there": example(tmp_path / "none.png"),
        "the limit is 200": example(whole, prompt="Hi? " * 60),
    }
    for message, broken in cases.items():
        dropped = prepare(broken)
        assert isinstance(dropped, DroppedExample)
        assert (dropped.id, dropped.source) == ("a", "pets")
        assert message in dropped.message
        assert "\n" not in dropped.message


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """A folder with a picture and a film of 12 pictures, 4 a second."""
    folder = tmp_path_factory.mktemp("shown")
    rng = np.random.default_rng(0)
    stills = [Image.fromarray(rng.integers(0, 256, (56, 84, 3), dtype=np.uint8)) for _ in range(12)]
    stills[0].save(folder / "cat.png")
    stills[0].save(folder / "film.png", save_all=True, append_images=stills[1:], duration=250)
    (folder / "broken.mp4").write_text("no video")
    return folder


def film(folder, prompt, *names, images=(), **more) -> Example:
    images = tuple(str(folder / name) for name in images)
    return Example(
        "a", prompt, images, "pets", videos=tuple(str(folder / n) for n in names), **more
    )


def test_videos_become_frames(qwen_processor, shown):
    """6 pictures at 2 fps are 3 frames of 4 x 6 tokens; the picture is one more, in its place."""
    video, image = qwen_processor.config.video_token_id, qwen_processor.config.image_token_id
    prompt = PrepareExample(qwen_processor)(film(shown, "What?", "film.png")).prompt
    assert (len(prompt.tiles), (prompt.tokens == video).sum()) == (3, 3 * 24)
    placed = film(shown, "A <image> B <video> C", "film.png", images=["cat.png"])
    prompt = PrepareExample(qwen_processor)(placed).prompt
    seen = prompt.tokens[np.isin(prompt.tokens, (video, image))]
    assert seen.tolist() == [image] * (seen == image).sum() + [video] * 72
    assert prompt.image_ids.max() == 3
    placed = film(shown, "A <video> B <image> C", "film.png", images=["cat.png"])
    seen = PrepareExample(qwen_processor)(placed).prompt.tokens
    assert seen[np.isin(seen, (video, image))][0] == video


def test_sampling_is_the_run_s_or_the_record_s(qwen_processor, shown):
    """3 seconds: 2 fps take 6 pictures, 4 fps all 12, 8 of them at most, two of them a frame."""

    def frames(run=USUAL_SAMPLING, **own):
        asked = film(shown, "?", "film.png", **own)
        (video,) = load_pictures(asked, qwen_processor, run).videos
        return len(qwen_processor.visual(video).tiles)

    assert frames() == 3
    assert frames(VideoSampling(4.0)) == 6
    assert frames(VideoSampling(4.0, 8)) == 4
    assert frames(fps=4.0) == 6
    assert frames(VideoSampling(4.0, 8), max_frames=4) == 2
    assert frames(VideoSampling(4.0, 4), fps=2.0, max_frames=6) == 3
    request = Request("1", "?", videos=(str(shown / "film.png"),), fps=4.0, max_frames=8)
    (video,) = load_pictures(request, qwen_processor).videos
    assert video.seconds[1] == 0.5  # 0 2 3 5 6 8 9 11
    assert len(video.pictures) == 8


def test_the_folder_says_where_request_and_run_do_not(qwen_processor, shown):
    """Of 12 pictures, 4 a second; every field falls back by itself."""

    def seconds(folder, run=USUAL_SAMPLING, **own):
        processor = replace(qwen_processor, sampling=VideoSampling(*folder))
        (video,) = load_pictures(film(shown, "?", "film.png", **own), processor, run).videos
        return list(video.seconds)

    assert seconds((1.0, 768, 2)) == [0.0, 1.5, 2.75]  # 5.5 goes to the even one
    assert len(seconds((1.0, 768, 4))) == 4
    assert len(seconds((4.0, 5, 4))) == 5
    assert len(seconds((4.0, 5, 4), VideoSampling(max_frames=9))) == 9
    assert len(seconds((4.0, 5, 4), VideoSampling(fps=2.0))) == 5
    assert len(seconds((1.0, 768, 2), VideoSampling(fps=2.0))) == 6
    assert len(seconds((1.0, 768, 2), VideoSampling(fps=2.0), fps=4.0)) == 12
    assert len(seconds((1.0, 768, 2), VideoSampling(fps=0.5, min_frames=1))) == 1


def test_broken_video_drops_its_example_only(qwen_processor, processor, shown):
    prepare = PrepareExample(qwen_processor)
    for broken, message in [
        (film(shown, "?", "broken.mp4"), "broken.mp4: expected a video, got a file that starts"),
        (film(shown, "?", "film.png", "none.mp4"), "none.mp4: expected a video file or a folder"),
        (film(shown, "?", "cat.png"), "got one picture: a still one, or a damaged animation"),
        (film(shown, "?", "film.png", fps=0.0), "expected fps above 0, got 0.0"),
    ]:
        dropped = prepare(broken)
        assert isinstance(dropped, DroppedExample)
        assert message in dropped.message
        assert "\n" not in dropped.message
        assert isinstance(prepare(film(shown, "?", "film.png")), PreparedExample)


def test_llava_reads_videos_too(processor, shown):
    """6 pictures at 2 fps are 6 frames of 8 x 8 tokens; what cannot be used is dropped alone."""
    prepare = PrepareExample(processor)
    prompt = prepare(film(shown, "What?", "film.png")).prompt
    assert prompt.tokens_per_frame == (64,) * 6
    few = replace(processor, chosen_budget=5)
    for examples, broken in ((few, "film.png"), (processor, "broken.mp4"), (processor, "none.mp4")):
        assert isinstance(PrepareExample(examples)(film(shown, "?", broken)), DroppedExample)
    assert isinstance(prepare(example(shown / "cat.png")), PreparedExample)


@pytest.mark.parametrize(
    ("size", "n", "bound"),
    [
        ((84, 56), 5, 7056),
        ((176, 56), 3, 12000),  # 28x112, and that would become 28x126
        ((200, 56), 6, 3000),  # 14x42, and that would become 14x28
    ],
)
def test_pictures_fitted_while_reading_are_those_of_full_size(
    qwen_processor, tmp_path, size, n, bound
):
    """What the processor makes of a video is the same; its bound of pixels makes them smaller."""
    noise = np.random.default_rng(0).integers(0, 256, (8, *size[::-1], 3), dtype=np.uint8)
    for k, picture in enumerate(noise):
        Image.fromarray(picture).save(tmp_path / f"{k}.png")
    few = replace(qwen_processor, video=replace(qwen_processor.video, max_pixels=bound))
    example = film(tmp_path, "?", "", max_frames=n)
    (fitted,) = load_pictures(example, few).videos
    whole = load_video(tmp_path, max_frames=n)
    assert (whole.pictures.shape[1:3], whole.full_size) == (size[::-1], None)
    assert fitted.full_size == size[::-1]
    assert fitted.pictures.size < whole.pictures.size / 2
    want, got = (few.visual(video) for video in (whole, fitted))
    for name, value in vars(want.tiles).items():
        np.testing.assert_array_equal(getattr(got.tiles, name), value)
    np.testing.assert_array_equal(got.tokens, want.tokens)
