"""The router of a draft head: the same scores, asked by the head's own rows.

The bank is the verifier's projected visual tokens; the query is what the head reads at the row that
carries the root (`input`), or its output there before it has seen any picture (`hidden`). Routes
stay for a round (the paper's rule) or are made anew at every draft step.
"""

from jaxtyping import Array

from tiger_jax.models.head import HeadConfig
from tiger_jax.models.interface import Params
from tiger_jax.routing.router import RouterConfig, init_router

ROUTE_QUERIES = ("input", "hidden")
ROUTE_EVERY = ("round", "step")


def init_head_router(
    key: Array, head: HeadConfig, router: RouterConfig, route_query: str
) -> Params:
    """Random router parameters that fit a head."""
    asks = head.inner if route_query == "hidden" else head.input_width
    return init_router(key, asks, router.looks, head.hidden_size, router.width)
