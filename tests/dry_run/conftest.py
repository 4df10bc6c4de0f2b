"""Abstract arrays stand where annotations say Array, and no GPU compiler is asked."""

import jaxtyping
import pytest

from tiger_jax.dry_run import gpu_compiler


@pytest.fixture
def shapes():
    """Annotations of structs say Array; here their fields are shapes."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def on_cpu(monkeypatch, shapes):
    """Programs are compiled by the CPU compiler whatever is installed."""
    monkeypatch.setattr(gpu_compiler, "PLUGINS", ("no_such.package",))
