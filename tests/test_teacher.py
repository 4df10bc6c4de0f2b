"""The teacher with the embedded verifier: it answers what is missing, as it would alone."""

import dataclasses

import numpy as np
import pytest

from tests.assets import TINY_LLAVA
from tiger_jax.data.draft_examples import AskQuestions
from tiger_jax.data.scenes import HELD_OUT, make_scene
from tiger_jax.data.teacher_cache import TeacherCache
from tiger_jax.pipeline import Pipeline
from tiger_jax.teacher import Teacher
from tiger_jax.training.teacher_pass import TeacherSettings

SETTINGS = TeacherSettings(max_new_tokens=6, kept_tokens=4, kept_rows=5)


@pytest.fixture(scope="module")
def pipeline():
    return Pipeline.load(TINY_LLAVA / "verifier")


@pytest.fixture(scope="module")
def examples(pipeline):
    """Three scenes of two questions each."""
    ask = AskQuestions(pipeline.processor)
    scenes = [make_scene(7, HELD_OUT + index) for index in range(3)]
    return [ask(dataclasses.replace(scene, qa=scene.qa[:2])) for scene in scenes]


@pytest.fixture(scope="module")
def teacher(pipeline):
    return Teacher(pipeline.engine, SETTINGS, decode_batch=2, pass_batch=2)


class Asked:
    """Examples that remember who was looked at."""

    def __init__(self, examples):
        self.examples, self.places = examples, []

    def __call__(self, place):
        self.places.append(place)
        return self.examples[place]


class Killed(Exception):
    """The run ends here."""


@pytest.fixture(scope="module")
def filled(teacher, examples, tmp_path_factory):
    """(cache, places asked before the run was killed, after it)."""
    root, keys = tmp_path_factory.mktemp("cache"), [example.key for example in examples]

    def die(done):
        raise Killed(done)

    first = Asked(examples)
    with pytest.raises(Killed, match="1"):
        teacher.fill(TeacherCache(root, {"of": 1}), first, keys, die, shard=1)
    again, done = Asked(examples), []
    teacher.fill(TeacherCache(root, {"of": 1}), again, keys, done.append, shard=2)
    assert done == [2]
    nothing = Asked(examples)
    teacher.fill(TeacherCache(root, {"of": 1}), nothing, keys)
    assert nothing.places == []
    return TeacherCache(root, {"of": 1}), first.places, again.places


def test_a_killed_run_goes_on(filled, examples):
    cache, before, after = filled
    assert (before, after) == ([0], [1, 2])
    assert len(cache) == 3
    assert cache.missing([example.key for example in examples]) == []


def test_responses_are_those_of_the_engine_alone(filled, teacher, pipeline, examples):
    """Drawn at temperature 1 in a batch of one: a seed belongs to its prompt, not to its place."""
    said = []
    for example in examples:
        record = filled[0][example.key]
        parts = np.split(record.tokens, np.cumsum(record.lengths)[:-1])
        for number, tokens in enumerate(parts):
            prompt = pipeline.arrays([example.prompt(number)])
            options = [teacher._options(example.key, number)]
            output = pipeline.engine.run(prompt, options).outputs[0]
            assert tokens.tolist() == output.tokens
            own = record.logprobs[len(np.concatenate(parts[:number] or [[]])) :][: len(tokens)]
            np.testing.assert_allclose(own, output.logprobs, atol=1e-4)
            said.append(tuple(output.tokens))
    assert len(set(said)) > 3


def test_records_are_whole(filled, examples):
    for example in examples:
        record, bank = filled[0][example.key], int((example.prefix.image_ids >= 0).sum())
        count = int(record.lengths.sum())
        assert len(record.lengths) == 2
        assert record.law_ids.shape == record.law_logprobs.shape == (count, 4)
        assert record.route_ids.shape == (count, 5)
        kept = record.law_ids == record.tokens[:, None]
        assert kept.any(axis=1).mean() > 0.8
        stated = np.where(kept, record.law_logprobs, 0).sum(axis=1)[kept.any(axis=1)]
        np.testing.assert_allclose(stated, record.logprobs[kept.any(axis=1)], atol=5e-3)
        ends = np.cumsum(record.lengths) - 1
        inner = np.setdiff1d(np.arange(count), ends)
        assert (record.route_ids[inner] >= 0).all()
        assert record.route_ids.max() < bank
        assert (record.route_ids[ends] == -1).all()
        mass = record.route_weights.astype(np.float32).sum(axis=1)
        assert (mass[inner] > 0).all()
        assert (mass <= 1.001).all()


def test_given_responses_are_read_not_made(teacher, pipeline, examples):
    ask = AskQuestions(pipeline.processor, reference=True)
    scene = make_scene(7, HELD_OUT)
    example = ask(dataclasses.replace(scene, qa=scene.qa[1:3]))
    record = teacher.answer([example])[0]
    np.testing.assert_array_equal(record.tokens, np.concatenate(example.responses))
    assert record.lengths.tolist() == [len(said) for said in example.responses]
    assert (record.logprobs <= 0).all()
    assert record.logprobs.min() < -0.1
