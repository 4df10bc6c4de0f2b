"""Jitted programs of decoding, compiled for one thread where more of them only wait.

XLA's CPU backend hands each product to a pool of threads. In a round of a few tokens of a small
model a product takes 30 microseconds, about as long as the hand-over, and between two of them the
pool falls asleep: six tokens then cost 3.5 to 4.5 single steps instead of 3.0 to 3.4
(docs/results.md).
"""

import functools
from collections.abc import Callable
from typing import Any

import jax

ONE_THREAD = {"xla_cpu_multi_thread_eigen": False}
SMALL_PASS = 2**26
"""Multiplications of a pass (tokens x weights) up to which one thread is at least as fast."""
_programs: list[Any] = []


@functools.cache
def program(
    function: Callable, one_thread: bool, static: tuple[str, ...], donate: tuple[str, ...] = ()
) -> Any:
    """`function` jitted, once a process for each of these arguments."""
    made = jax.jit(
        function, static_argnames=static, donate_argnames=donate,
        compiler_options=ONE_THREAD if one_thread else None,
    )  # fmt: skip
    _programs.append(made)
    return made


def compiles() -> int:
    """Compilations of all programs so far in this process (one a bucket and setting)."""
    return sum(made._cache_size() for made in _programs)


def is_small(tokens: int, weights: int) -> bool:
    """Whether a pass of so many tokens through so many weights belongs on one thread."""
    return jax.default_backend() == "cpu" and tokens * weights <= SMALL_PASS
