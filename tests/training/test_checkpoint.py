"""Checkpoints: exact, complete or absent, and free to come back on another mesh."""

import jax
import numpy as np
import pytest

from tiger_jax.errors import UserError
from tiger_jax.models.interface import build_model
from tiger_jax.sharding.mesh import make_mesh
from tiger_jax.sharding.rules import LLAVA_NEXT_RULES
from tiger_jax.testing.tiny import tiny_config
from tiger_jax.training import train_state
from tiger_jax.training.checkpoint import RunCheckpoints, check_writable
from tiger_jax.training.optimizer import OptimizerSettings, make_optimizer

OPTIMIZER = make_optimizer(
    OptimizerSettings(learning_rate=0.1, steps=10, freeze=("vision_tower/",))
)


def fresh(model, mesh, seed=0):
    return train_state.create_state(model.init_params, OPTIMIZER, seed, mesh, LLAVA_NEXT_RULES)


def target(model, mesh):
    return train_state.abstract_state(model.init_params, OPTIMIZER, mesh, LLAVA_NEXT_RULES)


def same(first, second):
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return all(np.array_equal(jax.device_get(a), jax.device_get(b)) for a, b in pairs)


def test_state_comes_back_bit_for_bit_on_any_mesh(tiny, tmp_path):
    """Saved on 4 x 2 devices, read on 1, on 2 x 2 x 2 and on 8: each array where the mesh says."""
    model, _ = tiny
    state = fresh(model, make_mesh({"data": 1, "fsdp": 4, "tensor": 2}), seed=3)
    checkpoints = RunCheckpoints(tmp_path)
    checkpoints.save(7, state, {"next_index": 24})
    checkpoints.close()
    again = RunCheckpoints(tmp_path)
    assert again.latest_step() == 7
    meshes = [
        make_mesh({"data": 1}, jax.devices()[:1]),
        make_mesh({"data": 2, "fsdp": 2, "tensor": 2}),
        make_mesh({"data": 1, "fsdp": 8}),
    ]
    for mesh in meshes:
        wanted = target(model, mesh)
        restored, position = again.restore(wanted)
        assert position == {"next_index": 24}
        assert same(restored, state)
        for got, want in zip(jax.tree.leaves(restored), jax.tree.leaves(wanted), strict=True):
            assert got.sharding == want.sharding
            assert got.dtype == want.dtype
    again.close()


def test_the_newest_ones_are_kept(tiny, one_device, tmp_path):
    model, _ = tiny
    state = fresh(model, one_device)
    checkpoints = RunCheckpoints(tmp_path, keep=2)
    for step in (1, 2, 3):
        checkpoints.save(step, state, {"next": step})
    checkpoints.save(3, state, {"next": 99})  # there already: left alone
    checkpoints.close()
    folders = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert folders == {"2", "3"}
    again = RunCheckpoints(tmp_path)
    assert again.restore(target(model, one_device))[1] == {"next": 3}
    again.close()


def test_a_save_that_was_cut_off_does_not_count(tiny, one_device, tmp_path):
    """What a killed save leaves behind is a folder with a temporary name."""
    model, _ = tiny
    checkpoints = RunCheckpoints(tmp_path)
    checkpoints.save(5, fresh(model, one_device), {})
    checkpoints.close()
    partial = tmp_path / "checkpoints" / "6.orbax-checkpoint-tmp"
    (partial / "state").mkdir(parents=True)
    again = RunCheckpoints(tmp_path)
    assert again.latest_step() == 5
    again.close()


def test_another_model_is_refused_in_one_line(tiny, one_device, tmp_path):
    model, _ = tiny
    checkpoints = RunCheckpoints(tmp_path)
    checkpoints.save(5, fresh(model, one_device), {})
    other = build_model(tiny_config(layers=1))
    with pytest.raises(UserError, match="checkpoints/5: does not fit this run") as caught:
        checkpoints.restore(target(other, one_device))
    assert "\n" not in str(caught.value)
    checkpoints.close()


def test_an_empty_folder_has_nothing_to_restore(tmp_path):
    checkpoints = RunCheckpoints(tmp_path)
    assert checkpoints.latest_step() is None
    with pytest.raises(UserError, match="expected a checkpoint, found none"):
        checkpoints.restore({})
    checkpoints.close()


def test_a_folder_that_cannot_be_written_is_named_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file/run: expected a writable run folder"):
        check_writable(tmp_path / "file" / "run")
