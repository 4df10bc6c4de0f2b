"""Process-wide settings of JAX. Entry points call `configure` once; nothing else touches
jax.config.
"""

import os
from pathlib import Path

import jax


def configure() -> None:
    """Turn the persistent compilation cache on, so that a second start compiles nothing.

    JAX_COMPILATION_CACHE_DIR moves it, JAX_ENABLE_COMPILATION_CACHE=false turns it off.
    """
    # transformers is here for tokenizers and processors; that it finds no torch is no news.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        jax.config.update("jax_compilation_cache_dir", str(home / "tiger_jax" / "xla"))
    # float32 means float32: GPUs would round its products to TF32, and near ties would flip.
    jax.config.update("jax_default_matmul_precision", "highest")
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


def default_dtype() -> str:
    """bfloat16 where the hardware multiplies it faster, float32 on CPU."""
    return "float32" if jax.default_backend() == "cpu" else "bfloat16"
