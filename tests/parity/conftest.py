"""Tiny random LLaVA-NeXT models in transformers and here, made once per session."""

from collections.abc import Iterator

import pytest
import torch
from pairs import Pair, make_pair


@pytest.fixture(scope="session", autouse=True)
def _one_torch_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def pair(tmp_path_factory) -> Pair:
    """Grouped-query attention, feature layer -2, untied: what every test uses if not said else."""
    return make_pair(tmp_path_factory.mktemp("pair"))
