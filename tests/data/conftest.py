"""The embedded pairs' folders without weights, and their processors, built once."""

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


@pytest.fixture(scope="session")
def qwen_processor(tmp_path_factory) -> Processor:
    folder = tmp_path_factory.mktemp("tiny_qwen3_vl") / "verifier"
    return Processor.from_folder(write_tiny_folder(folder, pair="tiny_qwen3_vl"))
