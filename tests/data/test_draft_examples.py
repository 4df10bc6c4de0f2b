"""Prefix and question are the prompt of that question alone, and the key names them."""

import dataclasses
import pickle

import numpy as np
import pytest

from tiger_jax.data.batches import make_prompt
from tiger_jax.data.draft_examples import AskQuestions, make_example
from tiger_jax.data.examples import DroppedExample
from tiger_jax.data.prompts import build_prompt
from tiger_jax.data.scenes import make_scene


@pytest.fixture(scope="module")
def scene():
    return make_scene(5, 3)


def alone(processor, question, images):
    text = build_prompt(processor, question, len(images))
    return make_prompt(processor, processor.config, text, images)


def check_prompts(processor, example, questions, images):
    assert len(example.questions) == len(questions)
    for number, question in enumerate(questions):
        want, got = alone(processor, question, images), example.prompt(number)
        for name, value in want._asdict().items():
            np.testing.assert_array_equal(getattr(got, name), value, err_msg=name)
            assert np.asarray(getattr(got, name)).dtype == np.asarray(value).dtype


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


def test_prompts_that_do_not_share_their_beginning(processor, scene):
    texts = [build_prompt(processor, "Hi?", 1), "USER: before <image>\nHi? ASSISTANT:"]
    with pytest.raises(ValueError, match="expected to begin"):
        make_example(processor, texts, [scene.image])
