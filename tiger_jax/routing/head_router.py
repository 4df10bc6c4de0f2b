"""The router of a draft head: the same scores, asked by the head's own rows.

The bank is what the head reads at the rows of visual tokens: each token with the verifier's state
there, which also knows where in the picture it stands (projected tokens alone do not say so:
docs/decisions.md). The query is what the head reads at the row that carries the root (`input`), or
its output there before it has seen any picture (`hidden`). Routes stay for a round (the paper's
rule) or are made anew at every draft step.
"""

from jaxtyping import Array

from tiger_jax.errors import UserError
from tiger_jax.models.head import HeadConfig
from tiger_jax.models.interface import Params
from tiger_jax.routing.router import RouterConfig, init_router

ROUTE_QUERIES = ("input", "hidden")
ROUTE_EVERY = ("round", "step")
SELECTORS = ("tiger", "random", "image_only")


def check_routing(
    head: HeadConfig, router: RouterConfig | None, route_query: str, route_every: str
) -> None:
    """UserError unless a head can route so."""
    if (head.visual == "routed") != (router is not None and router.routes):
        raise UserError("router: expected one that routes with visual 'routed' and only there")
    given = {"route_query": (route_query, ROUTE_QUERIES), "route_every": (route_every, ROUTE_EVERY)}
    if router is not None and router.routes:
        given["selector"] = router.selector, SELECTORS
    for name, (got, allowed) in given.items():
        if got not in allowed:
            raise UserError(f"{name}: expected one of {', '.join(allowed)}, got {got!r}")
    if router is not None and router.gate != "none":
        raise UserError(f"gate: expected none for a head, got {router.gate!r}")
    if (route_query, route_every) == ("hidden", "step"):
        raise UserError("route_every: expected round with route_query hidden, got step")


def init_head_router(
    key: Array, head: HeadConfig, router: RouterConfig, route_query: str
) -> Params:
    """Random router parameters that fit a head."""
    asks = head.inner if route_query == "hidden" else head.input_width
    return init_router(key, asks, router.looks, head.input_width, router.width)
