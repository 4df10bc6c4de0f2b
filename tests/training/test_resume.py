"""A run that is killed and started again ends exactly where one that was left alone ends.

The whole program runs: scenes through grain, a shrunken embedded model, checkpoints, export. Each
run is a process of its own, because kill -9 is part of the test.
"""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tiger_jax.data.scene_folder import write_tiny_folder

REPO = Path(__file__).parents[2]
STEPS, ACCUMULATE = 6, 2
DRIVER = textwrap.dedent(
    """
    import dataclasses, os, signal, sys
    die_at = int(sys.argv.pop(1))
    from tiger_jax import train
    class Counted:
        drawn = 0
        def __init__(self, inner): self.inner = inner
        def __iter__(self): return self
        def __next__(self):
            Counted.drawn += 1
            if Counted.drawn == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return next(self.inner)
        def get_state(self): return self.inner.get_state()
        def set_state(self, state): self.inner.set_state(state)
    make = train.MAKERS["sft"]
    def counted(*args):
        objective = make(*args)
        return dataclasses.replace(
            objective, stream=lambda held_out: Counted(iter(objective.stream(held_out)))
        )
    train.MAKERS["sft"] = counted
    from configs import sft
    config = sft.get_config()
    config.update_from_flattened_dict(eval(sys.argv.pop(1)))
    train.train(config)
    """
)


@pytest.fixture(scope="module")
def small_folder(tmp_path_factory):
    """The embedded drafter's folder with one layer of everything."""
    folder = write_tiny_folder(tmp_path_factory.mktemp("model"), "drafter")
    config = json.loads((folder / "config.json").read_text())
    config["text_config"] |= {
        "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16,
    }  # fmt: skip
    config["vision_config"] |= {
        "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def start(run_dir: Path, model: Path, *, die_at: int = 0) -> subprocess.CompletedProcess:
    settings = {
        "model": str(model), "run_dir": str(run_dir), "tower_from": "",
        "freeze": ("vision_tower/",), "steps": STEPS, "batch": 2, "accumulate": ACCUMULATE,
        "warmup": 1, "checkpoint_every": 3, "log_every": 1, "held_out_scenes": 0, "scenes": 9,
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, "-c", DRIVER, str(die_at), repr(settings)],
        cwd=REPO, env=os.environ | {"JAX_PLATFORMS": "cpu"}, capture_output=True, text=True,
        timeout=600, check=False,
    )  # fmt: skip


def weights(run_dir: Path) -> bytes:
    return (run_dir / "export" / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_kill_and_start_again_is_exact(small_folder, tmp_path):
    """Killed inside step 5, between its two micro-batches; the newest checkpoint is of step 3."""
    straight = start(tmp_path / "a", small_folder)
    assert straight.returncode == 0, straight.stderr
    killed = start(tmp_path / "b", small_folder, die_at=4 * ACCUMULATE + 2)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (tmp_path / "b" / "export").exists()
    resumed = start(tmp_path / "b", small_folder)
    assert resumed.returncode == 0, resumed.stderr
    assert "resumed" in resumed.stderr
    assert "at step 3" in resumed.stderr
    assert weights(tmp_path / "a") == weights(tmp_path / "b")
    assert losses(straight.stderr)[3:] == losses(resumed.stderr)


def losses(log: str) -> list[str]:
    """The loss of each step as its line shows it."""
    lines = [line.split() for line in log.splitlines() if line.startswith("step ")]
    return [words[words.index("loss") + 1] for words in lines]
