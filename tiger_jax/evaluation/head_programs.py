"""The programs whose cost decides about a draft head, over abstract arrays of real sizes.

plain step    one token of the verifier, in the loop of plain decoding
head step     one token of the head: a layer and the lm_head, in a loop of such steps
round         draft, verify, commit, refresh, in the loop of speculative decoding
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tiger_jax import head_methods
from tiger_jax.decoding import autoregressive, speculative
from tiger_jax.decoding.drafters.head import HeadDrafter
from tiger_jax.decoding.drafters.head_cache import Growing
from tiger_jax.decoding.drafters.protocol import RoundContext
from tiger_jax.decoding.drafters.tree import DynamicTree
from tiger_jax.decoding.state import DecodeState
from tiger_jax.dry_run.abstract_verifier import COUNT, DTYPE, Sizes, Verifier, tree_bytes
from tiger_jax.models.head import DraftHead, shared_weights
from tiger_jax.models.interface import Params
from tiger_jax.ops.kv_cache import KVCache
from tiger_jax.ops.sampling import SamplingMode
from tiger_jax.routing.head_router import init_head_router
from tiger_jax.routing.router import RouterConfig

GREEDY = SamplingMode.GREEDY


@dataclasses.dataclass(frozen=True)
class HeadSetting:
    """A head of `tiger_head`'s shape; `full` sees every visual row instead of k."""

    visual: str
    width: int = 0
    """0 = the verifier's, all sizes then being its own."""
    routed_tokens: int = 8
    route_every: str = "round"
    router_width: int = 0
    """0 = that of the layer's input."""

    @property
    def routes(self) -> bool:
        """Whether there is a router."""
        return self.visual == "routed"


@dataclasses.dataclass(frozen=True)
class Work:
    """One program, and the bytes that one turn of its loop has to read at least."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    donate: tuple[int, ...]
    caches: Any
    """The arrays of all caches in the loop."""
    weight_bytes: int
    cache_bytes: int
    """All rows of a cache count: XLA's attention reads its whole capacity."""
    runs_verifier: bool = True

    @property
    def step_bytes(self) -> int:
        """Weights once, caches once."""
        return self.weight_bytes + self.cache_bytes

    @property
    def cache_sizes(self) -> set[int]:
        """Elements of one array of each kind of cache."""
        return {leaf.size for leaf in jax.tree.leaves(self.caches)}


def plain_step(verifier: Verifier, sizes: Sizes) -> Work:
    """Plain decoding."""
    state, request, limits = verifier.start(sizes)

    def decode(params: Params, state: DecodeState, *rest: Any) -> DecodeState:
        return autoregressive.decode(verifier.model, params, state, *rest, mode=GREEDY)

    return Work(
        decode, (verifier.params, state, request, limits, COUNT), (1,), state.cache,
        verifier.weight_bytes, tree_bytes(state.cache),
    )  # fmt: skip


def head_step(verifier: Verifier, sizes: Sizes, setting: HeadSetting) -> Work:
    """Draft token by token, a loop of nothing else."""
    drafter, params = make_head(verifier, setting, draft_length=2)
    state, request, limits = verifier.start(sizes, drafter, params)
    context = jax.eval_shape(RoundContext.of, state, request, limits)
    rest = state.drafter.replace(cache=None)
    run = partial(_draft, drafter)
    return Work(
        run, (params, state.drafter.cache, rest, context, COUNT), (1,), state.drafter.cache,
        _head_weights(params, setting), _head_reads(state.drafter, setting), runs_verifier=False,
    )  # fmt: skip


def head_round(
    verifier: Verifier, sizes: Sizes, setting: HeadSetting, draft_length: int,
    tree: tuple[int, int, int] | None,
) -> Work:  # fmt: skip
    """Speculative decoding; `tree` = (nodes, expansions, width) instead of a chain.

    A tree routes once a round, whatever the setting says.
    """
    if tree:
        setting = dataclasses.replace(setting, route_every="round")
    drafter, params = make_head(verifier, setting, draft_length, tree)
    state, request, limits = verifier.start(sizes, drafter, params)

    def decode(params: Params, drafter_params: Any, state: DecodeState, *rest: Any) -> DecodeState:
        return speculative.decode(
            verifier.model, drafter, params, drafter_params, state, *rest, mode=GREEDY
        )

    passes, inner = drafter.spec.depth, state.drafter
    # Once a round: the fusing of the verifier's states, and a route where steps have none.
    fuse = tree_bytes(params["head"].get("fuse", ()))
    once = tree_bytes(inner.bank.keys) if setting.routes and setting.route_every == "round" else 0
    return Work(
        decode, (verifier.params, params, state, request, limits, COUNT), (2,),
        (state.cache, inner.cache, inner.bank_rows if setting.routes else ()),
        verifier.weight_bytes + fuse + passes * _head_weights(params, setting),
        tree_bytes(state.cache) + passes * _head_reads(inner, setting) + once,
    )  # fmt: skip


def make_head(
    verifier: Verifier, setting: HeadSetting, draft_length: int,
    tree: tuple[int, int, int] | None = None,
) -> tuple[HeadDrafter, Params]:  # fmt: skip
    """The drafter and its abstract parameters, in bfloat16 but for the router."""
    shape = head_methods.METHODS["tiger_head"]["head"] | {
        "visual": setting.visual, "taps": (), "width": setting.width,
        **dict.fromkeys(head_methods.SIZES, 0),
    }  # fmt: skip
    head = DraftHead(head_methods.head_config(shape, verifier.model.config.text), DTYPE)
    router = None
    if setting.routes:
        router = RouterConfig(routed_tokens=setting.routed_tokens, width=setting.router_width)
    drafter = HeadDrafter(
        head, draft_length, tree=DynamicTree(*tree) if tree else None, router=router,
        route_every=setting.route_every if setting.routes else "round",
    )  # fmt: skip
    weights = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, DTYPE), head.abstract_params())
    shared = jax.eval_shape(shared_weights, verifier.params)
    if router:
        weights["router"] = jax.eval_shape(
            lambda: init_head_router(jax.random.key(0), head.config, router, drafter.route_query)
        )
    return drafter, {"head": weights, "shared": shared}


def _draft(
    drafter: HeadDrafter, params: Params, cache: KVCache, rest: Any, context: RoundContext,
    steps: jax.Array,
) -> tuple[jax.Array, Growing]:  # fmt: skip
    """`steps` tokens of a chain."""
    state = rest.replace(cache=cache)
    batch, width = context.pending.shape[0], drafter.head.config.inner
    draft = Growing(
        keys=cache.keys, values=cache.values, g=jnp.zeros((batch, 1, width), DTYPE),
        valid=state.valid, indices=state.indices, seen=jnp.zeros((batch, 1, 0), bool),
    )  # fmt: skip

    def step(carry: tuple) -> tuple:
        done, token, draft = carry
        logits, draft = drafter.advance(params, state, context, token, done, draft)
        return done + 1, jnp.argmax(logits, axis=-1).astype(jnp.int32), draft

    start = (jnp.int32(0), context.pending[:, None], draft)
    return lax.while_loop(lambda carry: carry[0] < steps, step, start)[1:]


def _head_weights(params: Params, setting: HeadSetting) -> int:
    """Weights that one pass of a head reads: those that fuse the verifier's states are used in a
    refresh only."""
    head = {name: part for name, part in params["head"].items() if name not in ("fuse", "router")}
    if setting.routes and setting.route_every == "step":
        head["router"] = params["head"]["router"]["query"]
    return tree_bytes(head) + tree_bytes(params["shared"].lm_head)


def _head_reads(state: Any, setting: HeadSetting) -> int:
    """Cache and, where a step routes, the bank's projections."""
    routed = setting.routes and setting.route_every == "step"
    return tree_bytes(state.cache) + (tree_bytes(state.bank.keys) if routed else 0)
