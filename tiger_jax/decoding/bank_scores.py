"""Which visual tokens a round routes, and by which scores: asked again of the drafter itself.

B: batch, R: bank rows, k: routed tokens.

The state between rounds remembers the chosen rows alone. Drafters are pure, so `route` and `scores`
on the state *before* a round say what that round will do; decoding carries nothing more for it.
"""

from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from tiger_jax.decoding.drafters.protocol import Drafter, RoundContext, RoutingDrafter
from tiger_jax.routing.bank import Anywhere


@runtime_checkable
class ScoringDrafter(RoutingDrafter, Protocol):
    """A routing drafter that tells its scores."""

    def scores(self, params: Any, state: Any, context: RoundContext) -> Float[Array, "B R"] | None:
        """What `route` chooses by; None if this drafter does not route."""


@struct.dataclass
class ChosenRows:
    """The bank rows of one route, in the order of the prompt."""

    indices: Int[Anywhere, "B k"]
    scores: Float[Anywhere, "B k"]
    """float32, in the selector's own unit: q . k / sqrt(E) of a router, a uniform number of
    `random`, the saliency of a selector that looks once."""
    valid: Bool[Anywhere, "B k"]
    """False where the bank has fewer than k rows."""


def routes(drafter: Drafter) -> bool:
    """Whether a drafter chooses visual tokens: it may have the method, but a head of another visual
    input has nothing to choose from."""
    if not isinstance(drafter, ScoringDrafter):
        return False
    router = getattr(drafter, "router", None)
    return router is not None and router.routes


def chosen_rows(
    drafter: Drafter, params: Any, state: Any, context: RoundContext
) -> ChosenRows | None:
    """What the coming round routes at its root; None for a drafter that does not route.

    A head that routes at every step has its first route of the round here.

    Args:
        state: the drafter's, before the round.
    """
    if not routes(drafter):
        return None
    routed = drafter.route(params, state, context)
    scores = drafter.scores(params, state, context)
    picked = jnp.take_along_axis(scores, routed.indices, axis=1, mode="clip")
    return ChosenRows(indices=routed.indices, scores=picked, valid=routed.valid)
