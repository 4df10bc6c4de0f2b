"""Tiny random models in transformers and here, made once per session."""

from collections.abc import Iterator

import pytest
import torch
from pairs import Pair, make_pair
from qwen3_vl_pairs import WIDE_HEADS, Qwen3VLPair, make_qwen3_vl_pair


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


@pytest.fixture(scope="session")
def qwen3_vl(tmp_path_factory) -> Qwen3VLPair:
    """Vision heads of 64, untied: what every test uses if not said else."""
    return make_qwen3_vl_pair(tmp_path_factory.mktemp("qwen3_vl"))


@pytest.fixture(scope="session")
def qwen3_vl_wide(tmp_path_factory) -> Qwen3VLPair:
    """Vision heads of 72, tied, transformers' eager attention."""
    folder = tmp_path_factory.mktemp("qwen3_vl_wide")
    return make_qwen3_vl_pair(folder, WIDE_HEADS, tied=True, attention="eager")


@pytest.fixture(scope="session")
def qwen3_vl_4b(tmp_path_factory) -> Qwen3VLPair:
    """Vision heads of 64 and tied tables, as the 4B model has them."""
    return make_qwen3_vl_pair(tmp_path_factory.mktemp("qwen3_vl_4b"), tied=True)


@pytest.fixture(scope="session")
def qwen3_vl_8b(tmp_path_factory) -> Qwen3VLPair:
    """Vision heads of 72 and untied tables, as the 8B model has them."""
    return make_qwen3_vl_pair(tmp_path_factory.mktemp("qwen3_vl_8b"), WIDE_HEADS)
