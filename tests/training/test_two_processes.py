"""Two processes in one run: a signal to one stops both at the same step, and what they saved
together is whole for a single process."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np

from tiger_jax.sharding.mesh import make_mesh
from tiger_jax.sharding.rules import ParamRule
from tiger_jax.training import loop, train_state, train_step
from tiger_jax.training.checkpoint import RunCheckpoints
from tiger_jax.training.interruption import StopRequest
from tiger_jax.training.metric_log import MetricLog
from tiger_jax.training.optimizer import OptimizerSettings, make_optimizer
from tiger_jax.training.progress import Progress

REPO = Path(__file__).parents[2]
OPTIMIZER = make_optimizer(OptimizerSettings(learning_rate=0.1, steps=100, weight_decay=0.0))
RULES = (ParamRule("w", ("embed",)),)
SIZES = {"data": 1, "fsdp": 4, "tensor": 1}


class Numbers:
    """Batch n is [n]; the process `dies_in` gets SIGTERM as it draws batch 4."""

    def __init__(self, dies_in: int = -1):
        self.drawn, self.dies_in = 0, dies_in

    def __next__(self):
        self.drawn += 1
        if self.drawn == 4 and jax.process_index() == self.dies_in:
            os.kill(os.getpid(), signal.SIGTERM)
        return np.full((1,), self.drawn, np.float32)

    def get_state(self):
        return {"drawn": self.drawn}

    def set_state(self, state):
        self.drawn = state["drawn"]


def loss(params, batch, key):
    del key
    value = (params["w"] * batch).sum()
    return train_step.LossSums(loss=value, weight=batch.sum())


def init(key):
    return {"w": jax.random.normal(key, (64,))}


def run(run_dir: Path, steps: int, dies_in: int = -1) -> np.ndarray:
    """Train on all devices; the weights at the end, of this process's first device."""
    devices = jax.devices()[:4]
    mesh = make_mesh(SIZES, devices)
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

    def place(batch):
        return jax.make_array_from_callback(batch.shape, whole, lambda index: batch[index])

    with jax.set_mesh(mesh), StopRequest() as stop:
        checkpoints, stream = RunCheckpoints(run_dir, reference="q"), Numbers(dies_in)
        if checkpoints.latest_step() is None:
            state = train_state.create_state(init, OPTIMIZER, 0, mesh, RULES)
        else:
            abstract = train_state.abstract_state(init, OPTIMIZER, mesh, RULES)
            state, position = checkpoints.restore(abstract)
            stream.set_state(position)
        first = jax.process_index() == 0
        log = MetricLog(run_dir / "log", active=first)
        observers = loop.Observers(checkpoints, log, Progress(steps, active=first))
        state = loop.run_loop(
            state, train_step.make_train_step(loss, OPTIMIZER), stream,
            loop.LoopSettings(steps=steps, checkpoint_every=3), observers, place=place, stop=stop,
        )  # fmt: skip
        print(f"process {jax.process_index()} ends at step {int(state.step)}", flush=True)
        checkpoints.close()
        log.close()
    return np.asarray(state.params["w"].addressable_shards[0].data)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_signal_to_one_process_stops_both_and_one_alone_goes_on(tmp_path):
    """SIGTERM in step 4 of the second; the vote is read a step later, so both end after step 5."""
    port = free_port()
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, str(port), str(number), str(tmp_path / "two")], cwd=REPO,
            env=os.environ | {"PYTHONPATH": str(REPO), "JAX_PLATFORMS": "cpu",
                              "JAX_NUM_CPU_DEVICES": "2"},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for number in range(2)
    ]  # fmt: skip
    told = [process.communicate(timeout=300)[0] for process in processes]
    for number, text in enumerate(told):
        assert f"process {number} ends at step 5" in text, told
    assert "step 5/" in told[0]  # the report of the first process, and of it alone
    assert "step 5/" not in told[1]
    went_on = run(tmp_path / "two", steps=8)
    straight = run(tmp_path / "one", steps=8)
    np.testing.assert_allclose(went_on, straight, rtol=1e-6)
    assert {path.name for path in (tmp_path / "two" / "checkpoints").iterdir()} == {"6", "8"}


if __name__ == "__main__":
    jax.distributed.initialize(f"127.0.0.1:{sys.argv[1]}", 2, int(sys.argv[2]))
    run(Path(sys.argv[3]), steps=50, dies_in=1)
