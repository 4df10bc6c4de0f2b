"""Other configurations of Qwen3-VL, where the tower looks, and bfloat16."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from qwen3_vl_pairs import (
    TEXT,
    Image,
    Video,
    batch_prompts,
    make_prompt,
    make_qwen3_vl_pair,
)
from qwen3_vl_stages import our_stages, reference_stages
from stages import GATE, first_failure, relative_l2, stage_errors
from transformers.models.qwen3_vl.modeling_qwen3_vl import apply_rotary_pos_emb_vision

from tiger_jax.models.interface import build_model

CASE = [3, Image(8, 12), 2, Video(2, 4, 4), 1, Image(4, 6), 2]
ROPE = TEXT["rope_parameters"]
VARIANTS = {
    "fewer layers than taps, one key head for all": {
        "text": {"num_hidden_layers": 2, "num_key_value_heads": 1},
    },
    "one tap, queries as wide as the model, no sharing of key heads": {
        "vision": {"deepstack_visual_indexes": [1]},
        "text": {
            "head_dim": 16, "num_key_value_heads": 4,
            "rope_parameters": {**ROPE, "mrope_section": [4, 2, 2]},
        },
    },
    "published base and table": {
        "vision": {"num_position_embeddings": 48 * 48},
        "text": {"rope_parameters": {**ROPE, "rope_theta": 5e6, "mrope_section": [6, 5, 5]}},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", VARIANTS)
def test_every_stage_of_a_variant(tmp_path, name):
    pair = make_qwen3_vl_pair(tmp_path, **VARIANTS[name])
    prompt = make_prompt(CASE, side=round(pair.config.vision.num_positions**0.5))
    (wanted,) = reference_stages(pair, [prompt])
    (got,) = our_stages(pair, [prompt], batch=batch_prompts([prompt]))
    errors = stage_errors(got, wanted)
    assert list(got) == list(wanted)
    assert first_failure(errors) is None, errors


@torch.no_grad()
def test_where_the_tower_looks(qwen3_vl):
    """The last block's weights, from transformers' own queries and keys."""
    prompt = make_prompt([1, Image(8, 12), Image(4, 6)])
    tower, seen = qwen3_vl.reference.model.visual, {}
    hooks = [
        tower.blocks[-1].attn.qkv.register_forward_hook(lambda *a: seen.update(qkv=a[-1])),
        tower.rotary_pos_emb.register_forward_hook(lambda *a: seen.update(rope=a[-1])),
    ]
    reference_stages(qwen3_vl, [prompt])
    for hook in hooks:
        hook.remove()
    queries, keys, _ = seen["qkv"].reshape(96 + 24, 3, 2, 64).unbind(1)
    queries, keys = apply_rotary_pos_emb_vision(queries, keys, *seen["rope"])
    frames = jax.tree.map(jnp.asarray, batch_prompts([prompt], patches=128).frames)
    got = np.asarray(jax.jit(qwen3_vl.model.vision_saliency)(qwen3_vl.params, frames))
    for frame, own in enumerate([slice(0, 96), slice(96, 120)]):
        scores = torch.einsum("qhd,khd->hqk", queries[own], keys[own]) * 64**-0.5
        wanted = scores.softmax(-1).mean((0, 1)).reshape(-1, 4).mean(-1).numpy()
        assert relative_l2(got[frame, : len(wanted)], wanted) <= GATE
        assert np.abs(got[frame, len(wanted) :]).max() <= 1e-9


@pytest.fixture(scope="module")
def bf16(tmp_path_factory):
    """Stages of transformers in float32, of transformers in bfloat16, and ours in bfloat16."""
    folder = tmp_path_factory.mktemp("bf16")
    pair = make_qwen3_vl_pair(folder)
    prompt = make_prompt(CASE)
    (exact,) = reference_stages(pair, [prompt])
    params = jax.tree.map(lambda x: x.astype(jnp.bfloat16), pair.params)
    (ours,) = our_stages(
        pair, [prompt], model=build_model(pair.config, jnp.bfloat16), params=params
    )
    # Read anew: `.to` would round the frequencies of the rotary embeddings too.
    rounded = transformers.Qwen3VLForConditionalGeneration.from_pretrained(
        folder, dtype=torch.bfloat16
    )
    (theirs,) = reference_stages(dataclasses.replace(pair, reference=rounded.eval()), [prompt])
    return exact, theirs, ours


def test_bfloat16_is_as_close_to_float32_as_transformers(bf16):
    """Judged against float32: two roundings of one model differ more than either is wrong. B5:
    what DeepStack adds is added to a layer's rounded output."""
    exact, theirs, ours = bf16
    assert list(ours) == list(exact)
    for name in exact:
        limit = 1.3 * relative_l2(theirs[name], exact[name])  # 0 for ids and the tower's rope
        assert relative_l2(ours[name], exact[name]) <= max(limit, GATE), name


def test_bfloat16_gates_of_the_logits(bf16):
    exact, theirs, ours = (stages["logits"] for stages in bf16)
    best = np.sort(exact, axis=-1)
    clear = best[:, -1] - best[:, -2] > 0.1
    assert clear.mean() > 0.5
    for other in (exact, theirs):
        assert relative_l2(ours, other) <= 2.5e-2
        assert np.abs(ours - other).mean() <= 0.02
        assert (ours.argmax(-1) == other.argmax(-1))[clear].mean() >= 0.95
    assert relative_l2(ours, exact) >= 1e-3  # it was bfloat16 indeed
