"""Programs that the training runs of one file compile once."""

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from tiger_jax import train


@contextlib.contextmanager
def compiled_once(folder: Path) -> Iterator[None]:
    """A mesh of one of the suite's eight devices, and a compilation cache in `folder`."""
    make = train.meshes.make_mesh
    cache = {
        "jax_compilation_cache_dir": str(folder),
        "jax_persistent_cache_min_compile_time_secs": 0.2,
        "jax_persistent_cache_min_entry_size_bytes": 0,
    }
    before = {name: getattr(jax.config, name) for name in cache}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train.meshes, "make_mesh", partial(make, devices=jax.devices()[:1]))
        for name, value in cache.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
        yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
