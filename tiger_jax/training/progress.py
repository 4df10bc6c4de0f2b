"""The line that says how a run is doing: redrawn in place on a terminal, appended in a log."""

import dataclasses
import sys
import time
from collections.abc import Mapping
from typing import TextIO


@dataclasses.dataclass(frozen=True)
class StepCost:
    """What a step takes of one device, and what this device can do at most; 0 = not known."""

    flops: float = 0.0
    """Of a step, by the programs' own count, on one device: a cost analysis before partitioning
    has to be divided by the number of devices."""
    bytes_moved: float = 0.0
    """To and from the device's memory, on one device."""
    peak_flops: float = 0.0
    """A second."""
    peak_bandwidth: float = 0.0
    """Bytes a second."""

    def shares(self, seconds: float) -> dict[str, float]:
        """MFU and bandwidth use of a step that took `seconds`, 1 = the peak; only what is known."""
        pairs = {
            "mfu": (self.flops, self.peak_flops),
            "bandwidth_use": (self.bytes_moved, self.peak_bandwidth),
        }
        return {
            name: amount / seconds / peak for name, (amount, peak) in pairs.items() if amount * peak
        }


class Progress:
    """Formats one line per report; measures units per second since the report before."""

    def __init__(
        self, total: int, *, unit: str = "tokens", stream: TextIO | None = None,
        active: bool = True, cost: StepCost | None = None,
    ):  # fmt: skip
        """Reports on `total` steps; with a `cost` also on MFU and bandwidth use."""
        self._total = total
        self._unit = unit
        self._stream = sys.stderr if stream is None else stream
        self._active = active
        self.cost = cost or StepCost()
        self._redraw = self._stream.isatty()
        self._last_time = time.perf_counter()
        self._last_step: int | None = None

    def begin(self, step: int) -> None:
        """Start the clock at a step, the first one or that of a checkpoint."""
        self._last_step, self._last_time = step, time.perf_counter()

    def report(self, step: int, values: Mapping[str, float], units: float) -> dict[str, float]:
        """Show `values` after `step`; `units` were worked on since the last report.

        Returns the rates, for the metric log.
        """
        now = time.perf_counter()
        seconds = max(now - self._last_time, 1e-9)
        steps = max(step - (self._last_step or 0), 1)
        rates = {"seconds_per_step": seconds / steps, f"{self._unit}_per_second": units / seconds}
        self._last_time, self._last_step = now, step
        remaining = (self._total - step) * rates["seconds_per_step"]
        parts = [f"step {step}/{self._total}"]
        parts += [f"{name} {value:.4g}" for name, value in values.items()]
        parts += [
            f"{rates['seconds_per_step']:.3f} s/step",
            f"{units / seconds:.0f} {self._unit}/s",
            f"ETA {format_seconds(remaining)}",
        ]
        shares = self.cost.shares(rates["seconds_per_step"])
        titles = {"mfu": "MFU", "bandwidth_use": "bandwidth"}
        parts += [f"{titles[name]} {share:.1%}" for name, share in shares.items()]
        self.line("  ".join(parts), final=step >= self._total)
        return rates | shares

    def line(self, text: str, *, final: bool = True) -> None:
        """Print a line; on a terminal one that is not final is overwritten by the next."""
        if not self._active:
            return
        if self._redraw:
            self._stream.write("\r\x1b[2K" + text + ("\n" if final else ""))
        else:
            self._stream.write(text + "\n")
        self._stream.flush()


def format_seconds(seconds: float) -> str:
    """h:mm:ss or m:ss."""
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    head = f"{hours}:{minutes:02d}" if hours else f"{minutes}"
    return f"{head}:{whole % 60:02d}"
