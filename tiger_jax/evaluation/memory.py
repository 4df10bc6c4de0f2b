"""Memory of this process: what it holds now, and the most that it held since it was last asked."""

import resource
from pathlib import Path

import jax

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_FORGET_PEAK = "5"
"""Linux sets the peak to what is resident now (proc_pid_clear_refs(5))."""


def reset_peak() -> bool:
    """Let `peak_bytes` begin anew; False where the system does not let it, and on accelerators."""
    if _device_peak() is not None:
        return False
    try:
        _CLEAR.write_text(_FORGET_PEAK)
    except OSError:
        return False
    return True


def peak_bytes() -> int:
    """The most memory since `reset_peak`, or of the whole process where that does nothing: of the
    device; on CPUs resident."""
    device = _device_peak()
    if device is not None:
        return device
    return _status("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def resident_bytes() -> int | None:
    """What this process holds on the host now; None where the system does not tell."""
    return _status("VmRSS")


def _device_peak() -> int | None:
    stats = jax.devices()[0].memory_stats()
    return int(stats["peak_bytes_in_use"]) if stats and "peak_bytes_in_use" in stats else None


def _status(name: str) -> int | None:
    """A field of /proc/self/status, in bytes."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    values = (line.split() for line in lines if line.startswith(f"{name}:"))
    return next((int(value) * 1024 for _, value, _ in values), None)
