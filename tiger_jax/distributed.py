"""Several processes as one run: started, counted, and ended together.

    initialise(expected_devices(config.mesh))    before anything touches a device
    ...                                          sharding/processes.py: what they agree on
    sys.exit(leave(code))                        the last line of an entry point

cluster.py says where the processes come from; a run without any has one, and nothing is started.
"""

import atexit
import os
import sys
from collections.abc import Mapping
from types import TracebackType

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tiger_jax import lifeline
from tiger_jax.cluster import Processes, read_processes
from tiger_jax.errors import UserError

STOPPED = 75
"""Exit code of a run that a signal stopped: the same command goes on (EX_TEMPFAIL). A scheduler
takes 0 for the end of the job."""
START_SECONDS = 300
"""How long processes wait for each other at the start; TIGER_START_SECONDS changes it."""
FROZEN_SECONDS = 100
"""After which XLA gives up a process that lives but sends no heartbeats."""
LEAVE_SECONDS = 3600
"""How long a process that is done waits for the others, such as one that still exports."""
_watch: lifeline.Lifeline | None = None


def expected_devices(mesh: Mapping[str, int]) -> int | None:
    """Devices that a config's mesh line needs; None if an axis takes all that are left (-1)."""
    sizes = [int(size) for size in mesh.values()]
    return None if -1 in sizes else int(np.prod(sizes))


def initialise(expected_devices: int | None) -> None:
    """Join the other processes if the environment names any, and count the devices of all.

    From here on a process that dies ends all the others: each prints one line and exits with
    lifeline.EXIT_LOST, within a second, or lifeline.VANISHED_SECONDS if its host vanished. A
    process that lives but is frozen is XLA's to notice, within FROZEN_SECONDS.

    Raises:
        UserError: variables that do not fit together, processes that do not meet within
            START_SECONDS, or another number of devices than `expected_devices` or TIGER_DEVICES,
            which launch/ sets: a mesh with a -1 fits many numbers.
    """
    processes = read_processes(os.environ)
    if processes is not None:
        _join(processes)
    _count_devices(expected_devices)
    if processes is not None:
        _first_collective()


def _join(processes: Processes) -> None:
    global _watch
    seconds = _number("TIGER_START_SECONDS") or START_SECONDS
    # Before jax: it would end a process that waits in vain by an abort with a C++ stack.
    _watch = lifeline.Lifeline.meet(processes, seconds)
    sys.excepthook = _end_by_exception
    atexit.register(_end_without_leave)
    # jax's would take SIGTERM away from Python until the loop asks for it (StopRequest).
    jax.config.update("jax_enable_preemption_service", False)
    host = f"[{processes.host}]" if ":" in processes.host else processes.host
    try:
        jax.distributed.initialize(
            f"{host}:{processes.port}", processes.count, processes.index,
            processes.local_devices, cluster_detection_method="deactivate",
            initialization_timeout=seconds, heartbeat_timeout_seconds=FROZEN_SECONDS,
            shutdown_timeout_seconds=LEAVE_SECONDS,
        )  # fmt: skip
    except (RuntimeError, ValueError) as error:
        raise UserError(f"jax.distributed: {_one_line(error)}") from error


def _count_devices(expected: int | None) -> None:
    try:
        got = jax.device_count()
    except RuntimeError as error:  # no driver, a GPU that another program holds, ...
        raise UserError(f"devices: {_one_line(error)}") from error
    asked = {"TIGER_DEVICES": _number("TIGER_DEVICES"), "the config's mesh": expected}
    for name, number in asked.items():
        if number is not None and got != number:
            count, kind = jax.process_count(), jax.default_backend()
            raise UserError(
                f"devices: expected {number} ({name}), got {got} {kind} devices: "
                f"{jax.local_device_count()} here, {count} process{'es' * (count > 1)}"
            )


def _first_collective() -> None:
    """A sum over all devices: a network that cannot carry it shows here, and not after an hour.

    On CPU devices, gloo also wants all processes within 30 s where they first meet; later they may
    be apart by the time that one of them compiles longer.
    """
    mesh = Mesh(np.array(jax.devices()), ("device",))
    split = NamedSharding(mesh, PartitionSpec("device"))
    ones = jax.make_array_from_callback((mesh.size,), split, lambda _: np.ones(1, np.int32))
    jax.block_until_ready(jax.jit(jnp.sum)(ones))


def _number(name: str) -> int | None:
    """A whole number in the environment, None without it. Raises UserError."""
    text = os.environ.get(name)
    if not text:
        return None
    if not text.isdecimal():
        raise UserError(f"{name}: expected a whole number, got {text!r}")
    return int(text)


def leave(code: int) -> int:
    """The exit code, as it came. Called last by an entry point that has called `initialise`.

    With several processes, a code other than 0 and STOPPED ends this process here and so all the
    others; an ordinary exit would wait for them while they wait for it in a collective. A process
    that ends without calling this counts as failed.
    """
    global _watch
    if _watch is not None:
        if code not in (0, STOPPED):
            _end(code)
        _watch.done()
        _watch = None
    return code


def _end_by_exception(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """sys.excepthook; the news that another process is gone, if it is, comes before `error`."""
    if _watch is not None:
        _watch.failed()
    sys.__excepthook__(kind, error, trace)
    _flush_and_exit(1)


def _end_without_leave() -> None:
    if _watch is not None:
        _end(1)


def _end(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    _watch.failed()
    _flush_and_exit(code)


def _flush_and_exit(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
