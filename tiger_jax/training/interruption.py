"""Turns Ctrl-C and SIGTERM into a request that the loop obeys between two steps."""

import functools
import signal
from collections.abc import Callable
from types import FrameType

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int


class StopRequest:
    """Context manager; `asked` is true once a signal has come. A second one ends the run."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, object] = {}
        self._vote: Array | None = None

    def __enter__(self) -> "StopRequest":
        self._before = {number: signal.signal(number, self._note) for number in self.SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def agreed(self) -> bool:
        """Whether to stop here. Every process calls it once a step and gets the same answer.

        One process: what was asked of it. Several: what any of them was asked before the call
        before, because that sum has arrived by now: no step waits for it.
        """
        if jax.process_count() == 1:
            return self.asked
        before, self._vote = self._vote, _largest_of_processes(int(self.asked))
        return before is not None and bool(before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


def _largest_of_processes(value: int) -> Int[Array, ""]:
    """The largest of the processes' values, on its way."""
    split, largest = _meeting()
    count = len(jax.devices())
    votes = jax.make_array_from_callback((count,), split, lambda _: np.full(1, value, np.int32))
    return largest(votes)


@functools.cache
def _meeting() -> tuple[NamedSharding, Callable]:
    mesh = Mesh(np.array(jax.devices()), ("device",))
    whole = NamedSharding(mesh, PartitionSpec())
    return NamedSharding(mesh, PartitionSpec("device")), jax.jit(jnp.max, out_shardings=whole)
