"""Rotary embedding against transformers, positions far out, and its defining property."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from tiger_jax.ops.rotary import rotary_tables, rotate

HEADS, DIM = 3, 16


def transformers_tables(positions: np.ndarray, theta: float, dtype: torch.dtype):
    config = LlamaConfig(
        hidden_size=HEADS * DIM, num_attention_heads=HEADS, head_dim=DIM,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
    )  # fmt: skip
    like = torch.zeros(1, dtype=dtype)
    return LlamaRotaryEmbedding(config)(like, torch.tensor(positions))


@pytest.mark.parametrize("theta", [1e4, 5e5])
@pytest.mark.parametrize("far", [0, 1000, 4000])
def test_rotation_equals_transformers(theta, far):
    rng = np.random.default_rng(0)
    positions = far + rng.integers(0, 90, (2, 5))
    x = rng.standard_normal((2, 5, HEADS, DIM)).astype(np.float32)
    cos, sin = transformers_tables(positions, theta, torch.float32)
    heads_first = torch.tensor(x).transpose(1, 2)
    wanted, _ = apply_rotary_pos_emb(heads_first, heads_first, cos, sin)
    tables = rotary_tables(jnp.asarray(positions, jnp.int32), DIM, theta, jnp.float32)
    got = rotate(jnp.asarray(x), *tables)
    # an angle of 4000 radians has a float32 step of 2.4e-4, one of 90 radians 8e-6
    np.testing.assert_allclose(got, wanted.transpose(1, 2), atol=1e-5 + far * 2e-7, rtol=0)


def test_bfloat16_tables_round_only_once():
    """Angles in bfloat16 would be more than one radian off at position 1000."""
    positions = np.array([[0, 300, 1001, 4000]])
    wanted = transformers_tables(positions, 1e4, torch.bfloat16)
    got = rotary_tables(jnp.asarray(positions, jnp.int32), DIM, 1e4, jnp.bfloat16)
    for ours, theirs in zip(got, wanted, strict=True):
        assert ours.dtype == jnp.bfloat16
        np.testing.assert_allclose(np.float32(ours), theirs.float(), atol=2**-7, rtol=0)


def test_scores_depend_on_the_distance_alone():
    rng = np.random.default_rng(1)
    query, key = (jnp.asarray(rng.standard_normal((1, 1, 1, DIM)), jnp.float32) for _ in range(2))

    def score(i: int, j: int) -> float:
        turned = [
            rotate(x, *rotary_tables(jnp.full((1, 1), at), DIM, 1e4, jnp.float32))
            for x, at in ((query, i), (key, j))
        ]
        return float((turned[0] * turned[1]).sum())

    assert score(7, 3) == pytest.approx(score(107, 103), abs=1e-4)
    assert score(7, 3) != pytest.approx(score(3, 7), abs=1e-2)
