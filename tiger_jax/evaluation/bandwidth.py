"""Memory bandwidth of this machine, and the bytes that one decoding step has to read."""

import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tiger_jax.models.interface import VisionLanguageModel

REPEATS = 5
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_SUFFIXES = {"K": 2**10, "M": 2**20, "G": 2**30}


class Bandwidth(NamedTuple):
    """The fastest of several ways to read a large array once."""

    bytes_per_second: float
    how: str
    """Which way that was."""


Reader = Callable[[np.ndarray], object]
"""Reads a float32 array once and waits for the result."""


def measure(size: int, readers: dict[str, Reader] | None = None) -> Bandwidth:
    """Median rate of the fastest reader over an array of `size` bytes, far larger than any cache.

    Args:
        size: bytes.
        readers: more ways to read, beside numpy's in one thread a core and jnp.sum.
    """
    array = np.ones(size // 4, np.float32)
    on_device = jnp.asarray(array)
    total = jax.jit(jnp.sum)
    cores = os.cpu_count() or 1
    parts = np.array_split(array, cores)
    with ThreadPoolExecutor(cores) as pool:
        ways = {
            f"numpy dot, {cores} threads": lambda: list(pool.map(lambda x: np.dot(x, x), parts)),
            "jnp.sum": lambda: total(on_device).block_until_ready(),
            **{name: lambda read=read: read(array) for name, read in (readers or {}).items()},
        }
        rates = {name: array.nbytes / _median_seconds(way) for name, way in ways.items()}
    best = max(rates, key=lambda name: rates[name])
    return Bandwidth(rates[best], best)


def step_bytes(model: VisionLanguageModel, positions: float) -> float:
    """Bytes that one token of one sequence makes the text model read.

    All its weights but the embedding table (one row of it, unless the head is tied to it), and
    keys and values of `positions` tokens, all in the model's compute dtype.
    """
    text = model.config.text
    params = dict(model.abstract_params()["language_model"])
    if not text.tie_embeddings:
        params.pop("embed_tokens")
    weights = sum(leaf.size for leaf in jax.tree.leaves(params))
    kept = 2 * text.num_layers * text.num_kv_heads * text.head_dim * positions
    return (weights + kept) * jnp.dtype(model.dtype).itemsize


def last_level_cache(folder: Path = _CACHES) -> int | None:
    """Bytes of the largest cache of the first core; None where the system does not say."""
    sizes = []
    for file in folder.glob("index*/size"):
        text = file.read_text().strip()
        if text and text[:-1].isdigit() and text[-1] in _SUFFIXES:
            sizes.append(int(text[:-1]) * _SUFFIXES[text[-1]])
    return max(sizes, default=None)


def _median_seconds(way: Callable[[], object]) -> float:
    way()
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        way()
        times.append(time.perf_counter() - began)
    return statistics.median(times)
