"""The command line: help, bad settings, and what `train` refuses before it starts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from configs import sft, tower
from tiger_jax import train
from tiger_jax.errors import UserError

REPO = Path(__file__).parents[2]


def command(*args: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "tiger_jax.train", *args], cwd=REPO, capture_output=True,
        text=True, env=os.environ | {"JAX_PLATFORMS": "cpu"}, timeout=300, check=False,
    )  # fmt: skip


def test_bad_input_is_one_line_and_code_two(tmp_path):
    done = command("--config", "configs/sft.py", "--config.steps=5",
                   f"--config.run_dir={tmp_path}", "--config.tower_from=")  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "error: warmup: expected fewer warm-up steps than the 5 steps of the run, got 100"
    ]


def test_an_unknown_field_is_an_error():
    done = command("--config", "configs/sft.py", "--config.stepz=5")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "stepz" in done.stderr


def test_help_says_how():
    done = command("--help")
    assert "python -m tiger_jax.train --config configs/sft.py" in done.stdout


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"objective": "rl"},
            "objective: expected one of sft, tower, distill, align, head, got 'rl'",
        ),
        ({"role": "critic"}, "role: expected one of verifier, drafter, got 'critic'"),
        ({"compute_dtype": "fp8"}, "compute_dtype: expected one of float32, bfloat16, got 'fp8'"),
        ({"steps": 0}, "steps: expected at least 1, got 0"),
        ({"batch": 7}, "batch: expected a multiple of data . fsdp = 8, got 7"),
    ],
)
def test_impossible_settings_are_named(change, message, tmp_path):
    config = sft.get_config()
    config.run_dir = str(tmp_path / "run")
    config.update(change)
    with pytest.raises(UserError, match=message):
        train.train(config)
    assert not (tmp_path / "run").exists()


def test_a_tower_run_has_only_fields_that_an_sft_run_has():
    assert set(tower.get_config()) < set(sft.get_config())
