"""Tiny models that the tests use: real architectures, a few thousand weights, random values.

Norm scales and biases are drawn too: the usual ones and zeros would hide most mistakes.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from tiger_jax.models.config import (
    LlavaNextConfig,
    Qwen3VisionConfig,
    Qwen3VLConfig,
    TextConfig,
    VisionConfig,
)
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


def tiny_qwen3_vl_config(
    *, vocab: int = 97, hidden: int = 32, layers: int = 3, kv_heads: int = 2, tied: bool = False,
    head_dim: int = 16, deepstack: tuple[int, ...] = (0, 2),
) -> Qwen3VLConfig:  # fmt: skip
    """A Qwen3-VL with patches of 2 pixels; the last six ids are special. Queries are wider than
    the decoder, and frequencies low enough for near positions to differ."""
    vision = Qwen3VisionConfig(
        hidden_size=24, intermediate_size=40, num_layers=3, num_heads=2, patch_size=2,
        temporal_patch_size=2, merge_size=2, num_positions=36, out_hidden_size=hidden,
        deepstack_layers=deepstack, activation="gelu_pytorch_tanh",
    )  # fmt: skip
    text = TextConfig(
        vocab_size=vocab, hidden_size=hidden, intermediate_size=2 * hidden, num_layers=layers,
        num_heads=4, num_kv_heads=kv_heads, head_dim=head_dim, rms_norm_eps=1e-6,
        rope_theta=100.0, max_positions=512, tie_embeddings=tied, qk_norm=True,
        mrope_section=(head_dim // 2 - 2 * (head_dim // 6), head_dim // 6, head_dim // 6),
    )  # fmt: skip
    return Qwen3VLConfig(
        vision=vision, text=text, image_token_id=vocab - 1, video_token_id=vocab - 2,
        vision_start_token_id=vocab - 3, vision_end_token_id=vocab - 4, pad_token_id=vocab - 5,
        bos_token_id=vocab - 5, eos_token_ids=(2,),
    )  # fmt: skip


FAMILIES = {"llava_next": tiny_config, "qwen3_vl": tiny_qwen3_vl_config}


def tiny_model(
    seed: int = 0, family: str = "llava_next", **sizes
) -> tuple[VisionLanguageModel, Params]:
    """A tiny model and lively random parameters."""
    model = build_model(FAMILIES[family](**sizes))
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
