"""The tiny model and a mesh of one device."""

import jax
import pytest

from tiger_jax.models.interface import build_model
from tiger_jax.sharding.mesh import make_mesh
from tiger_jax.testing.tiny import tiny_config, tiny_model


@pytest.fixture(scope="session")
def tiny():
    """(model, parameters)."""
    return tiny_model()


@pytest.fixture(scope="session")
def shallow():
    """A model of one decoder layer, for tests that compile whole training steps."""
    return build_model(tiny_config(layers=1))


@pytest.fixture(scope="session")
def one_device():
    """A mesh of the first device."""
    return make_mesh({"data": 1}, jax.devices()[:1])
