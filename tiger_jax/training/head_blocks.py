"""Draft blocks of a head: the geometry of decoding, many blocks in one pass, its outputs fed back.

B: examples, P: prefix tokens, L: packed text tokens, S = P + L: rows of the text, M: blocks,
g: draft length, R: bank rows, U: pictures, D: verifier width, W: head width, K: key/value heads,
d: head dim.

    text     [ <s> USER: v v v ][ question ASSISTANT: y1 y2 y3 y4 </s> | ... ]    rows, true states
    block at the root y2:   step 0   (E[y2], f of y1)   ->  g_0, law of y3
                            step 1   (E[y3], g_0)       ->  g_1, law of y4         own outputs
             sees the rows before y1's of its text, its own steps, and of the pictures what the head
             sees: nothing, every row, k routed rows, or a few resampled vectors

The keys and values of a picture's rows depend on nothing else in a one-layer head, so that routing
is a mask over them; decoding (decoding/drafters/head.py) gathers the same rows instead.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key

from tiger_jax.models.head import DraftHead
from tiger_jax.ops.attention import attend_branches
from tiger_jax.routing import router as routing
from tiger_jax.routing.bank import Bank
from tiger_jax.routing.head_router import check_routing, init_head_router
from tiger_jax.routing.router import RouterConfig
from tiger_jax.training import block_layout
from tiger_jax.training.block_layout import at_anchors
from tiger_jax.training.head_batch import HeadBatch

Rows = tuple[Float[Array, "B S K d"], Float[Array, "B S K d"]]


@struct.dataclass
class Unrolled:
    """The steps of every block."""

    states: Float[Array, "B M g W"]
    """g_u: what the law of the u-th draft is read from."""
    scores: Float[Array, "B M s R"] | None
    """Of the router: one route a block (s = 1) or one a step (s = g); None without one."""
    indices: Int[Array, "B M s k"] | None
    """Bank rows that were routed; rows beyond the bank where it has fewer than k."""


@struct.dataclass
class _Text:
    """What all blocks of a batch share."""

    rows: Rows
    """Keys and values of [resampled vectors | prefix | text]."""
    plain: Bool[Array, "B M S"]
    """Rows that a block sees whatever its route is."""
    pictures: Bool[Array, "B S"]
    """Rows of visual tokens, seen only where the route has chosen them."""
    glance: Float[Array, "B W"] | None
    bank: Bank | None


@dataclasses.dataclass(frozen=True)
class BlockHead:
    """A head in its training form."""

    head: DraftHead
    router: RouterConfig | None = None
    route_query: str = "input"
    """What asks the bank: the head's input at the root, or its output there without any picture."""
    route_every: str = "round"

    def __post_init__(self) -> None:
        check_routing(self.head.config, self.router, self.route_query, self.route_every)

    def init_params(self, key: Key[Array, ""]) -> Any:
        """Random parameters, the router's under "router"."""
        params = self.head.init_params(key)
        if self.router is None:
            return params
        key = jax.random.fold_in(key, 1)
        router = init_head_router(key, self.head.config, self.router, self.route_query)
        return params | {"router": router}

    def unroll(self, params: Any, batch: HeadBatch, key: Key[Array, ""]) -> Unrolled:
        """Draft every block along its given tokens.

        Args:
            key: of the selector `random`.
        """
        roots = batch.draft.anchors
        f = self.head.read(params, batch.shared, batch.text_features)
        start = at_anchors(f, roots - 1)
        if self.head.config.layout == "medusa":
            steps = range(batch.draft.block_tokens.shape[2])
            states = [self.head.ahead(params, start, step) for step in steps]
            return Unrolled(jnp.stack(states, axis=2), None, None)
        return _Unrolling(self, params, batch, self._text(params, batch, f), key).run(start)

    def logits(self, params: Any, batch: HeadBatch, unrolled: Unrolled) -> Float[Array, "B M g V"]:
        """Draft logits: entry u is the law of draft u after the root and the drafts before it."""
        return self.head.logits(params, batch.shared, unrolled.states)

    def _text(self, params: Any, batch: HeadBatch, f: Float[Array, "B L W"]) -> _Text:
        head, draft = self.head, batch.draft
        visual = head.config.visual
        size = draft.prefix_tokens.shape[1]
        glances, vectors, last = self._resample(params, batch)
        embeddings, prefix_f = _prefix_pairs(head, params, batch)
        after = jnp.pad(draft.tokens[:, 1:], ((0, 0), (0, 1)))
        words = head.embed(batch.shared, after)
        places = jnp.broadcast_to(
            jnp.arange(size, dtype=jnp.int32)[None], draft.prefix_tokens.shape
        )
        x, _ = head.rows(
            params, jnp.concatenate([embeddings, words], axis=1),
            jnp.concatenate([prefix_f, f], axis=1), _all_glances(glances, last, f.shape[1]),
        )  # fmt: skip
        positions = jnp.concatenate([places, draft.rows], axis=1)
        _, keys, values = head.project(params, x, positions)
        plain = block_layout.visible_before(
            draft.anchors - 1, draft.segments, draft.prefix_lengths, size, inclusive=False
        )
        pictures = jnp.pad(batch.is_visual, ((0, 0), (0, f.shape[1])))
        rows = (keys, values)
        if visual != "full":
            plain = plain & ~pictures[:, None]
        if vectors is not None:
            rows, plain, pictures = self._put_vectors(params, batch, vectors, rows, plain, pictures)
        bank = None
        if visual == "routed":
            tokens = routing.take_rows(x, draft.stream.bank.sources[:, None])[:, 0]
            bank = routing.make_bank(params["router"], tokens, draft.stream.bank)
        glance = None if glances is None else _at_picture(glances, last[:, -1:])[:, 0]
        return _Text(rows, plain, pictures, glance, bank)

    def _resample(self, params: Any, batch: HeadBatch):
        """(global vector [B U W], vectors [B U m W], the last picture at or before each prefix
        token [B P]); Nones without a resampler."""
        if self.head.config.visual != "resampler":
            return None, None, None
        images = batch.draft.stream.bank.images
        count = batch.draft.stream.bank.region_sizes.shape[1]
        vectors, glances = self.head.resample(params, batch.visual, images, count)
        here = jnp.where(batch.is_visual, batch.at_prefix(images), -1)
        return glances, vectors, jax.lax.cummax(here, axis=1)

    def _put_vectors(self, params, batch: HeadBatch, vectors, rows: Rows, plain, pictures):
        """The resampled vectors in front, each at the position of its picture's last token."""
        batch_size, count, each = vectors.shape[:3]
        ends = batch.draft.stream.bank.picture_ends(count)
        places = jnp.repeat(jnp.maximum(ends, 0), each, axis=1)
        flat = vectors.reshape(batch_size, count * each, -1)
        _, keys, values = self.head.project(params, flat, places)
        pairs = zip((keys, values), rows, strict=True)
        rows = tuple(jnp.concatenate(pair, axis=1) for pair in pairs)
        there = jnp.repeat(ends >= 0, each, axis=1)
        seen = jnp.broadcast_to(there[:, None], (*plain.shape[:2], count * each))
        pictures = jnp.pad(pictures, ((0, 0), (count * each, 0)))
        return rows, jnp.concatenate([seen, plain], axis=-1), pictures


@dataclasses.dataclass(frozen=True)
class _Unrolling:
    """The steps of one batch."""

    block: BlockHead
    params: Any
    batch: HeadBatch
    text: _Text
    key: Key[Array, ""]

    def run(self, f: Float[Array, "B M W"]) -> Unrolled:
        draft, head = self.batch.draft, self.block.head
        roots = at_anchors(draft.tokens, draft.anchors)
        first = at_anchors(draft.rows, draft.anchors) - 1
        tokens = jnp.concatenate([roots[..., None], draft.block_tokens[..., :-1]], axis=-1)
        glance = self.text.glance
        if glance is not None:
            glance = jnp.broadcast_to(glance[:, None], f.shape)
        own: list[tuple[Array, Array]] = []
        states, routes, seen = [], [], self.text.plain
        for step in range(tokens.shape[-1]):
            words = head.embed(self.batch.shared, tokens[..., step])
            x, residual = head.rows(self.params, words, f, glance)
            queries, keys, values = head.project(self.params, x, first + step)
            own.append((keys, values))
            if self.text.bank is not None and (step == 0 or self.block.route_every == "step"):
                query = x
                if self.block.route_query == "hidden":
                    query = self._finish(residual, queries, own, self.text.plain)
                routes.append(self._route(query, step))
                seen = self.text.plain | self._chosen(routes[-1][1])
            f = self._finish(residual, queries, own, seen)
            states.append(f)
        scores, indices = zip(*routes, strict=True) if routes else (None, None)
        return Unrolled(
            states=jnp.stack(states, axis=2),
            scores=None if scores is None else jnp.stack(scores, axis=2),
            indices=None if indices is None else jnp.stack(indices, axis=2),
        )

    def _finish(self, residual, queries, own, seen: Bool[Array, "B M S"]) -> Array:
        """The layer's output at one step of every block."""
        mine = tuple(jnp.stack(rows, axis=2) for rows in zip(*own, strict=True))
        everything = jnp.ones((1, 1, 1, len(own)), bool)
        mixed, _ = attend_branches(
            queries[:, :, None], self.text.rows, mine, seen[:, :, None], everything
        )
        mixed = mixed.reshape(*residual.shape[:2], -1)
        return self.block.head.finish(self.params, residual, mixed)

    def _route(self, query: Float[Array, "B M W"], step: int):
        """(scores [B M R], bank rows [B M k])."""
        config, bank = self.block.router, self.text.bank
        keys = jax.random.split(jax.random.fold_in(self.key, step), query.shape[:2])
        scores = routing.route_scores(config, self.params["router"], query, bank, keys)
        return scores, routing.choose(scores, config.routed_tokens, bank.sources).indices

    def _chosen(self, indices: Int[Array, "B M k"]) -> Bool[Array, "B M S"]:
        """The routed rows among all rows of the text."""
        batch, count, _ = indices.shape
        at = jnp.arange(batch)[:, None, None], jnp.arange(count)[None, :, None], indices
        size = self.text.bank.valid.shape[1]
        chosen = jnp.zeros((batch, count, size), bool).at[at].set(True, mode="drop")
        prefix = self.batch.at_prefix(chosen.swapaxes(1, 2)).swapaxes(1, 2)
        missing = self.text.pictures.shape[1] - prefix.shape[-1]
        return jnp.pad(prefix, ((0, 0), (0, 0), (0, missing))) & self.text.pictures[:, None]


def _prefix_pairs(
    head: DraftHead, params: Any, batch: HeadBatch
) -> tuple[Float[Array, "B P D"], Float[Array, "B P W"]]:
    """Embeddings and states of the prefix's rows: a visual token with its own state, a text token's
    state with the token after it.

    Behind a prefix without pictures, which is one token, the first packed text is taken to stand:
    exact for one question, a wrong neighbour of <s> for further ones.
    """
    draft = batch.draft
    words = head.embed(batch.shared, draft.prefix_tokens)
    own = batch.at_prefix(batch.visual).astype(words.dtype)
    merged = jnp.where(batch.is_visual[..., None], own, words)
    first = head.embed(batch.shared, draft.tokens[:, :1])
    after = jnp.concatenate([merged[:, 1:], first], axis=1)
    place = jnp.arange(merged.shape[1])[None]
    ends = (place == draft.prefix_lengths[:, None] - 1)[..., None]
    after = jnp.where(ends, first, after)
    embeddings = jnp.where(batch.is_visual[..., None], merged, after)
    return embeddings, head.read(params, batch.shared, batch.prefix_features)


def _all_glances(glances, last, length: int) -> Float[Array, "B S W"] | None:
    """The global vector of the last picture before each row of [prefix | text]."""
    if glances is None:
        return None
    behind = jnp.broadcast_to(last[:, -1:], (last.shape[0], length))
    return _at_picture(glances, jnp.concatenate([last, behind], axis=1))


def _at_picture(
    glances: Float[Array, "B U W"], pictures: Int[Array, "B T"]
) -> Float[Array, "B T W"]:
    """Zeros before the first picture (-1)."""
    found = jnp.take_along_axis(glances, jnp.maximum(pictures, 0)[..., None], axis=1, mode="clip")
    return jnp.where((pictures >= 0)[..., None], found, 0)
