"""The benchmark end to end on a pair of tiny random models: kills, faults, interruptions."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tiger_jax import evaluate
from tiger_jax.evaluation import benchmark_cells
from tiger_jax.evaluation.journal import Journal
from tiger_jax.pipeline import Pipeline

ROOT = Path(__file__).parents[2]
CONFIG = """
from tiger_jax.evaluation.benchmark_config import benchmark_config

def get_config():
    return benchmark_config(
        "benchmark",
        ({"name": "plain"}, {"name": "full", "drafter": "model:full"},
         {"name": "routed", "drafter": "model:full", "selector": "random", "routed_tokens": 4},
         {"name": "full, alone", "drafter": "model:full", "alone": True},
         {"name": "gone", "drafter": "run:gone"}),
        ({"dataset": "examples", "mode": "score"},
         {"dataset": "scenes", "kinds": ("count",), "limit": 8, "mode": "score"},
         {"dataset": "scenes", "kinds": ("describe",), "limit": 8, "mode": "speed"},
         {"dataset": "textvqa", "mode": "score"}),
        max_new_tokens=8, batch_sizes=(2,), draft_lengths=(3,), costs="none",
    )
"""
TIMED = ("second", "speedup", "peak_bytes")
RUN = "run"
"""Of the last process, which a run that was killed does not share with others."""


@pytest.fixture(scope="module")
def line(pair, tmp_path_factory, no_compilation_cache):
    """Arguments of a run, all but its folder."""
    root = tmp_path_factory.mktemp("benchmark")
    (root / "config.py").write_text(CONFIG)
    rng = np.random.default_rng(0)
    for name in "abcde":
        Image.fromarray(rng.integers(0, 255, (40, 40, 3), np.uint8)).save(root / f"{name}.png")
    whole = (root / "b.png").read_bytes()
    (root / "b.png").write_bytes(whole[: len(whole) // 2])
    lines = [{"id": name, "prompt": "What?", "answer": name, "images": [f"{name}.png"]}
             for name in "abcde"]  # fmt: skip
    text = "\n".join(map(json.dumps, lines))
    (root / "examples.jsonl").write_text(text + '\n{"prompt": "no answer"}\n')
    verifier, drafter = pair
    return [
        f"--config={root / 'config.py'}", f"--config.root={root}", f"--config.verifier={verifier}",
        f"--config.drafter={drafter}",
    ]  # fmt: skip


def _run(line, out, *more, code=0) -> dict:
    assert evaluate.main([*line, f"--config.out={out}", *more]) == code
    return json.loads((out / "report.json").read_text())


def _untimed(value):
    """A report without what no two runs share."""
    if isinstance(value, dict):
        return {
            name: _untimed(item) for name, item in value.items()
            if name != RUN and not any(word in name for word in TIMED)
        }  # fmt: skip
    return [_untimed(item) for item in value] if isinstance(value, list) else value


def _answered(out) -> list[tuple[str, str]]:
    """(cell, uid) of every answer in a journal, in the order in which they were given."""
    lines = [json.loads(each) for each in (out / "journal.jsonl").read_text().splitlines()]
    return [(each["cell"], row["uid"]) for each in lines for row in each.get("rows", ())]


@pytest.fixture(scope="module")
def undisturbed(line, tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed")
    return out, _run(line, out)


def _find(report, variant, label, mode):
    (row,) = (
        row for row in report["rows"]
        if (row["variant"], row["label"], row["mode"]) == (variant, label, mode)
    )  # fmt: skip
    return row


def test_a_bad_record_is_counted_and_its_neighbours_are_answered(undisturbed):
    _, report = undisturbed
    row = _find(report, "plain", "examples", "score")
    assert (row["questions"], row["answered"], row["failed"]) == (5, 4, 1)
    assert row["failures"][0][0] == "examples/b"
    assert "damaged image" in row["failures"][0][1]
    assert row["faults"] == {"bad line": 1}
    assert [one["uid"] for one in row["raw"]] == [f"examples/{name}" for name in "acde"]
    assert row["metrics"]["n"] == 4


def test_a_run_says_where_its_time_and_memory_went(undisturbed):
    out, report = undisturbed
    run, rows = report["run"], report["rows"]
    assert run["answers"] == sum(row["answered"] + row["failed"] for row in rows)
    programs = [run[f"{kind}_seconds"] for kind in ("prefill", "decode", "costs", "compilation")]
    assert run["host_seconds"] == pytest.approx(run["seconds"] - sum(programs))
    assert (min(programs), programs[2]) == (0, 0)  # no costs were asked for
    assert programs[3] > 0
    assert 0 < run["loading_seconds"] + run["reading_seconds"] < run["host_seconds"]
    assert len(run["resident_bytes"]) == 10
    assert f"The last run: {run['answers']} answers in" in (out / "report.md").read_text()
    # The run's memory is not a row's: each has its own peak, no less than what was resident.
    assert all(row["peak_bytes"] > 0 for row in rows)
    assert {row["answers_a_batch"] for row in rows} == {2.0}


def test_what_is_not_there_is_left_out_by_name(undisturbed):
    out, report = undisturbed
    assert report["left_out"][0] == "gone"
    assert report["left_out"][1].startswith("textvqa (score): ")
    assert "- gone" in (out / "report.md").read_text()


def test_rows_name_what_they_are_about(undisturbed, pair):
    _, report = undisturbed
    row = _find(report, "routed", "scenes", "speed")
    assert (row["verifier"], row["drafter"]) == tuple(map(str, pair))
    assert (row["selector"], row["k"], row["g"], row["T"], row["batch"]) == ("random", 4, 3, 0.0, 2)
    assert (row["seed"], row["dtype"]) == (0, "float32")
    assert row["hardware"].startswith("cpu")
    assert set(row["versions"]) == {"tiger_jax", "jax"}
    assert (row["split"], row["answered"]) == ("held_out", 8)


def test_verification_is_exact_and_modes_do_not_mix(undisturbed):
    _, report = undisturbed
    plain = _find(report, "plain", "scenes", "score")
    for name in ("full", "routed"):
        scored, timed = (_find(report, name, "scenes", mode) for mode in ("score", "speed"))
        assert scored["identical_to_plain"] is timed["identical_to_plain"] is True
        assert scored["value"] == plain["value"]
        assert [one["answer"] for one in scored["raw"]] == [one["answer"] for one in plain["raw"]]
        assert timed["tokens"] == 8 * 8  # this pair never ends an answer
        # tau * rounds = tokens behind the first of each answer
        assert timed["tau"] * timed["rounds"] == pytest.approx(8 * 7)
        assert (sum(timed["histogram"]), timed["depth"]) == (timed["rounds"], 3)
        assert (len(timed["histogram"]), timed["p_ge_2"] is None) == (4, False)
        assert (timed["p_ge_4"], timed["measured_speedup"] > 0) == (None, True)
        assert "value" not in timed
        assert "A" not in scored
    alone = _find(report, "full, alone", "scenes", "score")
    assert (alone["alone"], alone["identical_to_plain"]) == (True, None)
    assert "A" not in _find(report, "full, alone", "scenes", "speed")
    assert "A" not in _find(report, "plain", "scenes", "speed")


def test_a_finished_run_answers_nothing_again(line, undisturbed, monkeypatch):
    out, report = undisturbed
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    monkeypatch.setattr(Pipeline, "load", None)
    assert _run(line, out) == report  # times too: they are the journal's
    assert before == {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}


def test_other_settings_are_other_cells(line, undisturbed):
    out, report = undisturbed
    other = _run(line, out, "--config.seed=1", "--config.only=('examples',)")
    names = {row["cell"] for row in report["rows"]}
    assert names.isdisjoint(row["cell"] for row in other["rows"])
    assert _untimed(_run(line, out)) == _untimed(report)


def test_kill_9_loses_one_batch(line, undisturbed, tmp_path):
    """The run goes on where it was, and reports what an undisturbed one does."""
    command = [sys.executable, "-m", "tiger_jax.evaluate", *line, f"--config.out={tmp_path}"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    env = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"}
    with subprocess.Popen(command, cwd=ROOT, env=env, **quiet) as process:
        journal, deadline = tmp_path / "journal.jsonl", time.monotonic() + 200
        while not (journal.exists() and b'"rows"' in journal.read_bytes()):
            assert process.poll() is None, process.stderr.read().decode()
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "report.json").exists()
    first = _answered(tmp_path)
    with journal.open("ab") as file:
        file.write(b'{"cell": "torn')
    report = _run(line, tmp_path)
    assert _untimed(report) == _untimed(undisturbed[1])
    done = _answered(tmp_path)
    assert 0 < len(first) < len(done)
    assert done[: len(first)] == first
    assert len(set(done)) == len(done)  # nothing twice


def test_ctrl_c_leaves_a_report_of_what_was_done(line, undisturbed, tmp_path, monkeypatch, capsys):
    answers, calls = benchmark_cells.Pass._answers, []

    def interrupted(self, cell, pipeline, group):
        calls.append(group)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return answers(self, cell, pipeline, group)

    with monkeypatch.context() as patch:
        patch.setattr(benchmark_cells.Pass, "_answers", interrupted)
        report = _run(line, tmp_path, code=130)
    out, err = capsys.readouterr()
    assert err.endswith("interrupted\n")
    assert "Interrupted: the same command goes on from here." in out
    assert report["interrupted"] is True
    assert (
        sum(row["answered"] for row in report["rows"]) == 4
    )  # of the examples: the scenes come next
    assert _untimed(_run(line, tmp_path)) == _untimed(undisturbed[1])


def test_a_run_folder_that_is_in_use(line, undisturbed, capsys):
    out, _ = undisturbed
    with Journal.open(out / "journal.jsonl"):
        assert evaluate.main([*line, f"--config.out={out}"]) == 2
    assert "expected no other run to write it" in capsys.readouterr().err


def test_nothing_to_ask_is_one_line(line, tmp_path, capsys):
    only = "--config.only=('textvqa',)"
    assert evaluate.main([*line, f"--config.out={tmp_path}", only]) == 2
    assert "error: datasets: expected at least one that can be read" in capsys.readouterr().err
    path = tmp_path / "file"
    path.write_text("")
    assert evaluate.main([*line, f"--config.out={path}"]) == 2
    assert "out: expected a folder" in capsys.readouterr().err


def test_weights_that_are_not_there_are_one_line(capsys):
    assert evaluate.main(["--config", "configs/eval/main_results.py:llava_next"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert "llava-v1.6-vicuna-13b-hf: expected" in err
    assert err.count("\n") == 1
