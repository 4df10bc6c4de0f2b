"""A drafter's folder with a router becomes a routed drafter, and the command line's choices."""

import dataclasses
import shutil

import jax
import pytest

from tests.assets import TINY_LLAVA
from tiger_jax.data.records import Request
from tiger_jax.decoding.drafters.routed import RoutedDrafter
from tiger_jax.decoding.drafters.vlm import VLMDrafter
from tiger_jax.decoding.engine import Options
from tiger_jax.errors import UserError
from tiger_jax.pipeline import Pipeline, choose_router
from tiger_jax.routing.router import RouterConfig, init_router
from tiger_jax.weights.router_io import write_router

FOUND = RouterConfig("tiger", routed_tokens=4, pooled_tokens=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("routed") / "drafter"
    shutil.copytree(TINY_LLAVA / "drafter", folder)
    params = Pipeline.load(folder).engine.params
    width = params["language_model"]["final_norm"]["scale"].shape[0]
    write_router(folder, FOUND, init_router(jax.random.key(0), width))
    return folder


def test_a_folder_with_a_router_routes(folder):
    routed = Pipeline.load(TINY_LLAVA / "verifier", folder, draft_length=3)
    assert isinstance(routed.engine.drafter, RoutedDrafter)
    assert routed.router == FOUND
    longer = routed.with_draft_length(4)
    assert longer.engine.drafter == dataclasses.replace(routed.engine.drafter, draft_length=4)
    assert routed.plain().router is None
    request = Request(id="1", prompt="What is there?", images=(str(TINY_LLAVA / "demo.png"),))
    prepared = [routed.prepare(request, Options(max_new_tokens=12))]
    (fast,) = routed.run(prepared, 1).outputs
    (plain,) = routed.plain().run(prepared, 1).outputs
    assert fast.tokens == plain.tokens
    assert len(fast.tokens) > 1


def test_full_is_the_ordinary_drafter(folder):
    full = Pipeline.load(TINY_LLAVA / "verifier", folder, selector="full")
    assert isinstance(full.engine.drafter, VLMDrafter)
    assert full.router.selector == "full"
    assert "router" not in full.engine.drafter_params


def test_what_the_user_asks_for_wins():
    assert choose_router(None) == RouterConfig("full")
    assert choose_router(None, "random", 3) == RouterConfig("random", routed_tokens=3)
    assert choose_router(FOUND) == FOUND
    assert choose_router(FOUND, "vispruner") == dataclasses.replace(FOUND, selector="vispruner")
    assert choose_router(FOUND, None, 2) == dataclasses.replace(FOUND, routed_tokens=2)


def test_nothing_routes_without_a_drafter():
    for asked in ({"selector": "tiger"}, {"routed_tokens": 4}):
        with pytest.raises(UserError, match="expected a drafter to use them, got none"):
            Pipeline.load(TINY_LLAVA / "verifier", **asked)


@pytest.mark.parametrize(
    ("found", "selector", "k", "message"),
    [
        (None, "tiger", None, "without tiger_router.safetensors, got tiger"),
        (None, "image_only", None, "full, got image_only|without"),
        (None, None, 4, "a selector that routes, got 4 with full"),
        (FOUND, "best", None, "selector: expected one of tiger"),
        (FOUND, None, 0, "routed_tokens: expected at least 1, got 0"),
    ],
)
def test_refusals(found, selector, k, message):
    with pytest.raises(UserError, match=message):
        choose_router(found, selector, k)
