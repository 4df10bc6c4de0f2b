"""Training a drafter end to end: sources, the verifier's cached answers, steps, resume, export."""

import dataclasses
import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from configs import grpo, kd
from tests.training.draft_cases import make_record
from tiger_jax import drafting, embedded, train
from tiger_jax.data.draft_examples import AskQuestions
from tiger_jax.data.mixtures import SceneSource
from tiger_jax.data.processor import Processor
from tiger_jax.data.record_cache import RecordCache
from tiger_jax.data.scene_folder import write_tiny_folder
from tiger_jax.data.teacher_cache import TeacherCache
from tiger_jax.errors import UserError
from tiger_jax.weights.load import load_params
from tiger_jax.weights.router_io import read_router

SMALL = {
    "scenes": 8, "held_out_scenes": 0, "steps": 4, "warmup": 1, "batch": 8, "draft_length": 3,
    "checkpoint_every": 100, "log_every": 1, "mesh": {"data": -1, "fsdp": 1, "tensor": 1},
    "teacher_batch": 32,
}  # fmt: skip


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory):
    """Answers that the tests of this file share."""
    return str(tmp_path_factory.mktemp("teacher"))


def small(get_config, run_dir, cache_dir, **changes):
    config = get_config()
    config.update(SMALL | {"run_dir": str(run_dir), "cache_dir": cache_dir} | changes)
    config.teacher.max_new_tokens = 16
    return config


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    """A file with two usable prompts, a picture that is none, and a line that is none."""
    folder = tmp_path_factory.mktemp("own")
    shutil.copy(embedded.drafter(kind="vlm").parent / "demo.png", folder / "a.png")
    Image.fromarray(np.full((80, 200, 3), 200, np.uint8)).save(folder / "b.png")
    (folder / "broken.png").write_bytes(b"no picture")
    rows = [
        {"images": ["a.png"], "prompt": "Describe the picture.", "response": "There is a cat."},
        {"images": ["broken.png"], "prompt": "How many stars are there?", "response": "2."},
        {"images": ["b.png", "a.png"], "prompt": "Read the words in the picture."},
    ]
    lines = [json.dumps(row) for row in rows] + ["{not json"]
    (folder / "own.jsonl").write_text("\n".join(lines))
    return str(folder / "own.jsonl")


def test_distillation_learns_from_scenes_and_own_examples(cache_dir, examples, tmp_path, capsys):
    config = small(kd.get_config, tmp_path / "kd", cache_dir, examples=(examples,))
    assert train.train(config) == 4
    told = capsys.readouterr().err
    assert f"{examples}: line 4: not valid JSON" in told
    assert "verifier answered 8 of 8 examples" in told  # the scenes
    assert "verifier answered 2 of 2 examples" in told  # the file, without its broken picture
    assert "1 of 3 examples cannot be used:\n  own: line-2: " in told
    assert "training left out 1 examples:\n  own: line-2: " in told
    assert "no held-out evaluation: 0 held_out_scenes make no batch of 8" in told
    # Looked through again by the next run, as the picture may be whole by then; the scenes are not.
    assert len(list(Path(cache_dir).glob("*/filled-*"))) == 1
    export = tmp_path / "kd" / "export"
    router, weights = read_router(export)
    assert router == drafting.router_config(config)
    before = load_params(config.model, train.read_config(config.model))
    after = load_params(export, train.read_config(export))
    tower = ("vision_tower", "position_embedding", "embedding")
    moved = ("language_model", "layers_0", "mlp", "up", "kernel")
    assert np.array_equal(_at(before, tower), _at(after, tower))
    assert not np.array_equal(_at(before, moved), _at(after, moved))
    assert np.abs(np.asarray(weights["query"]["kernel"])).max() > 0


def test_a_second_run_asks_the_verifier_nothing(cache_dir, tmp_path, capsys, monkeypatch):
    first = drafting.Lessons.prepare(small(kd.get_config, tmp_path / "a", cache_dir))
    monkeypatch.setattr(drafting.Teacher, "answer", None)  # a call would raise
    again = drafting.Lessons.prepare(small(kd.get_config, tmp_path / "b", cache_dir))
    assert first.cache.folder == again.cache.folder
    other = small(kd.get_config, tmp_path / "c", cache_dir)
    other.teacher.temperature = 0.5
    with pytest.raises(TypeError):
        drafting.Lessons.prepare(other)


class Late(RecordCache):
    """A cache on a shared disk that shows what others wrote after `looks` looks."""

    def __init__(self, looks):
        self.looks, self.folder = looks, Path("shared")

    def refresh(self):
        self.looks -= 1

    def missing(self, keys):
        return list(range(len(keys))) if self.looks > 0 else []


def test_answers_of_other_processes_may_be_late_on_disk(monkeypatch):
    waited = []
    monkeypatch.setattr(drafting.time, "sleep", waited.append)
    drafting._await_answers(Late(3), ["a", "b"])
    assert waited == [1, 1]
    with pytest.raises(UserError, match=r"shared: expected all 2 answers .*, 2 are not there"):
        drafting._await_answers(Late(1000), ["a", "b"])


def test_the_filter_of_own_examples(examples, tmp_path, capsys):
    """ "Describe the picture." has three words; the other two have five and six."""
    config = small(kd.get_config, tmp_path, "unused", scenes=0, examples=(examples,))
    assert len(drafting.read_sources(config)[0]) == 3
    config.filter.enabled = True
    assert len(drafting.read_sources(config)[0]) == 2
    assert "kept 2 of 3, too_short 1" in capsys.readouterr().err
    config.filter.min_words = 6
    assert len(drafting.read_sources(config)[0]) == 1


def test_sizes_of_the_papers_pair():
    config = grpo.get_config("llava_next")
    assert (config.run_dir, config.init_from) == ("runs/llava_next/grpo", "runs/llava_next/kd")
    assert kd.get_config("llava_next").run_dir == "runs/llava_next/kd"
    assert config.filter.enabled
    assert (config.max_length, config.teacher_batch, config.remat) == (2048, 8, True)
    assert (config.learning_rate, config.batch * config.accumulate) == (1e-5, 8)
    distill = kd.get_config("llava_next")
    assert (distill.learning_rate, distill.batch * distill.accumulate) == (5e-6, 4)
    assert config.batch % (config.mesh.data * config.mesh.fsdp) == 0
    assert (grpo.get_config().run_dir, grpo.get_config().init_from) == ("runs/grpo", "runs/kd")


@pytest.mark.slow
def test_alignment_goes_on_exactly_where_it_stopped(cache_dir, tmp_path, monkeypatch, capsys):
    """Rollouts, coins and the reference drafter are those of a run that was left alone."""

    def config(name):
        return small(
            grpo.get_config, tmp_path / name, cache_dir,
            init_from=str(embedded.drafter(kind="vlm")),
            align={"objective": "grpo", "samples": 2}, prefixes=2,
        )  # fmt: skip

    train.train(config("straight"))
    make = train.MAKERS["align"]

    class Interrupted:
        def __init__(self, inner):
            self.inner, self.drawn = inner, 0

        def __iter__(self):
            return self

        def __next__(self):
            self.drawn += 1
            if self.drawn == 2:
                os.kill(os.getpid(), signal.SIGTERM)
            return next(self.inner)

        def __getattr__(self, name):
            return getattr(self.inner, name)

    def interrupted(*args):
        objective = make(*args)
        return dataclasses.replace(
            objective, stream=lambda held_out: Interrupted(iter(objective.stream(held_out)))
        )

    with monkeypatch.context() as patch:
        patch.setitem(train.MAKERS, "align", interrupted)
        assert train.train(config("stopped")) == 2
    assert train.train(config("stopped")) == 4
    for file in ("model.safetensors", "tiger_router.safetensors"):
        straight, stopped = (
            (tmp_path / name / "export" / file).read_bytes() for name in ("straight", "stopped")
        )
        assert straight == stopped, file


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"response": "own"}, "response: expected one of verifier, reference, got 'own'"),
        ({"verifier": "nowhere"}, "nowhere: expected"),
        ({"scenes": 0}, "scenes, examples: expected something to learn from"),
        ({"examples": ("nowhere.jsonl",)}, "nowhere.jsonl: expected"),
        ({"router": {"selector": "best"}}, "selector: expected one of tiger"),
        ({"align": {"objective": "ppo"}}, "objective: expected one of grpo"),
        ({"router": {"selector": "sparsevlm"}}, "selector: sparsevlm has nothing to train"),
        ({"response": "reference"}, "expected_acceptance needs the verifier's own draws"),
        ({"teacher": {"temperature": 0.5}}, "expected_acceptance needs .*, got 'verifier' and 0.5"),
        ({"teacher": {"temperature": -1.0}}, "teacher.temperature: expected at least 0, got -1.0"),
        ({"teacher": {"window": 0}}, "teacher.window: expected at least 1, got 0"),
        ({"teacher": {"kept_tokens": 0}}, "teacher.kept_tokens: expected at least 1, got 0"),
        ({"teacher": {"kept_rows": 0}}, "teacher.kept_rows: expected at least 1, got 0"),
        ({"draft_length": 0}, "draft_length: expected at least 1, got 0"),
        ({"prefixes": 0}, "prefixes: expected at least 1, got 0"),
        ({"route_weight": -0.1}, "route_weight: expected at least 0, got -0.1"),
        ({"teacher_batch": 0}, "teacher_batch: expected at least 1, got 0"),
        ({"filter": {"enabled": True, "min_words": 99}}, "prompt filter: expected min_words"),
    ],
)
def test_impossible_settings_are_named(change, message, cache_dir, tmp_path):
    config = small(grpo.get_config, tmp_path / "run", cache_dir)
    config.update(change)
    with pytest.raises(UserError, match=message):
        train.train(config)


def _at(params, path):
    for name in path:
        params = params[name]
    return np.asarray(params)


def test_a_note_of_a_filled_cache_sees_the_processor(tmp_path):
    """Another size of pictures makes other prompts: they are asked, not taken for answered."""
    processor = Processor.from_folder(write_tiny_folder(tmp_path / "qwen", pair="tiny_qwen3_vl"))
    bounds = dataclasses.replace(processor.image, min_pixels=3136, max_pixels=3136)
    cache, source, filled = TeacherCache(tmp_path / "cache", {}), SceneSource(2), []
    record = make_record(np.random.default_rng(0), (1,) * 4, 97, 1)

    def fill(make, keys, progress):
        filled.append(len(make(0).prefix.tokens))
        cache.add_shard([(key, record) for key in keys])

    for used in (processor, processor, dataclasses.replace(processor, image=bounds)):
        lessons = object.__new__(drafting.Lessons)  # of which only what asks is needed
        object.__setattr__(lessons, "ask", AskQuestions(used))
        lessons.complete(source, cache, fill, "answered")
    assert filled == [4 + 64, 4 + 16]  # 112 x 112 pixels, and 56 x 56
