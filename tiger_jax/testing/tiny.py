"""Tiny models that the tests use: real architectures, a few thousand weights, random values.

Norm scales and biases are drawn too: the usual ones and zeros would hide most mistakes.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from tiger_jax.models.config import LlavaNextConfig, TextConfig, VisionConfig
from tiger_jax.models.interface import Params, VisionLanguageModel, build_model


def tiny_config(
    *, vocab: int = 97, hidden: int = 32, layers: int = 2, kv_heads: int = 2
) -> LlavaNextConfig:
    """A LLaVA-NeXT with 2x2 rows a tile; the last two ids are <image> and padding."""
    vision = VisionConfig(
        hidden_size=16,
        intermediate_size=32,
        num_layers=3,
        num_heads=2,
        image_size=28,
        patch_size=14,
    )
    text = TextConfig(
        vocab_size=vocab, hidden_size=hidden, intermediate_size=2 * hidden, num_layers=layers,
        num_heads=4, num_kv_heads=kv_heads, head_dim=hidden // 4, rms_norm_eps=1e-5,
        rope_theta=10000.0, max_positions=512,
    )  # fmt: skip
    return LlavaNextConfig(
        vision=vision, text=text, image_token_id=vocab - 2, pad_token_id=vocab - 1,
        bos_token_id=1, eos_token_ids=(2,), feature_layers=(-2,), select_strategy="default",
        projector_activation="gelu",
        pinpoints=((28, 28), (28, 56), (56, 28), (56, 56)),
    )  # fmt: skip


def tiny_model(seed: int = 0, **sizes) -> tuple[VisionLanguageModel, Params]:
    """A tiny model and lively random parameters."""
    model = build_model(tiny_config(**sizes))
    return model, lively_params(model, seed)


def lively_params(model: VisionLanguageModel, seed: int) -> Params:
    """Matrices normal / sqrt(fan in), scales 1 + 0.1 normal, biases 0.1 normal, embeddings 0.5."""
    shapes = model.abstract_params()
    leaves, tree = jax.tree_util.tree_flatten_with_path(shapes)
    keys = jax.random.split(jax.random.key(seed), len(leaves))

    def draw(path: tuple, shape: jax.ShapeDtypeStruct, key: Array) -> Array:
        noise = jax.random.normal(key, shape.shape, jnp.float32)
        name = path[-1].key
        if name == "scale":
            return 1.0 + 0.1 * noise
        if name == "bias":
            return 0.1 * noise
        if name == "kernel":
            return noise * shape.shape[0] ** -0.5
        return 0.5 * noise

    drawn = [draw(path, shape, key) for (path, shape), key in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(tree, drawn)
