"""Where the time and the memory of a run go: in jitted programs, or outside them on the host."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

from tiger_jax.decoding.engine import BatchOutput
from tiger_jax.evaluation import memory

PROGRAMS = ("prefill", "decode", "costs", "compilation")
"""Kinds of seconds inside jitted programs: of batches, from their arrays to the first token and
from there to the last; of measuring c and v, its own programs' compilation included; of batches in
which a program was compiled, all of it."""
HOST = ("loading", "reading")
"""Named kinds of seconds outside: of weights, and of waiting for the thread that reads pictures."""
TENTHS = 10


class Profile:
    """Counts from its making on."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._seconds = dict.fromkeys((*PROGRAMS, *HOST), 0.0)
        self._total = self._done = 0
        self._resident: list[int | None] = []

    def expect(self, answers: int) -> None:
        """How many there will be, for memory after each tenth of them."""
        self._total = answers

    @contextlib.contextmanager
    def during(self, kind: str) -> Iterator[None]:
        """Add the seconds of a block to a kind."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[kind] += time.perf_counter() - began

    def ran(self, output: BatchOutput) -> None:
        """Add a batch."""
        prefill, decode = output.prefill_seconds, output.decode_seconds
        if output.compiled:
            self._seconds["compilation"] += prefill + decode
        else:
            self._seconds["prefill"] += prefill
            self._seconds["decode"] += decode

    def answered(self, count: int) -> None:
        """Add answers."""
        self._done += count
        while len(self._resident) < TENTHS and (
            self._done * TENTHS >= self._total * (len(self._resident) + 1)
        ):
            self._resident.append(memory.resident_bytes())

    def summary(self) -> dict[str, Any]:
        """All of it as a report has it; the share of the host is that outside PROGRAMS."""
        whole = time.perf_counter() - self._began
        programs = sum(self._seconds[kind] for kind in PROGRAMS)
        return {
            "answers": self._done, "seconds": whole,
            **{f"{kind}_seconds": self._seconds[kind] for kind in (*PROGRAMS, *HOST)},
            "host_seconds": whole - programs, "host_share": (whole - programs) / whole,
            "resident_bytes": list(self._resident),
        }  # fmt: skip


def line(summary: Mapping[str, Any]) -> str:
    """A summary in words."""
    inside = ", ".join(f"{kind} {summary[f'{kind}_seconds']:.1f}" for kind in PROGRAMS)
    outside = ", ".join(f"{kind} {summary[f'{kind}_seconds']:.1f}" for kind in HOST)
    held = [value for value in summary["resident_bytes"] if value is not None]
    memory_line = ", ".join(f"{value / 1e9:.2f}" for value in held) or "unknown"
    return (
        f"{summary['answers']} answers in {summary['seconds']:.1f} s ({inside}); outside jitted "
        f"programs {summary['host_share']:.1%} ({outside}); resident GB after each tenth: "
        f"{memory_line}"
    )
