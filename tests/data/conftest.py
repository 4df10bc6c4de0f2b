"""The embedded pair's folder without weights, and its processor, built once."""

from pathlib import Path

import pytest

from tiger_jax.data.processor import Processor
from tiger_jax.data.scene_folder import write_tiny_folder


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory) -> Path:
    return write_tiny_folder(tmp_path_factory.mktemp("tiny") / "verifier")


@pytest.fixture(scope="session")
def processor(tiny_folder) -> Processor:
    return Processor.from_folder(tiny_folder)
