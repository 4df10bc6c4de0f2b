"""Prefix and question are the prompt of that question alone, and the key names them."""

import dataclasses
import pickle

import numpy as np
import pytest

from tiger_jax.data.batches import make_prompt
from tiger_jax.data.clips import make_clip
from tiger_jax.data.draft_examples import AskQuestions, make_example
from tiger_jax.data.examples import DroppedExample, Example
from tiger_jax.data.prompts import build_prompt
from tiger_jax.data.scenes import make_scene
from tiger_jax.data.videos import Video
from tiger_jax.errors import UserError
from tiger_jax.models.frames import Frames


@pytest.fixture(scope="module")
def scene():
    return make_scene(5, 3)


def alone(processor, question, images, videos=()):
    text = build_prompt(processor, question, len(images), len(videos))
    return make_prompt(processor, processor.config, text, images, videos=videos)


def check_prompts(processor, example, questions, images, videos=()):
    assert len(example.questions) == len(questions)
    for number, question in enumerate(questions):
        want, got = alone(processor, question, images, videos), example.prompt(number)
        for name, value in want._asdict().items():
            check_equal(getattr(got, name), value, name)


def check_equal(got, want, name):
    if isinstance(want, Frames):
        for part, value in vars(want).items():
            check_equal(getattr(got, part), value, part)
        return
    np.testing.assert_array_equal(got, want, err_msg=name)
    assert np.asarray(got).dtype == np.asarray(want).dtype


@pytest.mark.parametrize("index", range(3))
def test_scenes(processor, index):
    scene = make_scene(5, index, grid=(4, 8) if index == 2 else (4, 4))
    example = pickle.loads(pickle.dumps(AskQuestions(processor)))(scene)
    check_prompts(processor, example, [pair.question for pair in scene.qa], [scene.image])
    assert example.prefix.image_ids[-1] == 0  # nothing behind the picture is shared
    assert example.responses == ()


def test_two_pictures_and_none(processor, scene):
    images = [scene.image, make_scene(5, 4).image]
    for pictures, last in ((images, 1), ([], -1)):
        questions = ["What is this?", "Where?"]
        texts = [build_prompt(processor, question, len(pictures)) for question in questions]
        example = make_example(processor, texts, pictures)
        check_prompts(processor, example, questions, pictures)
        assert example.prefix.image_ids[-1] == last
    assert example.prefix.tokens.tolist() == [processor.config.bos_token_id]


def test_reference_answers_end_with_the_end_token(processor, scene):
    example = AskQuestions(processor, reference=True)(scene)
    assert len(example.responses) == len(scene.qa)
    for pair, tokens in zip(scene.qa, example.responses, strict=True):
        assert tokens[-1] in processor.config.eos_token_ids
        assert processor.decode(tokens[:-1].tolist()).strip() == pair.answer


def test_the_key_names_picture_and_questions(processor, scene):
    texts = [build_prompt(processor, pair.question, 1) for pair in scene.qa]
    keys = {
        make_example(processor, texts, [scene.image]).key,
        make_example(processor, texts[::-1], [scene.image]).key,
        make_example(processor, texts[:2], [scene.image]).key,
        make_example(processor, texts, [make_scene(5, 9).image]).key,
    }
    assert len(keys) == 4
    assert make_example(processor, texts, [scene.image]).key in keys


def test_the_key_names_given_responses(processor, scene):
    """Cached laws stand along the responses: an edited one must not find those of the old."""
    edited = dataclasses.replace(scene.qa[-1], answer="Something else.")
    other = dataclasses.replace(scene, qa=(*scene.qa[:-1], edited))
    ask = AskQuestions(processor, reference=True)
    keys = [ask(scene).key, ask(other).key, AskQuestions(processor)(scene).key]
    assert len(set(keys)) == 3
    assert ask(scene).key == keys[0]
    assert AskQuestions(processor)(other).key == keys[2]


def test_the_key_without_responses_stays(processor):
    """Caches are in use under these keys."""
    scene = make_scene(5, 3)
    assert AskQuestions(processor)(scene).key == "df4bacf51a8130d8b336f8ce"


def test_texts_that_are_too_long(processor, scene):
    """Visual tokens do not count; a response that is not known has one token at least."""
    whole = AskQuestions(processor)(scene)
    longest = max(map(len, whole.questions)) + int((whole.prefix.image_ids < 0).sum())
    assert whole.text_tokens([1] * len(whole.questions)) == longest + 1
    assert longest + 1 < len(whole.prefix.tokens)
    fits = AskQuestions(processor, max_length=longest + 1)
    assert fits(scene).key == whole.key
    assert fits.too_long(whole, [1] * len(whole.questions)) is None
    message = f"text: expected at most {longest + 1} tokens (max_length), needs {longest + 5}"
    assert fits.too_long(whole, [5] * len(whole.questions)) == message
    dropped = AskQuestions(processor, max_length=longest)(scene)
    assert isinstance(dropped, DroppedExample)
    assert dropped.message.endswith(f"needs {longest + 1}")


def test_more_tokens_than_a_batch_has_columns(qwen_processor, scene, monkeypatch):
    ask = AskQuestions(qwen_processor)
    whole = ask(scene)
    monkeypatch.setattr("tiger_jax.data.batches.SEQ_BUCKETS", (len(whole.prompt(0).tokens) + 9,))
    longest = max(len(whole.prompt(number).tokens) for number in range(len(whole.questions)))
    room = len(whole.prompt(0).tokens) + 9 - longest
    assert ask.too_long(whole, [room] * 4) is None
    assert ask.too_long(whole, [room + 1] * 4).startswith("example: expected at most")
    monkeypatch.setattr("tiger_jax.data.batches.SEQ_BUCKETS", (60,))
    with pytest.raises(UserError, match="the limit is 60"):
        make_example(qwen_processor, [build_prompt(qwen_processor, "Hi?", 1)], [scene.image])


def test_prompts_that_do_not_share_their_beginning(processor, scene):
    texts = [build_prompt(processor, "Hi?", 1), "USER: before <image>\nHi? ASSISTANT:"]
    with pytest.raises(ValueError, match="expected to begin"):
        make_example(processor, texts, [scene.image])


@pytest.mark.parametrize("index", range(3))
def test_clips(qwen_processor, index):
    """Token by token and position by position. The three frames of 8 x 8 tokens are shared."""
    clip = make_clip(5, index, hard=index == 2)
    example = pickle.loads(pickle.dumps(AskQuestions(qwen_processor)))(clip)
    check_prompts(
        qwen_processor, example, [pair.question for pair in clip.qa], [], [clip.shown]
    )  # fmt: skip
    prefix = example.prefix
    assert prefix.image_ids.max() == 2
    assert (prefix.image_ids >= 0).sum() == 3 * 64
    # the last frame's own mark is shared, that around the video is not
    assert prefix.image_ids[-2:].tolist() == [2, -1]
    text = (prefix.image_ids < 0).sum()
    assert prefix.next_position == text + 3 * 8 < len(prefix.tokens)


def test_scenes_of_the_second_family(qwen_processor):
    for grid in ((4, 4), (4, 8)):
        scene = make_scene(5, 2, grid=grid)
        example = AskQuestions(qwen_processor)(scene)
        questions = [pair.question for pair in scene.qa]
        check_prompts(qwen_processor, example, questions, [scene.image])
        assert example.prefix.image_ids[-1] == 0


def test_picture_and_video_in_any_order(qwen_processor, scene):
    clip = make_clip(5, 1)
    for asked in ("{0} <image> {1} <video> {2}", "{0} <video> {1} <image> {2}"):
        questions = [asked.format("Look:", "and", end) for end in ("What?", "Where is it?")]
        texts = [build_prompt(qwen_processor, question, 1, 1) for question in questions]
        example = make_example(qwen_processor, texts, [scene.image], [clip.shown])
        check_prompts(qwen_processor, example, questions, [scene.image], [clip.shown])
        assert example.prefix.image_ids.max() == 3


def test_the_key_names_the_video(qwen_processor):
    """Its pixels, and its times too: they stand in the prompt."""
    clip = make_clip(5, 1)
    texts = [build_prompt(qwen_processor, pair.question, 0, 1) for pair in clip.qa]
    seen = clip.shown
    pixels = seen.pictures.copy()
    pixels[-1, 50, 50] ^= 255  # one pixel of the last picture
    videos = [
        seen,
        Video(pixels, seen.seconds),
        Video(seen.pictures, tuple(2 * second for second in seen.seconds)),
        Video(seen.pictures[:4], seen.seconds[:4]),
    ]
    keys = [make_example(qwen_processor, texts, videos=[video]).key for video in videos]
    assert len(set(keys)) == 4
    assert make_example(qwen_processor, texts, videos=[make_clip(5, 1).shown]).key == keys[0]


def test_a_clip_that_cannot_be_used_is_named(qwen_processor, processor, tmp_path):
    clip = make_clip(5, 1)
    dropped = AskQuestions(qwen_processor, max_length=30)(clip)
    assert isinstance(dropped, DroppedExample)
    assert (dropped.source, dropped.message[:25]) == ("clips", "text: expected at most 30")
    broken = Example("a", "What?", (), "films", videos=(str(tmp_path / "none.mp4"),))
    dropped = AskQuestions(qwen_processor)(broken)
    assert (dropped.id, dropped.source) == ("a", "films")
    assert "found nothing there" in dropped.message
