"""Gradients of every weight of Qwen3-VL, tower and mergers included, as torch has them."""

import jax
import jax.numpy as jnp
import numpy as np
from qwen3_vl_pairs import (
    Image,
    Video,
    batch_prompts,
    make_prompt,
    make_qwen3_vl_pair,
    reference_inputs,
)
from qwen3_vl_stages import arrays
from stages import relative_l2

from tiger_jax.models.interface import build_model
from tiger_jax.weights.load import load_params

CASE = [3, Image(4, 6), 2, Video(2, 4, 4), 3]


def test_gradients_of_all_weights(tmp_path):
    """The training pass, scanned and recomputed, on padded frames, against autograd."""
    pair = make_qwen3_vl_pair(tmp_path / "weights")
    prompt = make_prompt(CASE)
    length = len(prompt.tokens)
    pull = np.random.default_rng(1).standard_normal((length, 400), np.float32)

    pair.reference.model.rope_deltas = None
    logits = pair.reference(**reference_inputs([prompt])).logits[0]
    (logits * logits.new_tensor(pull)).sum().backward()
    for weight in pair.reference.parameters():  # written as weights, they are read as those are
        weight.data = weight.grad
    pair.reference.save_pretrained(tmp_path / "gradients")
    wanted = load_params(tmp_path / "gradients", pair.config, dtype=jnp.float32)

    model = build_model(pair.config, remat=True)
    tokens, positions, image_rows, frames = arrays(batch_prompts([prompt], 40, 4, 32))
    mask = jnp.tril(jnp.ones((1, 40, 40), bool))

    @jax.jit
    @jax.grad
    def gradients(params):
        table = model.encode_images(params, frames)
        x = model.embed(params, tokens, image_rows, table)
        hidden, _, _ = model.context(params, x, positions, mask)
        return jnp.sum(model.logits(params, hidden)[0, :length] * pull)

    got = jax.device_get(gradients(pair.params))
    leaves, _ = jax.tree_util.tree_flatten_with_path(wanted)
    assert len(leaves) == len(jax.tree.leaves(got))
    for (path, leaf), own in zip(leaves, jax.tree.leaves(got), strict=True):
        name = jax.tree_util.keystr(path)
        assert np.abs(leaf).max() > 1e-3, name
        assert relative_l2(own, np.asarray(leaf)) <= 2e-5, name
