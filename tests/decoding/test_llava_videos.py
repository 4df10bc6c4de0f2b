"""Pooled tiles through the engine: a video of LLaVA is answered as plainly, whatever drafts."""

import dataclasses

import numpy as np
import pytest

from tests.decoding.conftest import assert_plain, emitted, limits_of, sampling_of
from tests.decoding.test_routed import Wide, drafter_of, without_router
from tests.pictured import filmed_prompt, pictured_prompt, prompt_arrays
from tiger_jax.decoding.drafters.routed import RoutedDrafter
from tiger_jax.decoding.engine import Engine, Options
from tiger_jax.models.interface import build_model
from tiger_jax.ops.sampling import SamplingMode
from tiger_jax.routing import router as routing
from tiger_jax.routing.router import RouterConfig
from tiger_jax.sharding import rules
from tiger_jax.sharding.mesh import AXES, make_mesh
from tiger_jax.testing.tiny import lively_params, tiny_config

GREEDY = SamplingMode.GREEDY
ROWS = 4


def config_of(**sizes):
    """5 x 5 patches a tile: squares of 2 are cut at its edge. One layer of the decoder."""
    config = tiny_config(kv_heads=4, layers=1, **sizes)
    vision = dataclasses.replace(config.vision, image_size=70, num_layers=2)
    pinpoints = tuple((h // 28 * 70, w // 28 * 70) for h, w in config.pinpoints)
    return dataclasses.replace(config, vision=vision, pinpoints=pinpoints)


@pytest.fixture(scope="module")
def verifier():
    model = build_model(config_of())
    return Wide(model, lively_params(model, 0))


@pytest.fixture(scope="module")
def small():
    return drafter_of(config_of(hidden=16))


@pytest.fixture(scope="module")
def prompts():
    """Six frames of 9 tokens, a picture with its tiles, 20 frames of one token, text."""
    config = config_of()
    return [
        filmed_prompt(config, 6, 2, (3, 4, 5, 6), seed=1), pictured_prompt(config, (0,), seed=2),
        filmed_prompt(config, 20, 5, seed=3), pictured_prompt(config, (), tuple(range(3, 9))),
    ]  # fmt: skip


def arrays(prompts, pooled_tokens=1):
    return prompt_arrays(config_of(), prompts, pooled_tokens, tile_bucket=32)


def limits():
    """All ids but the special ones; so few that a random drafter is right now and then."""
    return limits_of(ROWS, np.arange(24, 24 - ROWS, -1), stop_ids=(2,), undrawable=80)


@pytest.fixture(scope="module")
def plain(verifier, prompts):
    return verifier.run(arrays(prompts), sampling_of(ROWS), limits())


@pytest.mark.parametrize("selector", ["tiger", "vispruner"])
def test_no_route_changes_a_token(verifier, small, prompts, plain, selector):
    model, params = small
    drafter = RoutedDrafter(model, 3, RouterConfig(selector, 4, pooled_tokens=4))
    params = params if selector in routing.LEARNED else without_router(params)
    state = verifier.run(arrays(prompts, 4), sampling_of(ROWS), limits(), GREEDY, drafter, params)
    assert_plain(state, plain)


def test_a_prompt_alone_and_other_pixels(verifier, prompts, plain):
    """Another last frame changes its own prompt's numbers and no other's; the picture is answered
    the same where nothing of its batch is pooled."""
    pixels = prompts[0].tiles.pixels.copy()
    pixels[-1] *= -1
    tiles = dataclasses.replace(prompts[0].tiles, pixels=pixels)
    rows = [prompts[0]._replace(tiles=tiles), *prompts[1:]]
    changed = verifier.run(arrays(rows), sampling_of(ROWS), limits())
    moved = np.abs(np.asarray(changed.logprobs - plain.logprobs)).max(axis=1)
    assert moved[0] > 1e-3
    assert moved[1:].max() < 1e-6
    alone = arrays([prompts[3], prompts[1], prompts[3], prompts[3]])
    assert emitted(verifier.run(alone, sampling_of(ROWS), limits()))[1] == emitted(plain)[1]


def test_a_mesh_changes_no_token(verifier, small, prompts, plain):
    """Tiles and their strides in parts."""
    model, params = small
    mesh = make_mesh(dict(zip(AXES, (2, 2, 2), strict=True)))
    engine = Engine(
        verifier.model, rules.place_params(verifier.params, model.rules, mesh),
        np.asarray(limits().drawable), str, RoutedDrafter(model, 3, RouterConfig("tiger", 4)),
        rules.place_params(params, (*model.rules, *rules.ROUTER_RULES), mesh), mesh,
    )  # fmt: skip
    options = [Options(max_new_tokens=24 - row) for row in range(ROWS)]
    outputs = engine.run(arrays(prompts), options).outputs
    assert [output.tokens for output in outputs] == emitted(plain)
