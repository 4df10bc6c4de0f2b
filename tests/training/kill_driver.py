"""Training runs that die at a chosen moment, for test_resume.py, or at any, for kill_runs.py.

It imports once and forks for every run, before any device is touched: a start then costs a few
seconds less. As a program it reads jobs from stdin, a JSON list of the arguments of `start`, runs
one after the other, and writes a JSON list of (exit status, log) to stdout.
"""

import dataclasses
import importlib
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from tiger_jax import runtime, train


class Counted:
    """A stream that notes each draw in a file, and dies at one of them."""

    def __init__(self, inner, note: Path, die_at: int, saved: Path | None):
        self.inner, self.note, self.die_at, self.drawn = inner, note, die_at, 0
        self.saved = saved

    def __iter__(self):
        return self

    def __next__(self):
        self.drawn += 1
        with self.note.open("a") as file:
            file.write(".")
        if self.drawn == self.die_at:
            while self.saved and not self.saved.exists():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        return next(self.inner)

    def get_state(self):
        return self.inner.get_state()

    def set_state(self, state):
        self.inner.set_state(state)


def start(
    config_file: str, settings: dict, log: str, *, draw: int = 0, commit: int = 0,
    committed: int = 0, saved: int = 0,
) -> int:  # fmt: skip
    """Fork a run of configs/`config_file`; returns its process id.

    Args:
        settings: dotted fields of the config -> values.
        log: file for what it prints; the draws are noted in log + ".draws".
        draw: die as this batch is drawn; 0 = never.
        commit: die as the checkpoint of this step would get its name.
        committed: die as soon as it has it.
        saved: die at `draw` only when this step is on disk; a save takes its time.
    """
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        _die_in_a_save(commit, committed)
        place = Path(settings["run_dir"], "checkpoints", str(saved)) if saved else None
        _run(config_file, settings, Path(log + ".draws"), draw, place)
        status = 0
    finally:
        sys.stderr.flush()
        os._exit(status)


def _run(config_file: str, settings: dict, note: Path, draw: int, saved: Path | None) -> None:
    config = importlib.import_module(f"configs.{config_file}").get_config()
    config.update_from_flattened_dict(settings)
    make = train.MAKERS[config.objective]

    def counted(*args):
        objective = make(*args)

        def stream(held_out: bool) -> Counted:
            return Counted(iter(objective.stream(held_out)), note, draw, saved)

        return dataclasses.replace(objective, stream=stream)

    train.MAKERS[config.objective] = counted
    runtime.configure()
    train.train(config)


def _die_in_a_save(commit: int, committed: int) -> None:
    """A checkpoint gets its name by os.rename, after everything is in it."""
    rename = os.rename

    def watched(source, target, *args, **kwargs):
        parent, name = os.path.split(str(target))
        ours = parent.endswith("checkpoints")
        if ours and name == str(commit):
            os.kill(os.getpid(), signal.SIGKILL)
        rename(source, target, *args, **kwargs)
        if ours and name == str(committed):
            os.kill(os.getpid(), signal.SIGKILL)

    os.rename = watched


def main() -> None:
    """Run the jobs of stdin in turn."""
    results = []
    for job in json.load(sys.stdin):
        with tempfile.NamedTemporaryFile(suffix=".log") as log:
            _, status = os.waitpid(start(log=log.name, **job), 0)
            results.append((os.waitstatus_to_exitcode(status), Path(log.name).read_text()))
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
