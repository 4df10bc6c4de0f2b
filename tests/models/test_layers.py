"""The small modules against torch's, in float32 and with bfloat16's order of roundings."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from tiger_jax.errors import UserError
from tiger_jax.models.clip_vision import patch_rows
from tiger_jax.models.layers import Dense, Embedding, LayerNorm, RMSNorm, activation

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 5, 16)).astype(np.float32)
SCALE, BIAS = (RNG.standard_normal(16).astype(np.float32) for _ in range(2))


@pytest.mark.parametrize("name", ["quick_gelu", "gelu", "gelu_pytorch_tanh", "silu"])
def test_activations_are_those_of_transformers(name):
    x = np.linspace(-6, 6, 200, dtype=np.float32)
    wanted = ACT2FN[name](torch.tensor(x)).numpy()
    np.testing.assert_allclose(activation(name)(jnp.asarray(x)), wanted, atol=1e-6)


def test_an_unknown_activation_is_refused():
    with pytest.raises(UserError, match="'swish2' is unknown"):
        activation("swish2")


@pytest.mark.parametrize("eps", [1e-5, 1e-2])
def test_layer_norm(eps):
    wanted = torch.nn.functional.layer_norm(
        torch.tensor(X), (16,), torch.tensor(SCALE), torch.tensor(BIAS), eps
    )
    params = {"scale": jnp.asarray(SCALE), "bias": jnp.asarray(BIAS)}
    got = LayerNorm(eps).apply({"params": params}, jnp.asarray(X))
    np.testing.assert_allclose(got, wanted, atol=1e-6)


def rms_norm(x: torch.Tensor, scale: torch.Tensor, eps: float) -> torch.Tensor:
    module = LlamaRMSNorm(16, eps)
    module.weight.data = scale
    return module(x).detach()


@pytest.mark.parametrize("eps", [1e-5, 1e-2])
def test_rms_norm(eps):
    wanted = rms_norm(torch.tensor(X), torch.tensor(SCALE), eps)
    got = RMSNorm(eps).apply({"params": {"scale": jnp.asarray(SCALE)}}, jnp.asarray(X))
    np.testing.assert_allclose(got, wanted, atol=1e-6)


def test_rms_norm_in_bfloat16_rounds_as_transformers_does():
    """The weight multiplies after the cast: before it, many numbers would round otherwise."""
    x, scale = (jnp.asarray(a, jnp.bfloat16) for a in (X, SCALE))
    wanted = rms_norm(*(torch.tensor(np.float32(a)).bfloat16() for a in (x, scale)), 1e-5)
    got = RMSNorm(1e-5).apply({"params": {"scale": scale}}, x)
    assert got.dtype == jnp.bfloat16
    assert (np.float32(got) == wanted.float().numpy()).mean() >= 0.98


def test_layer_norm_in_bfloat16_keeps_its_statistics_in_float32():
    x = jnp.asarray(X + 100, jnp.bfloat16)  # in bfloat16 the mean would be off by half a unit
    params = {"scale": jnp.ones(16, jnp.bfloat16), "bias": jnp.zeros(16, jnp.bfloat16)}
    wanted = torch.nn.functional.layer_norm(torch.tensor(np.float32(x)), (16,))
    got = LayerNorm(1e-5).apply({"params": params}, x)
    assert got.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.float32(got), wanted, atol=0.02)


def test_compute_dtype_is_not_the_stored_one():
    """Stored float32 computes in bfloat16 where asked to, and the other way round."""
    kernel = jnp.asarray(RNG.standard_normal((16, 8)), jnp.float32)
    for stored, compute in ((jnp.float32, jnp.bfloat16), (jnp.bfloat16, jnp.float32)):
        weights = {"params": {"kernel": kernel.astype(stored)}}
        dense = Dense(8, dtype=compute).apply(weights, jnp.asarray(X))
        rows = {"embedding": kernel.astype(stored)}
        looked_up = Embedding(16, 8, dtype=compute).apply({"params": rows}, jnp.arange(3))
        assert dense.dtype == looked_up.dtype == compute


def test_patch_rows_times_kernel_is_the_convolution():
    """Pictures and kernels without any symmetry; more rows of patches than one."""
    tiles = RNG.standard_normal((2, 12, 12, 3)).astype(np.float32)
    weight = RNG.standard_normal((5, 3, 4, 4)).astype(np.float32)
    wanted = torch.nn.functional.conv2d(
        torch.tensor(tiles).permute(0, 3, 1, 2), torch.tensor(weight), stride=4
    )
    kernel = weight.transpose(2, 3, 1, 0).reshape(48, 5)
    got = patch_rows(jnp.asarray(tiles), 4) @ kernel
    np.testing.assert_allclose(got, wanted.flatten(2).transpose(1, 2), atol=1e-5)
