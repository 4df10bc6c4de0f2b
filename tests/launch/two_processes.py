"""Starts a program several times over loopback as one run, with virtual CPU devices."""

import contextlib
import dataclasses
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

REPO = Path(__file__).parents[2]
SECONDS = 240
"""After which a process counts as hung; far more than any test needs."""


@dataclasses.dataclass
class Run:
    """Processes that were started together, and the file that each writes its output to."""

    processes: list[subprocess.Popen]
    logs: list[Path]

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes:  # what a failed test left
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()

    def output(self, index: int) -> str:
        """What a process has written, without the chatter of gloo and XLA."""
        lines = self.logs[index].read_text().splitlines()
        return "\n".join(line for line in lines if not re.match(r"\[Gloo\]|[IWE]\d{4} ", line))

    def wait_for(self, index: int, text: str) -> None:
        """Return once a process has written `text`."""
        deadline = time.monotonic() + SECONDS
        while text not in self.logs[index].read_text():
            assert self.processes[index].poll() is None, self.output(index)
            assert time.monotonic() < deadline, self.output(index)
            time.sleep(0.05)

    def kill(self, index: int) -> None:
        self.processes[index].send_signal(signal.SIGKILL)

    def codes(self) -> list[int]:
        """Exit codes of all, once they have ended."""
        return [process.wait(SECONDS) for process in self.processes]


def start(
    program: str, arguments: Sequence[str], folder: Path, *, processes: int = 2, devices: int = 4,
    only: Sequence[int] | None = None, environment: Mapping[str, str] | None = None,
) -> Run:  # fmt: skip
    """Run `python -c program arguments` as `processes` processes of `devices` devices each.

    `only` starts some of them. Logs are folder/0.log, folder/1.log, of standard error alone: gloo
    writes to standard output, a word at a time and into others' lines.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shared = os.environ | {
        "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices), "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": str(REPO), "TF_CPP_MIN_LOG_LEVEL": "2", "XLA_FLAGS": "",
        "TIGER_COORDINATOR": f"127.0.0.1:{free_port()}", "TIGER_NUM_PROCESSES": str(processes),
    }  # fmt: skip
    run = Run([], [])
    for index in range(processes) if only is None else only:
        run.logs.append(folder / f"{index}.log")
        with run.logs[-1].open("w") as log, (folder / f"{index}.out").open("w") as out:
            run.processes.append(subprocess.Popen(
                [sys.executable, "-c", program, *arguments], cwd=REPO, stdout=out, stderr=log,
                env=shared | {"TIGER_PROCESS_ID": str(index)} | dict(environment or {}),
            ))  # fmt: skip
    return run


def free_port() -> int:
    """A port that is free together with the one 4096 below it."""
    for port in range(50000 + os.getpid() % 4000, 60000):
        with contextlib.suppress(OSError):
            for one in (port, port - 4096):
                socket.create_server(("", one)).close()
            return port
    raise AssertionError("no free port")
