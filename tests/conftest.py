"""Numerics switches of the suite: set before jax is used, the same for every test."""

import os
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
# Most of the suite's time is LLVM's, for programs that run once: -O0 takes a third off it.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

# Commands keep compiled programs on disk; two workers never read what the other one is writing.
if worker := os.environ.get("PYTEST_XDIST_WORKER"):
    own = Path(tempfile.gettempdir()) / f"tiger_jax-tests-{os.getuid()}" / worker
    os.environ["XDG_CACHE_HOME"] = str(own)

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_default_matmul_precision", "highest")


@pytest.fixture(autouse=True, scope="module")
def programs_in_memory_end_with_their_file():
    """Every compiled program maps a few pieces of memory; a process that keeps those of the whole
    suite passes vm.max_map_count (65,530) and dies."""
    yield
    jax.clear_caches()


@pytest.fixture(autouse=True)
def programs_on_disk_stay_with_their_test():
    """A command that ran inside a test has switched the cache of programs on for the process."""
    before = jax.config.jax_compilation_cache_dir
    yield
    if jax.config.jax_compilation_cache_dir != before:
        jax.config.update("jax_compilation_cache_dir", before)
        compilation_cache.reset_cache()


@pytest.fixture(scope="module")
def no_compilation_cache():
    """The command turns JAX's persistent cache on; tests leave the user's alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tiger_jax.runtime.configure", lambda: None)
        yield
