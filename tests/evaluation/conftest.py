"""A pair of tiny text models with random weights, as folders that transformers reads too."""

from pathlib import Path

import pytest

from tiger_jax.evaluation import random_pair

SIZES = {
    role: {
        "vocab_size": 400, "hidden_size": width, "intermediate_size": 2 * width,
        "num_hidden_layers": 2, "num_attention_heads": 2,
    }
    for role, width in (("verifier", 32), ("drafter", 16))
}  # fmt: skip


@pytest.fixture(scope="session")
def sizes() -> dict[str, dict[str, int]]:
    return SIZES


@pytest.fixture(scope="session")
def pair(tmp_path_factory) -> tuple[Path, Path]:
    verifier, drafter = random_pair.write_pair(tmp_path_factory.mktemp("pair"), SIZES)
    return verifier, drafter
