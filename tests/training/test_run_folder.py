"""Run folders: settings that must not change, weights to start from, the export."""

import json
import shutil
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

import tiger_jax
from tiger_jax.data.scene_folder import write_tiny_folder
from tiger_jax.errors import UserError
from tiger_jax.models.config_reader import read_config
from tiger_jax.models.interface import build_model
from tiger_jax.routing.router import RouterConfig, init_router
from tiger_jax.training import run_facts, run_folder
from tiger_jax.weights.load import load_params
from tiger_jax.weights.router_io import write_router


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """(folder of a run that ended, model, its parameters)."""
    folder = tmp_path_factory.mktemp("run")
    model_folder = write_tiny_folder(folder / "model", "drafter")
    model = build_model(read_config(model_folder))
    params = jax.jit(model.init_params)(jax.random.key(1))
    run_folder.export_params(params, model_folder, folder / "export")
    return folder, model, params


def test_an_export_is_a_checkpoint_folder_in_bfloat16(exported):
    folder, model, params = exported
    stored = load_params(folder / "export", model.config)
    for got, want in zip(jax.tree.leaves(stored), jax.tree.leaves(params), strict=True):
        assert got.dtype == jnp.bfloat16
        np.testing.assert_array_equal(got, want.astype(jnp.bfloat16))
    assert (folder / "export" / "tokenizer.json").exists()


def test_an_export_replaces_the_one_before(exported):
    folder, model, params = exported
    doubled = jax.tree.map(lambda x: 2 * x, params)
    run_folder.export_params(doubled, folder / "model", folder / "twice")
    run_folder.export_params(params, folder / "model", folder / "twice")
    got = load_params(folder / "twice", model.config)["image_newline"]
    np.testing.assert_array_equal(got, params["image_newline"].astype(jnp.bfloat16))
    assert not (folder / "twice.partial").exists()


def test_an_export_that_is_cut_off_is_none(exported, tmp_path):
    """The router is written before the folder gets its name."""
    folder, _, params = exported

    def die(partial):
        assert (partial / "model.safetensors").exists()
        raise KeyboardInterrupt

    def finish(partial):
        (partial / "router").write_text("whole")

    with pytest.raises(KeyboardInterrupt):
        run_folder.export_params(params, folder / "model", tmp_path / "out", finish=die)
    assert not (tmp_path / "out").exists()
    run_folder.export_params(params, folder / "model", tmp_path / "out", finish=finish)
    assert (tmp_path / "out" / "router").read_text() == "whole"


@pytest.mark.parametrize(("stored", "wanted"), [(0, 1), (1, 0)])
def test_a_router_of_other_looks_is_refused(exported, tmp_path, stored, wanted):
    """Zero looks would else be taken for one with the rest fresh."""
    folder, model, params = exported
    width = model.config.text.hidden_size
    own, other = (init_router(jax.random.key(0), width, looks) for looks in (stored, wanted))
    config = RouterConfig(looks=stored)
    run_folder.export_params(
        params, folder / "model", tmp_path / "out", lambda path: write_router(path, config, own)
    )
    with pytest.raises(UserError, match=f"looks: expected {wanted} .*, got {stored}"):
        run_folder.initial_params(tmp_path / "out", params | {"router": other})
    got = run_folder.initial_params(tmp_path / "out", params | {"router": own})
    np.testing.assert_array_equal(got["router"]["saliency"], own["saliency"])
    tower = run_folder.initial_params(
        tmp_path / "out", params | {"router": other}, ("vision_tower/",)
    )
    assert tower["router"].keys() == other.keys()


def test_weights_to_start_from_are_chosen_by_path(exported):
    folder, _, params = exported
    zeros = jax.tree.map(jnp.zeros_like, params)
    got = run_folder.initial_params(folder, zeros, ("vision_tower/",))
    flat = traverse_util.flatten_dict(got, sep="/")
    taken = {path for path, leaf in flat.items() if (np.asarray(leaf, np.float32) != 0).any()}
    assert taken
    assert all(path.startswith("vision_tower/") for path in taken)


def test_weights_of_another_model_are_refused(exported, tmp_path):
    folder, _, _ = exported
    model = build_model(read_config(write_tiny_folder(tmp_path, "verifier")))
    params = model.abstract_params()
    with pytest.raises(UserError, match=r"expected shape \(.*\), got"):
        run_folder.initial_params(folder, params)
    with pytest.raises(UserError, match="no weight matches 'tower/'"):
        run_folder.initial_params(folder, params, ("tower/",))
    with pytest.raises(UserError, match="expected a finished run or a folder with safetensors"):
        run_folder.initial_params(tmp_path, params)


def test_a_run_goes_on_only_with_its_own_settings(tmp_path):
    settings = {"steps": 10, "freeze": ("a",), "log_every": 5}
    run_folder.open_run_folder(tmp_path, settings, resume=True)
    (tmp_path / "checkpoints").mkdir()
    run_folder.open_run_folder(tmp_path, settings | {"log_every": 1}, resume=True)
    with pytest.raises(UserError, match=r"freeze was \['a'\], is \[\]; steps was 10, is 20"):
        run_folder.open_run_folder(tmp_path, settings | {"steps": 20, "freeze": ()}, resume=True)
    run_folder.open_run_folder(tmp_path, settings | {"steps": 20}, resume=False)
    assert not (tmp_path / "checkpoints").exists()


def test_old_checkpoints_are_gone_at_once_or_not_at_all(tmp_path, monkeypatch):
    """A start anew that is killed while it deletes must not leave halves that look whole."""
    run_folder.open_run_folder(tmp_path, {"steps": 10}, resume=True)
    (tmp_path / "checkpoints" / "5" / "state").mkdir(parents=True)
    remove = shutil.rmtree

    def die(path, **how):
        if path.exists():
            remove(path / "5" / "state")
            raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", die)
    with pytest.raises(KeyboardInterrupt):
        run_folder.open_run_folder(tmp_path, {"steps": 20}, resume=False)
    assert not (tmp_path / "checkpoints").exists()
    monkeypatch.undo()
    run_folder.open_run_folder(tmp_path, {"steps": 20}, resume=True)
    assert {path.name for path in tmp_path.iterdir()} == {"run_config.json"}


def test_a_killed_start_leaves_the_settings_of_the_one_before(tmp_path, monkeypatch):
    run_folder.open_run_folder(tmp_path, {"steps": 10}, resume=True)

    def die(self, text, **how):
        with self.open("w") as file:
            file.write(text[: len(text) // 2])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", die)
    with pytest.raises(KeyboardInterrupt):
        run_facts.write_json(tmp_path / "run_config.json", {"steps": 20})
    monkeypatch.undo()
    assert json.loads((tmp_path / "run_config.json").read_text()) == {"steps": 10}


def test_each_start_leaves_its_facts(tmp_path):
    first = run_facts.record_start(tmp_path, step=0)
    second = run_facts.record_start(tmp_path, step=7)
    stored = json.loads((tmp_path / "run_facts.json").read_text())["starts"]
    assert stored == [first, second]
    assert [start["step"] for start in stored] == [0, 7]
    assert stored[0]["versions"]["jax"] == jax.__version__
    assert stored[0]["versions"]["tiger_jax"] == tiger_jax.__version__
    assert None not in stored[0]["versions"].values()
    devices = {"backend": "cpu", "kind": "cpu", "count": 8, "processes": 1}
    assert stored[0]["devices"] == devices


def test_the_git_state_is_that_of_the_code_itself(tmp_path):
    """Commit and changes of the repository that tracks it; none for a copy installed inside it."""

    def git(*words):
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", "-C", str(tmp_path), *identity, *words], check=True,
                       capture_output=True)  # fmt: skip

    code, copy = tmp_path / "code", tmp_path / "venv" / "code"
    for folder in (code, copy):
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("")
    assert run_facts.git_state(code) is None
    git("init")
    git("add", "code")
    git("commit", "-m", "one")
    state = run_facts.git_state(code)
    assert len(state["commit"]) == 40
    assert not state["dirty"]
    assert run_facts.git_state(copy) is None
    (code / "__init__.py").write_text("changed = True")
    assert run_facts.git_state(code) == {"commit": state["commit"], "dirty": True}
