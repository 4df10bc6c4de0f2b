"""Other configurations: feature layers, head counts, tied embeddings; and bfloat16."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from pairs import make_pair, picture, prompt_text
from stages import first_failure, our_stages, reference_stages, relative_l2, stage_errors

from tiger_jax.errors import UserError
from tiger_jax.models.image_geometry import image_token_rows
from tiger_jax.models.interface import build_model

CASE = (prompt_text(2), [picture(60, 100), picture(130, 45, 1)])
VARIANTS = {
    "feature layer -1": {"vision_feature_layer": -1},
    "feature layer 1": {"vision_feature_layer": 1},
    "feature layers -2 -3": {"vision_feature_layer": [-2, -3]},
    "one key head for all": {"text": {"num_key_value_heads": 1}},
    "as many key heads as query heads": {"text": {"num_key_value_heads": 4}},
    "heads wider than the model": {"text": {"head_dim": 24}},
    "tied embeddings": {"tie_word_embeddings": True},
    "rotary theta 5e5": {
        "text": {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    },
}  # fmt: skip


@pytest.mark.parametrize("name", VARIANTS)
def test_every_stage_of_a_variant(tmp_path, name):
    pair = make_pair(tmp_path, **VARIANTS[name])
    (got,) = our_stages(pair, [CASE])
    wanted = reference_stages(pair, *CASE)
    errors = stage_errors(got, wanted)
    assert list(got) == list(wanted)
    assert first_failure(errors) is None, errors
    if name == "feature layers -2 -3":
        assert pair.params["projector"]["linear_1"]["kernel"].shape == (2 * 32, 64)
        newest, older = np.split(got["selected"], 2, axis=-1)  # in the order of the list
        assert np.array_equal(newest, got["block 1"][:, 1:])
        assert np.array_equal(older, got["block 0"][:, 1:])
    assert ("lm_head" in pair.params["language_model"]) == (name != "tied embeddings")


def test_a_positive_layer_is_the_negative_one_from_the_end(pair):
    """B18: four states, so 2 is -2; not 2 is the output of block 2."""
    (minus,) = our_stages(pair, [CASE])
    same = build_model(dataclasses.replace(pair.config, feature_layers=(2,)))
    (plus,) = our_stages(pair, [CASE], model=same)
    assert np.array_equal(minus["logits"], plus["logits"])
    assert list(plus) == list(minus)  # and no block more


def test_layers_that_do_not_exist_are_refused(pair):
    for layer in (4, -5):
        model = build_model(dataclasses.replace(pair.config, feature_layers=(layer,)))
        with pytest.raises(UserError, match=f"vision_feature_layer.*got {layer}"):
            our_stages(pair, [CASE], model=model)


def test_the_full_strategy_is_refused_on_both_sides(pair):
    """transformers cannot lay out 17 rows a tile as an image; neither can we, and we say so."""
    with pytest.raises(RuntimeError):
        pair.reference.model.pack_image_features(
            [torch.zeros(3, 17, 8)], torch.tensor([[60, 100]]), "full", torch.zeros(8)
        )
    full = dataclasses.replace(pair.config, select_strategy="full")
    with pytest.raises(UserError, match=r"vision_feature_select_strategy.*'full'"):
        image_token_rows(60, 100, full)


@pytest.fixture(scope="module")
def bf16(tmp_path_factory):
    """Stages of transformers in float32, of transformers in bfloat16, and ours in bfloat16."""
    pair = make_pair(tmp_path_factory.mktemp("bf16"))
    exact = reference_stages(pair, *CASE)
    params = jax.tree.map(lambda x: x.astype(jnp.bfloat16), pair.params)
    (ours,) = our_stages(pair, [CASE], model=build_model(pair.config, jnp.bfloat16), params=params)
    pair.reference.to(torch.bfloat16)
    return exact, reference_stages(pair, *CASE), ours


def test_bfloat16_is_as_close_to_float32_as_transformers(bf16):
    """Judged against float32: two roundings of one model differ more than either is wrong."""
    exact, theirs, ours = bf16
    for name in ("patch rows", "pre norm", "block 0", "block 1", "projected", "merged",
                 "layer 0", "layer 1", "final norm", "logits"):  # fmt: skip
        limit = 1.3 * relative_l2(theirs[name], exact[name])
        assert relative_l2(ours[name], exact[name]) <= limit, name


def test_bfloat16_gates_of_the_logits(bf16):
    exact, theirs, ours = (stages["logits"] for stages in bf16)
    for other in (exact, theirs):
        assert relative_l2(ours, other) <= 2.5e-2
        assert np.abs(ours - other).mean() <= 0.02
        assert (ours.argmax(-1) == other.argmax(-1)).mean() >= 0.95
    assert relative_l2(ours, exact) >= 1e-3  # it was bfloat16 indeed
