"""Training a head end to end: caches, steps, resume, export, decoding with what came out."""

import contextlib
import dataclasses
import io
import os
import signal
from collections import Counter
from functools import partial
from pathlib import Path

import jax
import ml_collections
import numpy as np
import pytest

from configs import head
from tests.assets import TINY_LLAVA
from tests.shared_programs import compiled_once
from tiger_jax import drafting, embedded, head_methods, head_training, train
from tiger_jax.data.batches import make_prompt
from tiger_jax.data.prompts import build_prompt
from tiger_jax.data.scenes import HELD_OUT, make_scene
from tiger_jax.decoding.engine import Options
from tiger_jax.errors import UserError
from tiger_jax.models.config_reader import read_config
from tiger_jax.models.interface import build_model
from tiger_jax.pipeline import Pipeline
from tiger_jax.weights.head_io import WEIGHTS_FILE, read_head, write_head

VERIFIER = TINY_LLAVA / "verifier"
DRAFT_VOCAB = 40
SMALL = {
    "scenes": 8, "held_out_scenes": 0, "steps": 3, "warmup": 1, "batch": 8, "draft_length": 2,
    "checkpoint_every": 100, "log_every": 1, "teacher_batch": 32, "learning_rate": 0.03,
    "mesh": {"data": -1, "fsdp": 1, "tensor": 1},
    "head": {
        "width": 32, "num_heads": 2, "num_kv_heads": 2, "head_dim": 16, "intermediate_size": 32,
    },
    "router": {"width": 16}, "teacher": {"max_new_tokens": 12},
}  # fmt: skip
OWN_DRAWS = {"loss": {"objective": "expected_acceptance"}}


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("heads")


@pytest.fixture(scope="module", autouse=True)
def programs_compiled_once(root):
    with compiled_once(root / "xla"):
        yield


def config_of(root: Path, name: str, method: str, **changes) -> ml_collections.ConfigDict:
    config = head.get_config()
    config.method = method
    config.update(
        SMALL | {"run_dir": str(root / name), "cache_dir": str(root / "cache")}
    )  # fmt: skip
    config.update(changes)
    return config


def told(config: ml_collections.ConfigDict) -> str:
    """Train to the end; what was said."""
    with contextlib.redirect_stderr(io.StringIO()) as said:
        assert train.train(config) == config.steps
    return said.getvalue()


@contextlib.contextmanager
def silent_verifier():
    """A verifier that can be asked nothing: a call of None would raise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drafting.Teacher, "answer", None)
        patch.setattr(head_training.FeatureTeacher, "read", None)
        yield


@pytest.fixture(scope="module")
def tiger(root) -> tuple[Path, str]:
    said = told(config_of(root, "tiger", "tiger_head"))
    return root / "tiger" / "export", said


@pytest.fixture(scope="module")
def eagle3(root, tiger) -> tuple[Path, str]:
    changes = {"head": {"draft_vocab": DRAFT_VOCAB}}
    with silent_verifier():
        said = told(config_of(root, "eagle3", "eagle3", **changes))
    return root / "eagle3" / "export", said


@pytest.fixture(scope="module")
def plain() -> tuple[Pipeline, list, list]:
    """The verifier alone, two prompts, and what it says to them."""
    alone = Pipeline.load(VERIFIER)
    prompts = []
    for number in range(2):
        scene = make_scene(3, HELD_OUT + number)
        text = build_prompt(alone.processor, scene.qa[0].question, 1)
        prompts.append(make_prompt(alone.processor, alone.config, text, [scene.image]))
    return alone, prompts, said_by(alone, prompts)


def said_by(pair: Pipeline, prompts: list) -> list:
    options = [Options(max_new_tokens=12)] * len(prompts)
    return pair.engine.run(pair.arrays(prompts), options).outputs


@pytest.mark.parametrize("method", ["tiger", "eagle3"])
def test_what_is_exported_drafts_losslessly(method, plain, request):
    export = request.getfixturevalue(method)[0]
    _, prompts, want = plain
    pair = Pipeline.load(VERIFIER, export, draft_length=3)
    found = said_by(pair, prompts)
    assert [output.tokens for output in found] == [output.tokens for output in want]
    assert min(len(output.tokens) for output in found) > 2
    assert all(output.drafted > 0 for output in found)
    assert pair.kind == {"tiger": "tiger_head"}.get(method, method)
    routes = pair.router is not None and pair.router.routes
    assert routes is (method == "tiger")


def test_exports_hold_the_shape_that_was_asked_for(tiger, eagle3):
    ours, theirs = read_head(tiger[0]), read_head(eagle3[0])
    assert ours.config.features == theirs.config.features == (1, 2, 4)
    assert (ours.config.visual, theirs.config.visual) == ("routed", "full")
    assert (ours.router.routed_tokens, ours.router.width, theirs.router) == (8, 16, None)
    assert {ours.config.width, theirs.config.width} == {32}
    assert (ours.route_every, theirs.route_every) == ("step", "round")
    leaves = jax.tree.leaves((ours.params, theirs.params))
    assert all(np.isfinite(np.asarray(leaf, np.float32)).all() for leaf in leaves)


def test_the_draft_vocabulary_is_what_the_verifier_says_most(root, eagle3):
    """By counting, ties to the lower id; a bug that took any tokens would draft few of them."""
    config = config_of(root, "unused", "eagle3")
    head_methods.resolve(config)
    with silent_verifier():
        cache = drafting.Lessons.prepare(config).cache
    counts = Counter(int(t) for key in sorted(cache.keys()) for t in cache[key].tokens)
    order = sorted(range(384), key=lambda token: (-counts[token], token))
    found = read_head(eagle3[0]).draft_ids
    assert found.tolist() == sorted(order[:DRAFT_VOCAB])


def test_the_verifier_is_asked_once_for_all_methods(root, tiger, eagle3):
    """The second method ran with a verifier that could not answer."""
    assert "verifier answered 8 of 8 examples" in tiger[1]
    assert "verifier read 8 of 8 examples" in tiger[1]
    assert "verifier" not in eagle3[1]
    # A note of the answers and a note of the states.
    assert len(list((root / "cache").glob("*/filled-*"))) == 2


class Interrupted:
    """A stream that stops its run while the second batch is drawn."""

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


def test_training_goes_on_exactly_where_it_stopped(root, tiger, monkeypatch):
    make = train.MAKERS["head"]

    def interrupted(*args):
        made = make(*args)
        return dataclasses.replace(
            made, stream=lambda held_out: Interrupted(iter(made.stream(held_out)))
        )

    config = partial(config_of, root, "stopped", "tiger_head")
    with monkeypatch.context() as patch:
        patch.setitem(train.MAKERS, "head", interrupted)
        assert train.train(config()) == 2
    export = root / "stopped" / "export"
    assert not export.exists()
    assert "resumed" in told(config())
    assert (export / WEIGHTS_FILE).read_bytes() == (tiger[0] / WEIGHTS_FILE).read_bytes()


def test_expected_acceptance_starts_from_the_first_stage(root, tiger):
    """Two steps of 1e-4 and the rounding to bfloat16 away from it; fresh weights are not near."""
    config = config_of(
        root, "aligned", "tiger_head", init_from=str(root / "tiger"), steps=2, learning_rate=1e-4,
        draft_length=1, **OWN_DRAWS,
    )  # fmt: skip
    with silent_verifier():
        told(config)
    model = build_model(read_config(VERIFIER))
    key, _ = jax.random.split(jax.random.key(config.seed))
    fresh = weights(head_training.block_head(config, model).init_params(key))
    source, found = (weights(read_head(p).params) for p in (tiger[0], root / "aligned/export"))
    assert source.keys() == found.keys() == fresh.keys()
    close = partial(np.allclose, rtol=2**-7, atol=1e-3)
    assert all(close(found[name], source[name]) for name in source)
    moved = [name for name in source if not np.array_equal(found[name], source[name])]
    assert any("attention" in name for name in moved)
    assert not any(close(fresh[n], source[n]) for n in source if "mlp" in n)


def weights(params) -> dict[str, np.ndarray]:
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {jax.tree_util.keystr(path): np.asarray(leaf, np.float32) for path, leaf in leaves}


@pytest.mark.parametrize(
    ("method", "change", "message"),
    [
        ("eagle4", {}, "method: expected one of tiger_head, eagle2, .*, got 'eagle4'"),
        ("medusa", {"draft_length": 4}, "draft_length: expected at most medusa_heads = 3, got 4"),
        ("tiger_head", {"loss": {"objective": "best"}}, "objective: expected one of kl, .*'best'"),
        ("tiger_head", {"loss": {"decay": 1.5}}, "decay: expected 0 < decay <= 1, got 1.5"),
        ("tiger_head", {"draft_length": 0}, "draft_length: expected at least 1, got 0"),
        ("tiger_head", {"head": {"features": "all"}}, "features: expected fused or last, got"),
        ("tiger_head", {"head": {"taps": (1, 9)}}, "features: expected 0..4, got 9"),
        ("tiger_head", {"head": {"draft_vocab": 9}}, "draft_vocab: expected it with eagle3"),
        ("tiger_head", {"route_query": "hidden", "route_every": "step"}, "expected round with"),
        ("tiger_head", {"router": {"selector": "vispruner"}}, "selector: vispruner has nothing"),
        ("tiger_head", {"verifier": "nowhere"}, "nowhere"),
        ("eagle2", {"head": {"taps": (1, 4)}}, "taps: expected none with features last, got"),
        (
            "tiger_head",
            {"loss": {"objective": "eagle2"}, "head": {"taps": (1, 2)}},
            "objective: eagle2 needs the last state among the features, got .1, 2",
        ),
        ("tiger_head", OWN_DRAWS | {"teacher": {"temperature": 0.5}}, "'verifier' and 0.5"),
        ("tiger_head", OWN_DRAWS | {"response": "reference"}, "got 'reference' and 1"),
    ],
)
def test_impossible_settings_are_named_before_the_verifier_is_asked(
    method, change, message, tmp_path
):
    config = config_of(tmp_path, "run", method)
    config.update(change)
    with silent_verifier(), pytest.raises(UserError, match=message) as caught:
        train.train(config)
    assert "\n" not in str(caught.value)


def test_another_head_is_not_started_from(root, eagle3, tmp_path):
    """Nor one of the same shape that drafts other tokens: its lm_head has their rows."""
    config = config_of(root, "refused", "eagle3", head={"draft_vocab": DRAFT_VOCAB})
    head_methods.resolve(config)
    config.model = config.verifier
    Path(config.run_dir).mkdir()
    with silent_verifier():
        objective = head_training.head_objective(
            config, build_model(read_config(VERIFIER)), VERIFIER
        )
    fresh = objective.init_params(jax.random.key(0))
    found = read_head(eagle3[0])
    write_head(tmp_path, dataclasses.replace(found, draft_ids=(found.draft_ids + 1) % 384))
    other = embedded.drafter(kind="tiger_head")
    for folder, message in (
        ("nowhere", "init_from: expected a run or a folder with a head, got nowhere"),
        (other, "expected a head of the same shape, got another one"),
        (tmp_path, "expected the same draft vocabulary, got another one"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            objective.read_params(folder, fresh)
        assert "\n" not in str(caught.value)
    read = weights(objective.read_params(eagle3[0].parent, fresh))
    assert all(np.array_equal(value, read[name]) for name, value in weights(found.params).items())


@pytest.mark.parametrize(
    ("method", "layout", "features", "visual", "objective", "decay", "length"),
    [
        ("tiger_head", "tiger", "fused", "routed", "kl", 1.0, 8),
        ("eagle2", "eagle2", "last", "full", "eagle2", 1.0, 1),
        ("eagle3", "eagle3", "fused", "full", "eagle3", 0.8, 7),
        ("vispec", "eagle2", "last", "resampler", "vispec", 1.0, 2),
        ("medusa", "medusa", "last", "none", "medusa", 0.8, 3),
    ],
)
def test_what_a_method_stands_for(method, layout, features, visual, objective, decay, length):
    config = head.get_config()
    config.method = method
    head_methods.resolve(config)
    shape, loss = config.head, config.loss
    assert (shape.layout, shape.features, shape.visual) == (layout, features, visual)
    assert (loss.objective, loss.decay, config.draft_length) == (objective, decay, length)
    assert config.route_every == ("step" if method == "tiger_head" else "round")
    assert config.run_dir == f"runs/heads/{method}"


def test_what_the_command_line_sets_stays():
    config = head.get_config()
    config.update({
        "method": "eagle3", "route_every": "step", "draft_length": 4, "run_dir": "here",
        "head": {"visual": "none"}, "loss": {"decay": 0.5},
    })  # fmt: skip
    head_methods.resolve(config)
    assert (config.head.visual, config.head.layout) == ("none", "eagle3")
    assert (config.loss.decay, config.loss.objective) == (0.5, "eagle3")
    assert (config.draft_length, config.run_dir, config.route_every) == (4, "here", "step")


@pytest.mark.parametrize(("layers", "taps"), [(4, (1, 2, 4)), (32, (2, 16, 29)), (40, (2, 20, 37))])
def test_states_that_are_fused(layers, taps):
    """EAGLE-3's for LLaVA-1.6 7B and 13B: before the layers 2, n / 2 and n - 3."""
    assert head_methods.fused_taps(layers) == taps


def test_a_dry_run_of_another_verifier_is_refused(capsys):
    assert train.main(["--config", "configs/head.py:llava_next", "--config.dry_run=70b"]) == 2
    assert "dry_run: expected one of 13b, 7b, got '70b'" in capsys.readouterr().err
