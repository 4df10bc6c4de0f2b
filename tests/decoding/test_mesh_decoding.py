"""Decoding on other meshes: the same tokens, caches and weights in parts."""

import jax
import numpy as np
import pytest

from tests.pictured import mixed_prompts, prompt_arrays
from tiger_jax.decoding.drafters.routed import RoutedDrafter
from tiger_jax.decoding.engine import Engine, Options
from tiger_jax.models.interface import build_model
from tiger_jax.routing import router as routing
from tiger_jax.routing.router import RouterConfig
from tiger_jax.sharding import rules
from tiger_jax.sharding.mesh import AXES, make_mesh
from tiger_jax.testing.tiny import FAMILIES, lively_params, tiny_config

OPTIONS = [
    Options(max_new_tokens=14 - row, seed=row, temperature=float(row % 2)) for row in range(8)
]
"""Greedy rows and drawn ones."""
CASES = [
    *[("llava_next", shape) for shape in [(8, 1, 1), (1, 8, 1), (2, 2, 2), (1, 1, 8)]],
    ("qwen3_vl", (2, 2, 2)),
]


@pytest.fixture(scope="module", params=["llava_next"])
def parts(request):
    """(verifier, its parameters, drafter, its parameters, eight prompts). Both models of Qwen3-VL
    have one table for words and logits; two of their prompts have a video."""
    make, sizes = FAMILIES[request.param], {"tied": True} if request.param == "qwen3_vl" else {}
    config, small = make(kv_heads=4, **sizes), make(hidden=16, **sizes)
    model, other = build_model(config), build_model(small)
    router = {"router": routing.init_router(jax.random.key(3), 16)}
    drafter = RoutedDrafter(other, 3, RouterConfig("tiger", 4))
    prompts = mixed_prompts(config) + mixed_prompts(config, seed=4)
    return (
        model, lively_params(model, 0), drafter, lively_params(other, 1) | router,
        prompt_arrays(config, prompts),
    )  # fmt: skip


def engine_on(parts, mesh):
    model, params, drafter, drafter_params, _ = parts
    own = (*model.rules, *rules.ROUTER_RULES)
    return Engine(
        model, rules.place_params(params, model.rules, mesh),
        np.arange(model.config.text.vocab_size) < 95, str, drafter,
        rules.place_params(drafter_params, own, mesh), mesh,
    )  # fmt: skip


@pytest.fixture(scope="module")
def alone(parts):
    return engine_on(parts, None).run(parts[4], OPTIONS).outputs


@pytest.mark.parametrize(("parts", "shape"), CASES, indirect=["parts"])
def test_a_mesh_changes_no_token(parts, alone, shape):
    engine = engine_on(parts, make_mesh(dict(zip(AXES, shape, strict=True))))
    outputs = engine.run(parts[4], OPTIONS).outputs
    assert [o.tokens for o in outputs] == [o.tokens for o in alone]
    assert [o.accepted_lengths for o in outputs] == [o.accepted_lengths for o in alone]


def test_caches_are_split_over_requests_and_heads(parts):
    engine = engine_on(parts, make_mesh({"data": 2, "tensor": 4}))
    request, limits, room, mode = engine.prepare(parts[4], OPTIONS)
    state = engine.start(parts[4], request, limits, room, mode)
    keys = state.cache.keys[0]
    assert keys.shape[:2] == (8, 4)
    assert keys.addressable_shards[0].data.shape == (4, 1, *keys.shape[2:])


def test_a_batch_that_cannot_be_cut_is_whole_everywhere(parts, alone):
    prompts = mixed_prompts(tiny_config(kv_heads=4))[:3]
    engine = engine_on(parts, make_mesh({"data": 2, "tensor": 4}))
    outputs = engine.run(prompt_arrays(tiny_config(kv_heads=4), prompts), OPTIONS[:3]).outputs
    assert [o.tokens for o in outputs] == [o.tokens for o in alone[:3]]
