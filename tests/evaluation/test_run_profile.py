"""Where a run's time and memory go: what is counted as what."""

import contextlib
import time

import numpy as np
import pytest

from tiger_jax.decoding.engine import BatchOutput
from tiger_jax.evaluation import memory, run_profile
from tiger_jax.evaluation.run_profile import Profile

MB = 1_000_000


def _output(prefill, decode, compiled=False):
    return BatchOutput([], prefill, decode, compiled)


def test_seconds_of_programs_and_of_the_host():
    profile = Profile()
    time.sleep(0.05)
    profile.ran(_output(0.001, 0.004))
    profile.ran(_output(0.002, 0.005, compiled=True))
    with profile.during("costs"):
        time.sleep(0.02)
    with contextlib.suppress(KeyboardInterrupt), profile.during("reading"):
        time.sleep(0.01)
        raise KeyboardInterrupt
    found = profile.summary()
    assert (found["prefill_seconds"], found["decode_seconds"]) == (0.001, 0.004)
    assert found["compilation_seconds"] == pytest.approx(0.007)  # apart: it is no measurement
    assert found["costs_seconds"] >= 0.02
    assert found["reading_seconds"] >= 0.01
    assert found["loading_seconds"] == 0
    inside = 0.012 + found["costs_seconds"]
    assert found["host_seconds"] == pytest.approx(found["seconds"] - inside)
    assert found["host_share"] == pytest.approx(found["host_seconds"] / found["seconds"])
    assert found["host_seconds"] >= 0.03  # waiting for pictures is outside too


@pytest.mark.parametrize("steps", [[1] * 20, [8, 0, 7, 5], [20]])
def test_memory_is_looked_at_after_each_tenth(monkeypatch, steps):
    profile = Profile()
    monkeypatch.setattr(memory, "resident_bytes", lambda: profile._done * MB)
    profile.expect(20)
    for count in steps:
        profile.answered(count)
    found = profile.summary()["resident_bytes"]
    reached = np.cumsum(steps)
    expected = [int(reached[reached >= 2 * tenth][0]) * MB for tenth in range(1, 11)]
    assert found == expected


def test_an_interrupted_run_has_fewer_tenths():
    profile = Profile()
    profile.expect(10)
    profile.answered(3)
    found = profile.summary()
    assert (found["answers"], len(found["resident_bytes"])) == (3, 3)
    assert "3 answers in" in run_profile.line(found)


def test_a_peak_is_forgotten_and_another_one_is_seen():
    if not memory.reset_peak():
        pytest.skip("this system keeps the peak")
    before = memory.peak_bytes()
    held = np.ones(200 * MB, np.uint8)
    with_it = memory.peak_bytes()
    assert with_it > before + 150 * MB
    del held  # so large an array goes back to the system at once
    assert memory.peak_bytes() > before + 150 * MB
    assert memory.reset_peak()
    assert memory.peak_bytes() < with_it - 150 * MB
    assert abs(memory.resident_bytes() - memory.peak_bytes()) < 50 * MB


def test_without_proc_the_peak_is_that_of_the_whole_process(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "_CLEAR", tmp_path / "no" / "clear_refs")
    monkeypatch.setattr(memory, "_STATUS", tmp_path / "no" / "status")
    assert memory.reset_peak() is False
    assert memory.peak_bytes() > 50 * MB
    assert memory.resident_bytes() is None
    profile = Profile()
    profile.expect(1)
    profile.answered(1)
    assert run_profile.line(profile.summary()).endswith("tenth: unknown")
