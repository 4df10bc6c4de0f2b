"""Text-conditioned routing: score the visual bank with the drafter's state, keep the k best.

B: batch, M: routes (1 a round in decoding, one a block in training), R: bank rows, k: routed
tokens, D: width, E: width of queries and keys (the paper's is D), W: width of a visual row.

    q = W_q h        s_i = q . W_v v_i / sqrt(E)        S = TopK(s; k)   (Eq. routing-query .. topk)

The text alone does not know where the thing that it has just named stands, and so not what comes
next to it. `looks` (ours, 0 in the paper) lets the state look over the whole bank first, one query
of attention a look: h <- h + W_o attend(W_l h, bank).

A hard top-k passes no gradient. The router learns from the verifier's attention, which the scores
of the whole bank are trained against (training/distill_loss.py), or through a gate.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key

from tiger_jax.errors import UserError
from tiger_jax.models.interface import Params
from tiger_jax.ops.sampling import NEVER
from tiger_jax.routing.bank import Bank, BankLayout

SELECTORS = ("tiger", "random", "image_only", "sparsevlm", "vispruner", "full")
LOOK_ONCE = ("sparsevlm", "vispruner")
"""Selectors whose scores are made from the prompt, before the first round."""
LEARNED = ("tiger", "image_only")
"""Selectors that need trained weights."""
QUERIES = ("visual", "text_only")
GATES = ("none", "straight_through", "sigmoid")
POOLED = (1, 4, 9, 16)
INIT_SCALE = 0.02
LOOK_HEADS = 4


@dataclasses.dataclass(frozen=True)
class RouterConfig:
    """How a drafter sees pictures. Part of the compile key."""

    selector: str = "tiger"
    routed_tokens: int = 8
    """k; fewer are taken from a smaller bank."""
    pooled_tokens: int = 1
    """Pooled tokens a picture in the prefix stream: a square grid of them."""
    query: str = "visual"
    """text_only: no visual token stands in the prefix stream; without looks the query has then seen
    no picture."""
    looks: int = 0
    """Attention steps from the state to the whole bank before it becomes the query."""
    gate: str = "none"
    """What multiplies a routed token; none is the paper's forward pass."""
    width: int = 0
    """E, at which queries and keys are compared; 0 = the width of the state that asks."""

    def __post_init__(self) -> None:
        for name, allowed in (
            ("selector", SELECTORS), ("query", QUERIES), ("gate", GATES), ("pooled_tokens", POOLED)
        ):  # fmt: skip
            value = getattr(self, name)
            if value not in allowed:
                choices = ", ".join(map(str, allowed))
                raise UserError(f"{name}: expected one of {choices}, got {value!r}")
        if self.routed_tokens < 1:
            raise UserError(f"routed_tokens: expected at least 1, got {self.routed_tokens}")
        if self.width < 0:
            raise UserError(f"width: expected at least 0, got {self.width}")
        if not 0 <= self.looks <= 4:
            raise UserError(f"looks: expected 0..4, got {self.looks}")

    @property
    def routes(self) -> bool:
        """False for `full`, which has every visual token in the stream."""
        return self.selector != "full"

    @property
    def stream_query(self) -> str:
        """What stands in the pictures' place in the stream: `query` of data.visual_stream."""
        return self.query if self.routes else "full"


@struct.dataclass
class Routed:
    """Chosen bank rows."""

    indices: Int[Array, "B M k"]
    """In the order of the prompt, which routed tokens keep; rows beyond the bank's end stand last
    and are not valid."""
    valid: Bool[Array, "B M k"]


def init_router(
    key: Array, width: int, looks: int = 0, token_width: int | None = None, inner: int = 0
) -> Params:
    """W_q and W_v, normal as the decoder's own matrices are, the query of image_only, and looks.

    Visual tokens are far from unit size: with W near orthogonal the first scores would be tens
    apart, and their softmax has no gradient.

    Args:
        width: of the state that asks.
        token_width: of the bank's tokens; by default the same.
        inner: E, RouterConfig.width.
    """
    inner, token_width = inner or width, token_width or width

    def matrix(number: int, inputs: int, outputs: int = inner) -> dict[str, Array]:
        drawn = jax.random.normal(jax.random.fold_in(key, number), (inputs, outputs), jnp.float32)
        return {"kernel": INIT_SCALE * drawn}

    router = {"query": matrix(0, width), "key": matrix(1, token_width)}
    for look in range(looks):
        first = 10 + 4 * look
        router[f"look_{look}"] = {
            "query": matrix(first, width), "key": matrix(first + 1, token_width),
            "value": matrix(first + 2, token_width), "out": matrix(first + 3, inner, width),
        }  # fmt: skip
    saliency = jax.random.normal(jax.random.fold_in(key, 2), (inner,), jnp.float32)
    return router | {"saliency": INIT_SCALE * saliency}


def make_bank(
    router: Params | None, tokens: Float[Array, "B R W"], layout: BankLayout,
    saliency: Float[Array, "B R"] | None = None,
) -> Bank:  # fmt: skip
    """The bank with its cached projections: W_v v, and what the looks read.

    Selectors that learn nothing have no router; their bank has no keys. The router reads a token's
    embedding, not what is added to it later.
    """

    def heads(weights: Params) -> Array:
        return _project(seen, weights).reshape(*seen.shape[:2], LOOK_HEADS, -1)

    keys, looks = tokens[..., :0].astype(jnp.float32), ()
    if router is not None:
        seen = tokens[..., : router["key"]["kernel"].shape[0]]
        keys = _project(seen, router["key"])
        names = sorted(name for name in router if name.startswith("look_"))
        looks = tuple((heads(router[n]["key"]), heads(router[n]["value"])) for n in names)
    return Bank(
        tokens=tokens, keys=keys, sources=layout.sources, positions=layout.positions,
        valid=layout.rows >= 0, saliency=saliency, looks=looks,
    )  # fmt: skip


def _project(x: Float[Array, "*B D"], weights: Params) -> Float[Array, "*B E"]:
    """x W in float32: top-k must not turn on rounding."""
    return x.astype(jnp.float32) @ weights["kernel"].astype(jnp.float32)


def look_over(router: Params, hidden: Float[Array, "B M D"], bank: Bank) -> Float[Array, "B M D"]:
    """The state after its looks at the bank, float32."""
    state = hidden.astype(jnp.float32)
    for number, (keys, values) in enumerate(bank.looks):
        look = router[f"look_{number}"]
        query = _project(state, look["query"]).reshape(*state.shape[:2], LOOK_HEADS, -1)
        scores = jnp.einsum("bmhd,brhd->bhmr", query, keys) * keys.shape[-1] ** -0.5
        weights = jax.nn.softmax(jnp.where(bank.valid[:, None, None], scores, NEVER), axis=-1)
        seen = jnp.einsum("bhmr,brhd->bmhd", weights, values)
        seen = seen.reshape(*state.shape[:2], -1)
        state = state + _project(seen, look["out"])
    return state


def route_scores(
    config: RouterConfig, router: Params | None, hidden: Float[Array, "B M D"], bank: Bank,
    keys: Key[Array, "B M"] | None = None,
) -> Float[Array, "B M R"]:  # fmt: skip
    """How well each bank token fits, float32; NEVER at padding.

    Args:
        hidden: the drafter's last hidden state (after the final norm) at the last committed token.
        keys: for the selector `random`.
    """
    shape = (*hidden.shape[:2], bank.tokens.shape[1])
    if config.selector == "random":
        uniform = jax.vmap(jax.vmap(lambda key: jax.random.uniform(key, shape[2:])))
        scores = uniform(keys)
    elif config.selector in LOOK_ONCE:
        scores = jnp.broadcast_to(bank.saliency[:, None], shape)
    else:
        if config.selector == "image_only":
            saliency = router["saliency"].astype(jnp.float32)[None, None]
            query = jnp.broadcast_to(saliency, (*hidden.shape[:2], saliency.shape[-1]))
        else:
            query = _project(look_over(router, hidden, bank), router["query"])
        scores = jnp.einsum("bme,bre->bmr", query, bank.keys) * query.shape[-1] ** -0.5
    return jnp.where(bank.valid[:, None], scores, NEVER)


def choose(scores: Float[Array, "B M R"], k: int, order: Int[Array, "B R"] | None = None) -> Routed:
    """The k best rows, ties to the lower index; padded rows never win.

    Args:
        order: in which the chosen rows stand, their `sources`; by default that of the bank.
    """
    size = scores.shape[-1]
    if size < k:
        scores = jnp.pad(scores, ((0, 0), (0, 0), (0, k - size)), constant_values=NEVER)
    best, indices = lax.top_k(lax.stop_gradient(scores), k)
    valid = best > NEVER
    rank = indices if order is None else take_rows(order, indices)
    order = jnp.argsort(jnp.where(valid, rank, jnp.iinfo(jnp.int32).max), axis=-1, stable=True)
    indices = jnp.where(valid, indices, scores.shape[-1])
    return Routed(
        indices=jnp.take_along_axis(indices, order, axis=-1),
        valid=jnp.take_along_axis(valid, order, axis=-1),
    )


def take_rows(values: Array, rows: Int[Array, "B M k"]) -> Array:
    """values[b, rows[b, m, i], ...]."""
    flat = rows.reshape(rows.shape[0], -1)
    flat = flat.reshape(*flat.shape, *[1] * (values.ndim - 2))
    picked = jnp.take_along_axis(values, flat, axis=1, mode="clip")
    return picked.reshape(*rows.shape, *values.shape[2:])


def take_routed(
    bank: Bank, routed: Routed, scores: Float[Array, "B M R"], gate: str = "none"
) -> tuple[Float[Array, "B M k W"], Int[Array, "B M k *A"]]:
    """Embeddings and original rotary positions of the routed tokens."""

    tokens = take_rows(bank.tokens, routed.indices)
    positions = take_rows(bank.positions, routed.indices)
    if gate == "none":
        return tokens, positions
    picked = jnp.take_along_axis(scores, routed.indices, axis=-1, mode="clip")
    if gate == "sigmoid":
        weight = jax.nn.sigmoid(picked)
    else:
        law = jax.nn.softmax(scores, axis=-1)
        p = jnp.take_along_axis(law, routed.indices, axis=-1, mode="clip")
        weight = 1.0 + p - lax.stop_gradient(p)
    return tokens * weight[..., None].astype(tokens.dtype), positions
