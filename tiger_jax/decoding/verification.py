"""Which draft tokens the verifier accepts, and which token it puts in their place.

B: batch, N: nodes with the root, D: depth, V: vocabulary.

Two rules, both exact (the emitted tokens follow the verifier's law whatever the drafter does):

match     at every node the verifier draws its own next token; walk to the child that carries it.
          For greedy decoding and for drafts that are guesses (heads, tables, any tree).
residual  accept x ~ q with probability min(1, p(x)/q(x)), at the first rejection draw from
          max(p - q, 0) normalised (Leviathan et al., arXiv 2211.17192). For sampled chains: it
          accepts sum min(p, q), matching only sum p q.
"""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from tiger_jax.decoding.draft_tree import DraftSpec, DraftTree


@struct.dataclass
class Acceptance:
    """The outcome of one verification."""

    path: Int[Array, "B D1"]
    """Node ids from the root along the accepted path; entries behind `accepted` are padding."""
    accepted: Int[Array, "B"]
    """A: draft tokens accepted, 0 .. D."""
    next_token: Int[Array, "B"]
    """The verifier's token after the accepted path: replacement or bonus."""


def accept_matches(tree: DraftTree, spec: DraftSpec, choices: Int[Array, "B N"]) -> Acceptance:
    """Match rule; choices[b, i] is the verifier's own next token after node i."""
    if spec.is_chain:
        hits = (tree.tokens[:, 1:] == choices[:, :-1]) & tree.valid[:, 1:]
        path, accepted = _chain_prefix(hits)
    else:
        path, accepted = _walk(tree, spec, choices)
    return Acceptance(path=path, accepted=accepted, next_token=_at(choices, _last(path, accepted)))


def accept_residual(
    tree: DraftTree, laws: Float[Array, "B N V"],
    coins: Float[Array, "B D"],
) -> tuple[Int[Array, "B D1"], Int[Array, "B"], Float[Array, "B V"], Bool[Array, "B"]]:  # fmt: skip
    """Residual rule for a sampled chain.

    Args:
        tree: a chain with `laws` (q).
        laws: the verifier's law p after each node.
        coins: uniform [0, 1) numbers, one per draft token.

    Returns:
        path, A, the law of the next token, and whether that law is a residual (a rejected draft
        stands there) rather than p itself (nothing was proposed there, or the block is full).
    """
    drafts = tree.tokens[:, 1:, None]
    p = jnp.take_along_axis(laws[:, :-1], drafts, axis=2, mode="clip")[..., 0]
    q = jnp.take_along_axis(tree.laws[:, 1:], drafts, axis=2, mode="clip")[..., 0]
    # coin < p / q without the division: q > 0 for a drawn token, and p = 0 always rejects.
    hits = (coins * q < p) & tree.valid[:, 1:]
    path, accepted = _chain_prefix(hits)
    stop = jnp.minimum(accepted + 1, tree.tokens.shape[1] - 1)
    rejected = (accepted < tree.tokens.shape[1] - 1) & _at(tree.valid, stop)
    after = _rows_at(laws, accepted)
    residual = jnp.maximum(after - _rows_at(tree.laws, stop), 0.0)
    mass = residual.sum(axis=-1, keepdims=True)
    # A rejection needs p < q somewhere, so p > q elsewhere; rounding alone can leave no mass.
    usable = rejected[:, None] & (mass > 0)
    law = jnp.where(usable, residual / jnp.where(mass > 0, mass, 1.0), after)
    return path, accepted, law, rejected


def _chain_prefix(hits: Bool[Array, "B D"]) -> tuple[Int[Array, "B D1"], Int[Array, "B"]]:
    batch, depth = hits.shape
    path = jnp.broadcast_to(jnp.arange(depth + 1, dtype=jnp.int32)[None], (batch, depth + 1))
    return path, jnp.cumprod(hits.astype(jnp.int32), axis=1).sum(axis=1, dtype=jnp.int32)


def _walk(
    tree: DraftTree, spec: DraftSpec, choices: Int[Array, "B N"]
) -> tuple[Int[Array, "B D1"], Int[Array, "B"]]:
    """From the root to the child that carries the verifier's token, while there is one."""
    current = jnp.zeros(tree.tokens.shape[0], jnp.int32)
    moving = jnp.ones_like(current, dtype=bool)
    path, accepted = [current], jnp.zeros_like(current)
    for _ in range(spec.depth):
        wanted = _at(choices, current)[:, None]
        hit = tree.valid & (tree.parents == current[:, None]) & (tree.tokens == wanted)
        moving = moving & hit.any(axis=1)
        # Siblings with equal tokens: the first one is taken, the other is never reached.
        current = jnp.where(moving, jnp.argmax(hit, axis=1).astype(jnp.int32), current)
        accepted = accepted + moving
        path.append(current)
    return jnp.stack(path, axis=1), accepted


def _last(path: Int[Array, "B D1"], accepted: Int[Array, "B"]) -> Int[Array, "B"]:
    return _at(path, accepted)


def _at(values: Array, index: Int[Array, "B"]) -> Array:
    """values[b, index[b]]."""
    return jnp.take_along_axis(values, index[:, None], axis=1, mode="clip")[:, 0]


def _rows_at(values: Float[Array, "B N V"], index: Int[Array, "B"]) -> Float[Array, "B V"]:
    """values[b, index[b], :]."""
    return jnp.take_along_axis(values, index[:, None, None], axis=1, mode="clip")[:, 0]
