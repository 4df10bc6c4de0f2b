"""Checkpoints: exact, complete or absent, and free to come back on another mesh."""

import contextlib
import os
import resource
import shutil
import threading
from collections import namedtuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tiger_jax.errors import UserError
from tiger_jax.models.llava_next import RULES as LLAVA_NEXT_RULES
from tiger_jax.sharding.mesh import make_mesh
from tiger_jax.training import train_state
from tiger_jax.training.checkpoint import RunCheckpoints, check_room, check_writable
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


def test_state_comes_back_bit_for_bit_on_any_mesh(shallow, tmp_path):
    """Saved on 8 devices, read on 1, on 2 x 2 and on 8 x 1: each array where the mesh says."""
    model = shallow
    state = fresh(model, make_mesh({"data": 1, "fsdp": 4, "tensor": 2}), seed=3)
    checkpoints = RunCheckpoints(tmp_path)
    checkpoints.save(7, state, {"next_index": 24})
    checkpoints.close()
    again = RunCheckpoints(tmp_path)
    assert again.latest_step() == 7
    meshes = [
        make_mesh({"data": 1}, jax.devices()[:1]),
        make_mesh({"data": 1, "fsdp": 2, "tensor": 2}, jax.devices()[:4]),
        make_mesh({"data": 1, "fsdp": 8}),
        make_mesh({"data": 8}),
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


def numbers(step):
    """A state of one array, large enough for a file of its own."""
    return {"w": jnp.asarray(np.random.default_rng(step).normal(size=(256, 512)), jnp.float32)}


ABSTRACT = jax.eval_shape(lambda: numbers(0))


def read(checkpoints, step=None):
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    leaf = jax.ShapeDtypeStruct((256, 512), jnp.float32, sharding=place)
    return checkpoints.restore({"w": leaf}, step)


def folders(run_dir):
    return {path.name for path in (run_dir / "checkpoints").iterdir()}


def filled(run_dir, *steps, **settings):
    """Checkpoints of these steps, written and opened again."""
    checkpoints = RunCheckpoints(run_dir, **settings)
    for step in steps:
        checkpoints.save(step, numbers(step), {"next": step})
    checkpoints.close()
    return RunCheckpoints(run_dir, **settings)


def test_a_save_goes_on_while_the_state_is_given_away(tmp_path, monkeypatch):
    """Nothing may be read from the state's buffers after `save` has returned."""
    add = jax.jit(lambda state: jax.tree.map(lambda x: x + 1, state), donate_argnums=0)
    gate, commit = threading.Event(), os.rename
    started = threading.Event()

    def slow(source, target, *args, **kwargs):
        started.set()
        assert gate.wait(60)
        return commit(source, target, *args, **kwargs)

    checkpoints = RunCheckpoints(tmp_path)
    monkeypatch.setattr(os, "rename", slow)
    state = numbers(5)
    want = np.array(state["w"])
    checkpoints.save(5, state, {"next": 5})
    for _ in range(3):
        state = add(state)
    jax.block_until_ready(state)
    assert started.wait(60)
    assert "5" not in folders(tmp_path)  # the run is three steps on, and it is not whole yet
    gate.set()
    checkpoints.wait()
    assert "5" in folders(tmp_path)
    np.testing.assert_array_equal(read(checkpoints)[0]["w"], want)
    checkpoints.close()


def test_the_newest_ones_are_kept(tmp_path):
    checkpoints = filled(tmp_path, 1, 2, 3)
    checkpoints.save(3, numbers(9), {"next": 99})  # there already: left alone
    checkpoints.close()
    assert folders(tmp_path) == {"2", "3"}
    again = RunCheckpoints(tmp_path)
    state, position = read(again)
    assert position == {"next": 3}
    assert same(state, numbers(3))
    assert same(read(again, 2)[0], numbers(2))
    again.close()


def test_the_best_one_survives_rotation_and_restarts(tmp_path):
    """Step 2 is the best; 5 was not evaluated, and 4 diverged."""
    values = {1: 2.5, 2: 3.0, 3: 2.9, 4: float("nan"), 5: None, 6: 2.0}
    for step, value in values.items():  # a start for each
        checkpoints = RunCheckpoints(tmp_path, keep=2, keep_best="A")
        scores = None if value is None else {"A": value, "loss": 7.0}
        assert checkpoints.is_best(scores) == (step in (1, 2))
        checkpoints.save(step, numbers(step), {}, scores)
        checkpoints.close()
    assert folders(tmp_path) == {"2", "5", "6"}
    checkpoints = RunCheckpoints(tmp_path, keep=2, keep_best="A")
    assert checkpoints.best() == (2, 3.0)
    assert checkpoints.latest_step() == 6
    assert same(read(checkpoints, 2)[0], numbers(2))
    checkpoints.save(7, numbers(7), {}, {"A": 3.5})
    checkpoints.close()
    assert folders(tmp_path) == {"6", "7"}


def test_a_metric_that_is_not_measured_is_named_and_the_state_kept(tmp_path):
    checkpoints = RunCheckpoints(tmp_path, keep_best="AA")
    assert not checkpoints.is_best({"A": 1.0, "loss": 2.0})
    with pytest.raises(UserError, match="keep_best: expected one of A, loss, got 'AA'"):
        checkpoints.save(1, numbers(1), {}, {"A": 1.0, "loss": 2.0})
    assert folders(tmp_path) == {"1"}
    checkpoints.close()


@contextlib.contextmanager
def small_files_only(limit):
    """A disk on which no file can grow further, for this process."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_save_that_fails_is_said_once_and_loses_nothing(tmp_path):
    """With keep=1 the one before must outlive it."""
    checkpoints = filled(tmp_path, 1, keep=1)
    with small_files_only(1 << 16):
        checkpoints.save(2, numbers(2), {})  # fails later, in the background
        told = r"checkpoints/2: could not be written \(.*File too large.*; .* whole one is 1"
        with pytest.raises(UserError, match=told) as caught:
            checkpoints.save(3, numbers(3), {})
    assert "\n" not in str(caught.value)
    checkpoints.wait()
    checkpoints.close()
    again = RunCheckpoints(tmp_path, keep=1)
    assert again.latest_step() == 1
    assert same(read(again)[0], numbers(1))
    again.save(2, numbers(2), {})
    again.close()
    assert folders(tmp_path) == {"2"}


def test_a_save_that_was_cut_off_does_not_count_and_is_cleared_away(tmp_path):
    """What a killed save leaves behind is a folder with a temporary name."""
    filled(tmp_path, 5).close()
    partial = tmp_path / "checkpoints" / "6.orbax-checkpoint-tmp"
    (partial / "state").mkdir(parents=True)
    again = RunCheckpoints(tmp_path)
    assert again.latest_step() == 5
    again.save(7, numbers(7), {})
    again.close()
    assert folders(tmp_path) == {"5", "7"}


def test_half_deleted_ones_are_no_obstacle(tmp_path):
    """A run was killed while it rotated; the newest is whole."""
    filled(tmp_path, 5, 6, keep_best="A").close()
    (tmp_path / "checkpoints" / "5" / "_CHECKPOINT_METADATA").unlink()
    shutil.rmtree(tmp_path / "checkpoints" / "5" / "state")
    again = RunCheckpoints(tmp_path, keep_best="A")
    assert read(again)[1] == {"next": 6}
    again.save(7, numbers(7), {})
    again.close()
    assert folders(tmp_path) == {"6", "7"}


@pytest.mark.parametrize("lost", ["state/d", "state/manifest.ocdbt", "_CHECKPOINT_METADATA"])
def test_a_damaged_one_is_named_with_the_way_out(lost, tmp_path):
    checkpoints = filled(tmp_path, 5, 6)
    damaged = tmp_path / "checkpoints" / "6" / lost
    shutil.rmtree(damaged) if damaged.is_dir() else damaged.unlink()
    told = r"checkpoints/6: .* is damaged \(.*\); delete it to go on from step 5"
    with pytest.raises(UserError, match=told) as caught:
        read(checkpoints)
    assert "\n" not in str(caught.value)
    checkpoints.close()
    shutil.rmtree(tmp_path / "checkpoints" / "6")
    again = RunCheckpoints(tmp_path)
    assert read(again)[1] == {"next": 5}
    again.close()


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ({"w": (256, 512), "more": (2,)}, "more: .* structures do not match|more:.*MISSING"),
        ({"w": (256, 511)}, r"Requested shape: \(256, 511\)"),
    ],
)
def test_another_model_is_refused_in_one_line(wanted, reason, tmp_path):
    checkpoints = filled(tmp_path, 5)
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    leaves = {name: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=place)
              for name, shape in wanted.items()}  # fmt: skip
    with pytest.raises(UserError, match=f"checkpoints/5: does not fit this run .*{reason}") as told:
        checkpoints.restore(leaves)
    assert "\n" not in str(told.value)
    checkpoints.close()


def test_another_reference_drafter_is_refused_and_both_are_named(tmp_path):
    filled(tmp_path, 5, reference="runs/kd aa11").close()
    other = RunCheckpoints(tmp_path, reference="runs/kd bb22")
    told = "checkpoints/5: q_ref: expected runs/kd aa11 .*, got runs/kd bb22"
    with pytest.raises(UserError, match=told):
        read(other)
    other.close()
    none = RunCheckpoints(tmp_path)
    with pytest.raises(UserError, match=r"q_ref: expected runs/kd aa11 .*, got none"):
        read(none)
    none.close()
    same_one = RunCheckpoints(tmp_path, reference="runs/kd aa11")
    assert read(same_one)[1] == {"next": 5}
    same_one.close()


def test_a_full_disk_is_said_before_the_run(tmp_path, monkeypatch):
    """A state of 512 KiB: two to keep, the best, and the one being written."""
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(4 * 2**19 - 1))
    fresh_run = RunCheckpoints(tmp_path / "a", keep=2, keep_best="A")
    told = "a: expected 0.0 GB of free disk for checkpoints, got 0.0 GB"
    with pytest.raises(UserError, match=told):
        fresh_run.check_room(ABSTRACT)
    without_best = RunCheckpoints(tmp_path / "b", keep=2)
    without_best.check_room(ABSTRACT)
    fresh_run.save(1, numbers(1), {})
    fresh_run.check_room(ABSTRACT)  # one of the four is there
    for checkpoints in (fresh_run, without_best):
        checkpoints.close()
    check_room(tmp_path / "not" / "there", 4 * 2**19 - 1)
    with pytest.raises(UserError, match=r"expected 3000\.0 GB"):
        check_room(tmp_path, 3 * 10**12)


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
