"""Two processes with four virtual devices each, over loopback, are one run of eight."""

import textwrap

import pytest
from two_processes import start

SUMS = textwrap.dedent(
    """
    import sys, time
    import jax, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    from tiger_jax import distributed
    from tiger_jax.errors import UserError
    from tiger_jax.sharding import processes

    def main(expected, wrong):
        try:
            distributed.initialise(expected)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        split = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec("x"))
        data = jax.make_array_from_callback((8,), split, lambda i: np.arange(8.0)[i])
        add = jax.jit(jax.numpy.sum)
        print(f"sum {float(add(data))} main {processes.is_main()}", file=sys.stderr)
        processes.barrier("summed")
        print("up", file=sys.stderr)
        if wrong == jax.process_index():
            return 1
        for _ in range(0 if wrong == -1 else 10_000):
            float(add(data))
            time.sleep(0.05)
        return 0

    sys.exit(distributed.leave(main(*map(int, sys.argv[1:]))))
    """
)
"""Arguments: expected devices; the process that gives up, -1 = all end well, 9 = none ends."""
ONE_KILLED = ("8", "9")


def gone(index: int, other: int) -> str:
    return f"error: process {other} of 2 is gone (its own log says why), so process {index} ends"


def test_sums_span_both_and_both_leave(tmp_path):
    with start(SUMS, ("8", "-1"), tmp_path) as run:
        assert run.codes() == [0, 0]
        assert run.output(0) == "sum 28.0 main True\nup"
        assert run.output(1) == "sum 28.0 main False\nup"


@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_process_ends_the_other(killed, tmp_path):
    """At once: XLA's heartbeats, which would end it by an abort, take 100 s."""
    other = 1 - killed
    with start(SUMS, ONE_KILLED, tmp_path) as run:
        for index in (0, 1):
            run.wait_for(index, "up")
        run.kill(killed)
        codes = run.codes()
        told = run.output(other)
        if killed == 1 or codes[other] == 3:
            assert codes[other] == 3, told
            assert gone(other, killed) in told
            assert "Traceback" not in told
        else:  # XLA aborts when its coordinator is gone, and may be quicker
            assert "another task died" in told


@pytest.mark.parametrize("failing", [0, 1])
def test_a_process_that_fails_ends_the_other(failing, tmp_path):
    """It keeps its own exit code, and ends without waiting for the other."""
    with start(SUMS, ("8", str(failing)), tmp_path) as run:
        codes = run.codes()
        assert codes[failing] == 1
        assert codes[1 - failing] == 3
        assert run.output(failing).endswith("up")
        assert gone(1 - failing, failing) in run.output(1 - failing)


def test_another_number_of_devices_is_said_by_both(tmp_path):
    with start(SUMS, ("16", "-1"), tmp_path) as run:
        assert run.codes() == [2, 2]
        for index in (0, 1):
            assert run.output(index) == (
                "error: devices: expected 16 (the config's mesh), got 8 cpu devices: 4 here, "
                "2 processes"
            )


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (0, "error: processes: expected 2 of them within 1 s, process 1 did not come"),
        (1, "error: process 1: expected process 0 at 127.0.0.1:"),
    ],
)
def test_a_process_that_does_not_come_is_named(index, message, tmp_path):
    environment = {"TIGER_START_SECONDS": "1"}
    with start(SUMS, ("8", "-1"), tmp_path, only=(index,), environment=environment) as run:
        assert run.codes() == [2]
        assert run.output(0).startswith(message)
        assert "\n" not in run.output(0)


def test_launch_counts_devices_too(tmp_path):
    """A mesh with a -1 fits any number; TIGER_DEVICES is what launch/ was told to start on."""
    environment = {"TIGER_DEVICES": "8", "TIGER_NUM_PROCESSES": "1"}
    with start(SUMS, ("4", "-1"), tmp_path, only=(0,), environment=environment) as run:
        assert run.codes() == [2]
        assert run.output(0) == (
            "error: devices: expected 8 (TIGER_DEVICES), got 4 cpu devices: 4 here, 1 process"
        )
