"""Draft tokens as a tree with parents; a chain is the special case parent[i] = i - 1.

B: batch, N: nodes with the root, D: depth, C: cache rows, V: vocabulary.

    node      0     1    2    3
    token   root    a    b    c        root - a - b
    parent   -1     0    1    0             \\- c

Node 0 is the last committed token, which the verifier has not seen yet. Node i lies at cache row
length + i while it is verified, and at rotary position length + depth[i].
"""

import dataclasses

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int


@dataclasses.dataclass(frozen=True)
class DraftSpec:
    """The static shape of what a drafter proposes; part of the compile key."""

    nodes: int
    """N, the root included."""
    depth: int
    """D, the longest path below the root: the most tokens that one round can accept."""
    is_chain: bool = True
    samples: bool = True
    """At temperature > 0 tokens are drawn from `DraftTree.laws` and judged by min(1, p/q); False:
    tokens are chosen without regard to the verifier's draw, and accepted where they match it."""
    taps: tuple[int, ...] = ()
    """Hidden states of the verifier that the drafter wants to observe."""


@struct.dataclass
class DraftTree:
    """What a drafter proposes in one round."""

    tokens: Int[Array, "B N"]
    parents: Int[Array, "B N"]
    """parents[b, i] < i; the root's is -1."""
    valid: Bool[Array, "B N"]
    """False: a node that was not proposed (a row may draft fewer than its tree holds)."""
    laws: Float[Array, "B N V"] | None = None
    """laws[b, i]: the law that token i was drawn from. None: the draft was greedy or is a guess."""


def chain(
    tokens: Int[Array, "B N"], valid: Bool[Array, "B N"],
    laws: Float[Array, "B N V"] | None = None,
) -> DraftTree:  # fmt: skip
    """A chain: node i continues node i - 1."""
    parents = jnp.broadcast_to(jnp.arange(-1, tokens.shape[1] - 1)[None], tokens.shape)
    return DraftTree(tokens=tokens, parents=parents, valid=valid, laws=laws)


def ancestors(tree: DraftTree, spec: DraftSpec) -> Bool[Array, "B N N"]:
    """seen[b, i, j]: node j is node i or an ancestor of it."""
    batch, nodes = tree.parents.shape
    if spec.is_chain:
        return jnp.broadcast_to(jnp.tri(nodes, dtype=bool)[None], (batch, nodes, nodes))
    own = jnp.broadcast_to(jnp.eye(nodes, dtype=bool)[None], (batch, nodes, nodes))
    parents = jnp.maximum(tree.parents, 0)[:, :, None]

    seen = own
    # Each turn reaches one generation further; the root's clipped parent is the root itself. A loop
    # on the device would cut the round into two graphs.
    for _ in range(spec.depth):
        seen = own | jnp.take_along_axis(seen, parents, axis=1)
    return seen


def depths(seen: Bool[Array, "B N N"]) -> Int[Array, "B N"]:
    """Steps from the root: ancestors without the node itself."""
    return seen.sum(axis=-1, dtype=jnp.int32) - 1


def cache_mask(
    seen: Bool[Array, "B N N"], lengths: Int[Array, "B"], capacity: int
) -> Bool[Array, "B N C"]:
    """Each node sees the committed rows [0, length) and, behind them, its ancestors and itself."""
    batch, nodes, _ = seen.shape
    column = jnp.arange(capacity)[None] - lengths[:, None]
    inside = (column >= 0) & (column < nodes)
    picked = jnp.broadcast_to(jnp.clip(column, 0, nodes - 1)[:, None], (batch, nodes, capacity))
    in_tree = jnp.take_along_axis(seen, picked, axis=2) & inside[:, None]
    return (column < 0)[:, None] | in_tree


def chain_mask(lengths: Int[Array, "B"], count: int, capacity: int) -> Bool[Array, "B T C"]:
    """`cache_mask` of a chain of `count` tokens, without the gather."""
    last = lengths[:, None] + jnp.arange(count)[None]
    return jnp.arange(capacity)[None, None] <= last[:, :, None]
