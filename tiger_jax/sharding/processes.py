"""What several processes of one run agree on; with one process nothing here costs anything."""

from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils


def is_main() -> bool:
    """Whether this process writes logs, caches' notes and exports."""
    return jax.process_index() == 0


def barrier(name: str) -> None:
    """Wait until every process is here; `name` tells barriers apart."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def from_main(value: bool) -> bool:
    """The main process's value, on all of them: what one saw on a shared disk, another may not."""
    if jax.process_count() == 1:
        return value
    return bool(multihost_utils.broadcast_one_to_all(np.asarray(value)))


def fetch(array: Any) -> np.ndarray:
    """A whole array on the host of every process; all processes call this together."""
    if isinstance(array, jax.Array) and not (
        array.is_fully_addressable or array.is_fully_replicated
    ):
        return np.asarray(multihost_utils.process_allgather(array, tiled=True))
    return jax.device_get(array)
