"""The growing of a tree of guesses, level by level: what every drafter that drafts trees does.

B: batch, W: expanded nodes of a level, V: vocabulary, M: nodes, N: nodes with the root.

    root  level 1  level 2           every node has an id: 0 is the root, then level by level;
     0 --- 1 ------ 4   5            a level lists its nodes parent by parent, best token first
      \\--- 2 ------ 6   7            a node's score is log q of its whole path, so no child is
       \\-- 3                         above its parent

How a level is run is the drafter's own matter (`Expand`); which nodes stand in the tree is decided
here. The tokens do not depend on the verifier's draw and siblings never share one, so the match
rule judges them (`DraftSpec(is_chain=False, samples=False)`) at every temperature.
"""

import dataclasses
import heapq
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from tiger_jax.decoding.draft_tree import DraftSpec, DraftTree
from tiger_jax.decoding.drafters.protocol import RoundContext
from tiger_jax.errors import UserError
from tiger_jax.ops.sampling import NEVER

Expand = Callable[
    [Int[Array, "B W"], Int[Array, "B W"], int, Any], tuple[Float[Array, "B #W V"], Any]
]
"""(tokens, parents, step, inner) -> (drawable logits of what follows each node, inner).

Runs W nodes `step` levels below the root (1, 2, ...; a Python number, levels are unrolled).
`parents` says which of the nodes run at step - 1 each hangs on, 0 .. W_before - 1; at step 1 it is
zeros, the root. Logits that are the same for all nodes of a level may come as [B, 1, V].
"""


@struct.dataclass
class _Nodes:
    """Nodes in the order of their ids."""

    tokens: Int[Array, "B M"]
    scores: Float[Array, "B M"]
    """Sum of log q along the path, float32; about NEVER or below: cannot be drafted."""
    parents: Int[Array, "B M"]
    """Ids; 0 is the root."""


@dataclasses.dataclass(frozen=True)
class DynamicTree:
    """The tree of EAGLE-2 (arXiv 2406.16858): a beam search, then the best of all nodes it saw.

    Each level runs its `width` best nodes and stores the `width` best tokens after each of them;
    the tree is the nodes - 1 best of width + depth * width**2 stored nodes, e.g. 59 of 510 for
    (60, 5, 10).
    """

    nodes: int
    """N, the root included."""
    depth: int
    """Levels that are run below the root."""
    width: int
    """At most the vocabulary's size."""

    def __post_init__(self) -> None:
        if self.depth < 0 or self.width < 1:
            raise UserError(
                f"tree: expected depth >= 0 and width >= 1, got {self.depth} and {self.width}"
            )
        most = 1 + self.width + self.depth * self.width**2
        if not 2 <= self.nodes <= most:
            raise UserError(f"tree: expected 2 to {most} nodes, got {self.nodes}")

    @property
    def spec_depth(self) -> int:
        """The longest path: the last level that is run has children too."""
        return self.depth + 1

    def grow(
        self, logits: Float[Array, "B 1 V"], inner: Any, expand: Expand, context: RoundContext
    ) -> tuple[DraftTree, Any]:
        """Grow from the drawable logits of what follows the root."""
        levels = [_children(_root(context), logits, self.width)]
        first = 1  # id of the level's first node
        for step in range(1, self.spec_depth):
            level = levels[-1]
            _, places = lax.top_k(level.scores, self.width)
            tokens = jnp.take_along_axis(level.tokens, places, axis=1, mode="clip")
            scores = jnp.take_along_axis(level.scores, places, axis=1, mode="clip")
            logits, inner = expand(tokens, places // self.width, step, inner)
            beams = _Beams(scores=scores, ids=first + places)
            levels.append(_children(beams, logits, self.width))
            first += level.tokens.shape[1]
        return _plant(self._best(_join(levels)), context), inner

    def _best(self, stored: _Nodes) -> _Nodes:
        """The best nodes, with ids of their own.

        `top_k` takes the earlier of two equal nodes. A parent is stored before its child and is
        never below it, so it is kept with it even where a law is so sharp that their scores are
        equal.
        """
        _, kept = lax.top_k(stored.scores, self.nodes - 1)
        kept = jnp.sort(kept, axis=1)
        best = jax.tree.map(lambda x: jnp.take_along_axis(x, kept, axis=1, mode="clip"), stored)
        old_ids = jnp.pad(kept + 1, ((0, 0), (1, 0)))
        is_parent = best.parents[:, :, None] == old_ids[:, None]
        # NaN scores alone can part a node from its parent.
        scores = jnp.where(is_parent.any(axis=2), best.scores, NEVER)
        return best.replace(scores=scores, parents=jnp.argmax(is_parent, axis=2).astype(jnp.int32))


@dataclasses.dataclass(frozen=True)
class StaticTree:
    """A fixed tree, as of Medusa (arXiv 2401.10774): each node is a path of ranks.

    (0,) is the likeliest token after the root, (0, 2) the third likeliest after that one. Nodes
    stand level by level, each level sorted.
    """

    choices: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        known = {(), *self.choices}
        if len(known) != len(self.choices) + 1 or not self.choices:
            raise UserError(f"choices: expected different paths below the root, got {self.choices}")
        for path in self.choices:
            if path[:-1] not in known or path[-1] < 0:
                raise UserError(f"choices: expected ranks behind a path of the list, got {path}")

    @property
    def nodes(self) -> int:
        """N, the root included."""
        return len(self.choices) + 1

    @property
    def spec_depth(self) -> int:
        """The longest path."""
        return max(len(path) for path in self.choices)

    def grow(
        self, logits: Float[Array, "B 1 V"], inner: Any, expand: Expand, context: RoundContext
    ) -> tuple[DraftTree, Any]:
        """Grow from the drawable logits of what follows the root; runs nodes with children only."""
        beams, levels = _root(context), []
        first = 1  # id of the level's first node
        for step, layout in enumerate(self._layouts(), start=1):
            children = _children(beams, logits, layout.ranks)
            level = jax.tree.map(lambda x, at=layout.places: x[:, at], children)
            levels.append(level)
            if step < self.spec_depth:
                tokens, scores = level.tokens[:, layout.run], level.scores[:, layout.run]
                beams = _Beams(scores=scores, ids=_rows(first + layout.run, tokens))
                logits, inner = expand(tokens, _rows(layout.run_parents, tokens), step, inner)
            first += len(layout.places)
        return _plant(_join(levels), context), inner

    def _layouts(self) -> "list[_Layout]":
        """The levels, from the first."""
        with_children = {path[:-1] for path in self.choices}
        above, layouts = [()], []
        for depth in range(1, self.spec_depth + 1):
            paths = sorted(path for path in self.choices if len(path) == depth)
            ranks = 1 + max(path[-1] for path in paths)
            parents = np.array([above.index(path[:-1]) for path in paths])
            places = parents * ranks + np.array([path[-1] for path in paths])
            run = np.flatnonzero([path in with_children for path in paths])
            layouts.append(_Layout(ranks, places, run, parents[run]))
            above = [paths[i] for i in run]
        return layouts


def draft_spec(
    tree: DynamicTree | StaticTree | None, draft_length: int, taps: tuple[int, ...]
) -> DraftSpec:
    """Of a drafter that proposes this tree of guesses or, without one, a sampled chain."""
    if tree is None:
        return DraftSpec(nodes=draft_length + 1, depth=draft_length, taps=taps)
    return DraftSpec(tree.nodes, tree.spec_depth, is_chain=False, samples=False, taps=taps)


class _Layout(NamedTuple):
    """One level of a static tree."""

    ranks: int
    """How many of the best tokens after each node above it draws on."""
    places: np.ndarray
    """Where its nodes stand among these: parent * ranks + rank."""
    run: np.ndarray
    """Which of its nodes have children."""
    run_parents: np.ndarray
    """Which of the nodes run before each of them hangs on."""


@struct.dataclass
class _Beams:
    """Nodes that have been run."""

    scores: Float[Array, "B W"]
    ids: Int[Array, "B W"]


def _root(context: RoundContext) -> _Beams:
    ids = jnp.zeros((context.pending.shape[0], 1), jnp.int32)
    return _Beams(scores=ids.astype(jnp.float32), ids=ids)


def _children(beams: _Beams, logits: Float[Array, "B #W V"], count: int) -> _Nodes:
    """The `count` best tokens after each of W beams, [B, W * count].

    Only these are normalised, so that no array of [B, W, V] logs is written.
    """
    logits = logits.astype(jnp.float32)
    best, tokens = lax.top_k(logits, count)
    highest = best[..., :1]
    mass = jnp.exp(logits - highest).sum(axis=-1, keepdims=True)
    scores = beams.scores[..., None] + (best - highest - jnp.log(mass))

    def flat(x: Array) -> Array:
        return jnp.broadcast_to(x, scores.shape).reshape(scores.shape[0], -1)

    return _Nodes(tokens=flat(tokens), scores=flat(scores), parents=flat(beams.ids[..., None]))


def _join(levels: list[_Nodes]) -> _Nodes:
    return jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), *levels)


def _rows(values: np.ndarray, like: Int[Array, "B W"]) -> Int[Array, "B W"]:
    """The same numbers in every row."""
    return jnp.broadcast_to(jnp.asarray(values, jnp.int32)[None], like.shape)


def _plant(nodes: _Nodes, context: RoundContext) -> DraftTree:
    """The tree with its root; what cannot be drafted, and rows that are done, are not proposed."""
    valid: Bool[Array, "B M"] = (nodes.scores > NEVER / 2) & context.active[:, None]
    below = ((0, 0), (1, 0))
    return DraftTree(
        tokens=jnp.concatenate([context.pending[:, None], nodes.tokens], axis=1),
        parents=jnp.pad(nodes.parents, below, constant_values=-1),
        valid=jnp.pad(valid, below, constant_values=True),
    )


def static_choices(
    accuracies: Sequence[Sequence[float]] | Float[np.ndarray, "depth ranks"], nodes: int
) -> tuple[tuple[int, ...], ...]:
    """The static tree of `nodes` nodes, the root included, that promises the longest accepted path.

    Adds, again and again, the path with the highest product of accuracies whose parent is in.

    Args:
        accuracies: [d][r]: how often the (r + 1)-th likeliest token at level d + 1 is the right one
            where everything above it is.
    """
    table = np.asarray(accuracies, np.float64)
    most = sum(table.shape[1] ** depth for depth in range(table.shape[0] + 1))
    if not 2 <= nodes <= most:
        raise UserError(f"nodes: expected 2 to {most} for accuracies {table.shape}, got {nodes}")
    chosen: list[tuple[int, ...]] = []
    queue = [(-accuracy, 1, (rank,)) for rank, accuracy in enumerate(table[0])]
    heapq.heapify(queue)
    while len(chosen) < nodes - 1:
        product, depth, path = heapq.heappop(queue)
        chosen.append(path)
        for rank, accuracy in enumerate(table[depth] if depth < len(table) else ()):
            heapq.heappush(queue, (product * accuracy, depth + 1, (*path, rank)))
    return tuple(chosen)
