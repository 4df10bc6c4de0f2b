"""A run that is killed and started again ends exactly where one that was left alone ends.

The whole program runs: scenes through grain, a shrunken embedded model, checkpoints, export. Each
run is a process of its own, because kill -9 is part of the test. kill_runs.py does the same at
random moments, for distillation and alignment.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.small_folder import write_small_folder
from tiger_jax.sharding.rules import ParamRule
from tiger_jax.training import loop, train_state, train_step
from tiger_jax.training.checkpoint import RunCheckpoints
from tiger_jax.training.interruption import StopRequest
from tiger_jax.training.metric_log import MetricLog, read_curve
from tiger_jax.training.optimizer import OptimizerSettings, make_optimizer
from tiger_jax.training.progress import Progress

REPO = Path(__file__).parents[2]
STEPS, ACCUMULATE = 6, 2


@pytest.fixture(scope="module")
def small_folder(tmp_path_factory):
    """The embedded drafter's folder with one layer of everything."""
    return write_small_folder(tmp_path_factory.mktemp("model"), "drafter")


def run_all(jobs: list[dict], caches: Path) -> list[tuple[int, str]]:
    """(exit status, output) of each job, run one after the other in processes of their own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.training.kill_driver"], input=json.dumps(jobs), cwd=REPO,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": str(caches)},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def weights(run_dir: Path) -> bytes:
    return (run_dir / "export" / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_kill_and_start_again_is_exact(small_folder, tmp_path):
    """Killed inside step 5, between its two micro-batches, with checkpoint 3 the newest; then as
    checkpoint 6 is written but has no name yet; then as it has got it."""

    def job(name, **death):
        settings = {
            "model": str(small_folder), "run_dir": str(tmp_path / name), "tower_from": "",
            "freeze": ("vision_tower/",), "steps": STEPS, "batch": 2, "accumulate": ACCUMULATE,
            "warmup": 1, "checkpoint_every": 3, "log_every": 1, "held_out_scenes": 0, "scenes": 9,
        }  # fmt: skip
        return {"config_file": "sft", "settings": settings, **death}

    jobs = [
        job("a"), job("b", draw=4 * ACCUMULATE + 2, saved=3), job("b", commit=6),
        job("b", committed=6), job("b"),
    ]  # fmt: skip
    straight, inside, unnamed, named, last = run_all(jobs, tmp_path / "xla")
    assert [straight[0], last[0]] == [0, 0], straight[1] + last[1]
    assert [run[0] for run in (inside, unnamed, named)] == [-signal.SIGKILL] * 3
    assert "resumed" not in inside[1]
    assert "at step 3" in unnamed[1]
    assert "at step 3" in named[1]  # what was not named did not count
    assert "at step 6" in last[1]
    assert weights(tmp_path / "a") == weights(tmp_path / "b")
    assert losses(straight[1])[:4] == losses(inside[1])
    assert losses(straight[1])[3:] == losses(named[1])
    curves = [read_curve(tmp_path / name / "tensorboard", "train/loss") for name in "ab"]
    assert curves[0] == curves[1]
    assert {path.name for path in (tmp_path / "b" / "checkpoints").iterdir()} == {"3", "6"}


class Crash(BaseException):
    """Stands for the end of a process: the loop handles no such thing."""


class Unsafe:
    """A stream of numbers, and checkpoints, of which one call does not come back."""

    def __init__(self, checkpoints, calls: int, after: bool):
        self.checkpoints, self.calls, self.after, self.drawn = checkpoints, calls, after, 0

    def tick(self):
        self.calls -= 1
        if self.calls == 0:
            raise Crash

    def __next__(self):
        self.tick()
        self.drawn += 1
        return jnp.full((2,), np.sin(self.drawn), jnp.float32)

    def get_state(self):
        return {"drawn": self.drawn}

    def set_state(self, state):
        self.drawn = state["drawn"]

    def save(self, *args):
        if not self.after:
            self.tick()
        self.checkpoints.save(*args)
        if self.after:
            self.tick()

    def is_best(self, scores):
        return self.checkpoints.is_best(scores)

    def wait(self):
        self.checkpoints.wait()


def noisy_loss(params, batch, key):
    """Every draw of the key shows in the weights."""
    noise = jax.random.normal(key, params["w"].shape)
    value = (params["w"] * noise * batch).sum() + (params["w"] ** 2).sum()
    return train_step.LossSums(loss=value, weight=1.0 + batch.sum() ** 2)


def test_twenty_crashes_anywhere_leave_no_trace(one_device, tmp_path):
    """Of 9 steps of 3 micro-batches, a checkpoint every second one: in a draw, before a save, and
    while it is written. A crash is an exception here; what was being written is finished."""
    rng = np.random.default_rng(0)
    optimizer = make_optimizer(OptimizerSettings(learning_rate=0.1, steps=9, warmup=2))
    update = train_step.make_train_step(noisy_loss, optimizer)
    shape = (lambda key: {"w": jnp.ones((2,))}, optimizer)
    rules = (ParamRule("w", (None,)),)
    settings = loop.LoopSettings(steps=9, accumulate=3, checkpoint_every=2)

    def attempt(run_dir: Path, calls: int) -> np.ndarray | None:
        checkpoints = RunCheckpoints(run_dir)
        unsafe = Unsafe(checkpoints, calls, after=bool(rng.integers(2)))
        state = train_state.create_state(*shape, 0, one_device, rules)
        if checkpoints.latest_step() is not None:
            wanted = train_state.abstract_state(*shape, one_device, rules)
            state, position = checkpoints.restore(wanted)
            unsafe.set_state(position)
        observers = loop.Observers.__new__(loop.Observers)
        observers.__dict__.update(
            checkpoints=unsafe, metric_log=MetricLog(run_dir, active=False),
            progress=Progress(9, active=False),
        )  # fmt: skip
        try:
            state = loop.run_loop(state, update, unsafe, settings, observers,
                                  place=lambda batch: batch, stop=StopRequest())  # fmt: skip
        except Crash:
            return None
        finally:
            checkpoints.close()
        return np.asarray(state.params["w"])

    want, crashes, run = attempt(tmp_path / "straight", 0), 0, 0
    assert want is not None
    while crashes < 20:
        got, run = None, run + 1
        while got is None:
            got = attempt(tmp_path / str(run), int(rng.integers(1, 20)))
            crashes += got is None
        np.testing.assert_array_equal(got, want)
    assert run > 1


def losses(log: str) -> list[str]:
    """The loss of each step as its line shows it."""
    lines = [line.split() for line in log.splitlines() if line.startswith("step ")]
    return [words[words.index("loss") + 1] for words in lines]
