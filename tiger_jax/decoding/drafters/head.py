"""A head on the verifier's own hidden states as drafter: chains and trees, every visual input.

B: batch, S: prompt length, L: stream length, R: bank rows, k: routed tokens, T: rows, C: cache
rows, D, W, X, F: widths of the verifier, the head, its layer's input and the tapped states, V:
vocabulary. Where rows stand in the cache: head_cache.py.

Row p of a text is the pair (E[t_{p+1}], f_p) at position p; the last one carries the root. A row's
key and value depend on its own pair alone: one layer has no deeper state. So rows made of the
verifier's true states stay right for the whole request, only the rows that draft need attention,
and a route is a copy of k cached bank rows to the front.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from tiger_jax.decoding.draft_tree import DraftSpec, DraftTree
from tiger_jax.decoding.drafters.chain import ChainGrowth
from tiger_jax.decoding.drafters.head_cache import (
    Growing,
    HeadState,
    Rows,
    committed_mask,
    last_of,
    root_end,
    shifted_mask,
    spread,
    write_rows,
)
from tiger_jax.decoding.drafters.protocol import Commit, PromptArrays, RoundContext
from tiger_jax.decoding.drafters.tree import DynamicTree, StaticTree, draft_spec
from tiger_jax.errors import UserError
from tiger_jax.models.head import DraftHead, Params
from tiger_jax.ops import sampling
from tiger_jax.ops.attention import attend
from tiger_jax.ops.gather import take_rows
from tiger_jax.ops.kv_cache import KVCache
from tiger_jax.ops.sampling import NEVER, Purpose, SamplingMode
from tiger_jax.routing import router as routing
from tiger_jax.routing.bank import BankLayout, Stream
from tiger_jax.routing.head_router import check_routing
from tiger_jax.routing.router import RouterConfig

TEXT = -1
"""`Stream.visual` of a text token."""


@dataclasses.dataclass(frozen=True)
class HeadDrafter:
    """Drafts a chain of up to `draft_length` tokens, or a tree.

    Its parameters are {"head": the head's tree, the router in it under "router", "shared": the
    verifier's `Shared`}. A prompt comes with the stream of `stream_query`. The tap 0 is there for
    the prompt alone: its embeddings, pictures in their places. A prompt should end in text.
    """

    head: DraftHead
    draft_length: int
    """Of a chain; a tree has its own depth."""
    tree: DynamicTree | StaticTree | None = None
    router: RouterConfig | None = None
    route_query: str = "input"
    """What asks the router: `input`, the layer's input at the root's row, or `hidden`, the layer's
    output there without any routed token."""
    route_every: str = "round"
    """round: once, at the root; step: anew for every token of a chain, and for every level of a
    tree, whose branches share it."""
    confidence: float = 0.0
    """Where a row stops drafting early: chain.ChainGrowth."""

    def __post_init__(self) -> None:
        check_routing(self.head.config, self.router, self.route_query, self.route_every)
        if self.draft_length < 1:
            raise UserError(f"draft_length: expected at least 1, got {self.draft_length}")
        if self.head.config.layout == "medusa":
            raise UserError("layout: expected one with a layer, got medusa")
        if self.tree is not None and self.confidence > 0:
            raise UserError(f"confidence: expected 0 with a tree, got {self.confidence}")

    @property
    def spec(self) -> DraftSpec:
        """A sampled chain, or a tree of guesses."""
        return draft_spec(self.tree, self.draft_length, (0, *self.head.config.taps))

    @property
    def stream_query(self) -> str:
        """Which rows the stream of a prompt has to have."""
        return "full" if self.head.config.visual == "full" else "text_only"

    @property
    def routed_tokens(self) -> int:
        """k; 0: nothing is routed."""
        return self.router.routed_tokens if self.head.config.visual == "routed" else 0

    @property
    def stream_needs(self) -> tuple[str, int]:
        """(query, pooled tokens a picture) of the streams that prompts have to bring."""
        return self.stream_query, 1

    def prefill(
        self, params: Params, prompt: PromptArrays, taps: Float[Array, "B S F"], capacity: int
    ) -> HeadState:
        """Project the stream and what stands before it; nothing is attended to."""
        stream = prompt.stream
        if stream is None:
            raise ValueError("prompt.stream: expected the prompts' streams, got None")
        words, states = jnp.split(taps, [self.head.config.hidden_size], axis=-1)
        bank = jnp.where(
            (stream.bank.rows >= 0)[..., None], take_rows(words, stream.bank.sources), 0
        ).astype(self.head.dtype)
        state = self._empty(prompt, states, capacity)
        glances = None
        if self.head.config.visual == "resampler":
            state, glances = self._add_vectors(params, state, stream, bank)
        if self.routed_tokens:
            state = self._add_bank(params, state, stream.bank, bank, states)
        # A text row carries the embedding of what follows it, be it a picture.
        after = stream.sources + (stream.visual == TEXT)
        following = take_rows(words, after).astype(self.head.dtype)
        features = self._read(params, take_rows(states, stream.sources))
        rows = self._rows(params, following, features, stream.sources, glances)
        starts = jnp.full_like(stream.lengths, state.valid.shape[1])
        return state.replace(cache=write_rows(state.cache, rows.keys, rows.values, starts))

    def _empty(
        self, prompt: PromptArrays, states: Float[Array, "B S F"], capacity: int
    ) -> HeadState:
        """A state without rows; the row of the last prompt token waits for the root."""
        cfg, stream = self.head.config, prompt.stream
        batch, size = stream.tokens.shape
        front = routed = self.routed_tokens
        if cfg.visual == "resampler":
            front = stream.bank.region_sizes.shape[1] * (cfg.resampler_queries - 1)
        rows = front + size + capacity - prompt.tokens.shape[1] + self._more_rows
        last = take_rows(states, (prompt.lengths - 1)[:, None])
        fresh = self.spec.depth + 1
        return HeadState(
            cache=KVCache.zeros(
                1, (batch, cfg.num_kv_heads, rows, cfg.head_dim), self.head.dtype
            ),
            offsets=stream.lengths - prompt.lengths,
            valid=jnp.zeros((batch, front), bool), indices=jnp.zeros((batch, routed), jnp.int32),
            tokens=jnp.zeros((batch, fresh), jnp.int32),
            taps=jnp.pad(last, ((0, 0), (0, fresh - 1), (0, 0))),
            count=jnp.ones((batch,), jnp.int32),
        )  # fmt: skip

    @property
    def _more_rows(self) -> int:
        """Rows that a draft runs beyond its nodes: a beam search keeps only some of them."""
        if not isinstance(self.tree, DynamicTree):
            return 0
        return max(self.tree.depth * self.tree.width - self.tree.nodes, 0)

    def _add_vectors(
        self, params: Params, state: HeadState, stream: Stream, bank: Float[Array, "B R D"]
    ) -> tuple[HeadState, Float[Array, "B L W"]]:
        """A resampler's vectors at the end of their pictures; the global vector for each row."""
        layout, head = stream.bank, params["head"]
        count = layout.region_sizes.shape[1]
        vectors, whole = self.head.resample(head, bank, layout.images, count)
        last = layout.picture_ends(count)
        each = vectors.shape[2]
        flat = vectors.reshape(vectors.shape[0], count * each, -1)
        positions = jnp.repeat(jnp.maximum(last, 0), each, axis=1)
        _, keys, values = self.head.project(head, flat, positions)
        before = (last >= 0)[:, None] & (last[:, None] < stream.sources[..., None])
        return state.replace(
            cache=write_rows(state.cache, keys, values, jnp.zeros_like(stream.lengths)),
            valid=jnp.repeat(last >= 0, each, axis=1),
            glance=last_of(whole, (last >= 0).sum(axis=1)[:, None])[:, 0],
        ), last_of(whole, before.sum(axis=-1))

    def _add_bank(
        self, params: Params, state: HeadState, layout: BankLayout, bank: Float[Array, "B R D"],
        states: Float[Array, "B S F"],
    ) -> HeadState:  # fmt: skip
        """The bank's scored projections, and the keys and values that routes copy."""
        features = self._read(params, take_rows(states, layout.sources))
        rows = self._rows(params, bank, features, layout.sources)
        scored = routing.make_bank(params["head"].get("router"), rows.x, layout)
        # The tokens themselves are not needed again, and at 5,120 numbers each they are large.
        return state.replace(
            bank=scored.replace(tokens=scored.tokens[..., :0]),
            bank_rows=(rows.keys.swapaxes(1, 2), rows.values.swapaxes(1, 2)),
        )

    def propose(
        self, params: Params, state: HeadState, context: RoundContext, mode: SamplingMode
    ) -> tuple[DraftTree, HeadState]:
        """Bring the cache up to the root, route, draft."""
        state, root = self._choose(params, state, context)
        ends = root_end(state, context)
        g = self._attend(params, root, state.cache, committed_mask(state.valid, ends, state.cache))
        cache, batch = state.cache, ends.shape[0]
        draft = Growing(
            keys=cache.keys, values=cache.values, g=g, valid=state.valid, indices=state.indices,
            seen=jnp.zeros((batch, 1, 0), bool),
        )  # fmt: skip
        logits = self._logits(params, g, context)

        def advance(token: Array, step: Array, draft: Growing) -> tuple[Array, Growing]:
            return self.advance(params, state, context, token, step, draft)

        def expand(
            tokens: Array, parents: Array, step: int, draft: Growing
        ) -> tuple[Array, Growing]:
            return self._expand(params, state, context, tokens, parents, step, draft)

        if self.tree is None:
            growth = ChainGrowth(self.draft_length, self.confidence)
            tree, draft = growth.grow(logits, draft, advance, context, mode)
        else:
            tree, draft = self.tree.grow(logits, draft, expand, context)
        return tree, state.replace(
            cache=KVCache(draft.keys, draft.values), valid=draft.valid, indices=draft.indices
        )

    def observe(self, params: Params, state: HeadState, commit: Commit) -> HeadState:
        """Keep the committed tokens and the verifier's states there for the next refresh."""
        del params
        return state.replace(
            tokens=jnp.roll(commit.tokens, -1, axis=1), count=commit.accepted + 1,
            taps=commit.taps[..., self.head.config.hidden_size :],
        )  # fmt: skip

    def route(self, params: Params, state: HeadState, context: RoundContext) -> HeadState:
        """Write the fresh rows and choose; a head that does not route only writes."""
        return self._choose(params, state, context)[0]

    def _choose(
        self, params: Params, state: HeadState, context: RoundContext
    ) -> tuple[HeadState, Rows]:
        """`route`, with the root's row."""
        state, root = self._refresh(params, state, context)
        if not self.routed_tokens:
            return state, root
        query = self._query(params, state, context, root)
        found = self._route(params, state, context, query, 0, state.cache)
        return state.replace(**found), root

    def scores(
        self, params: Params, state: HeadState, context: RoundContext
    ) -> Float[Array, "B R"] | None:
        """What `route` chooses by, for every bank token; None for a head that does not route."""
        if not self.routed_tokens:
            return None
        state, root = self._refresh(params, state, context)
        query = self._query(params, state, context, root)
        return self._scores(params, state, context, query, 0)[:, 0]

    def _query(
        self, params: Params, state: HeadState, context: RoundContext, root: Rows
    ) -> Float[Array, "B 1 X"]:
        """What asks the router at the root."""
        if self.route_query == "input":
            return root.x
        nothing = jnp.zeros_like(state.valid)
        mask = committed_mask(nothing, root_end(state, context), state.cache)
        return self._attend(params, root, state.cache, mask)

    def _refresh(
        self, params: Params, state: HeadState, context: RoundContext
    ) -> tuple[HeadState, Rows]:
        """Write the rows whose true states came with the last commit; the last carries the root."""
        # Rows that are done commit nothing: what they write lies behind their end.
        count = jnp.where(context.active, state.count, 0)[:, None]
        place = jnp.arange(state.tokens.shape[1])[None]
        tokens = jnp.where(place == count - 1, context.pending[:, None], state.tokens)
        words = self.head.embed(params["shared"], tokens)
        positions = context.lengths[:, None] - count + place
        features = self._read(params, state.taps)
        rows = self._rows(params, words, features, positions, spread(state.glance, words))
        starts = root_end(state, context) - count[:, 0]
        cache = write_rows(state.cache, rows.keys, rows.values, starts)
        last = jnp.maximum(count - 1, 0)
        return state.replace(cache=cache), jax.tree.map(lambda rows: take_rows(rows, last), rows)

    def _route(
        self, params: Params, state: HeadState, context: RoundContext,
        query: Float[Array, "B T X"], step: Array | int, cache: KVCache,
    ) -> dict[str, Array | KVCache]:  # fmt: skip
        """The k bank rows that fit best, copied to the front: `cache`, `indices` and `valid`."""
        scores = self._scores(params, state, context, query, step)
        routed = routing.choose(scores, self.router.routed_tokens, state.bank.sources)

        def copy(rows: Array, bank_rows: Array) -> Array:
            index = routed.indices[:, 0][:, None, :, None]
            picked = jnp.take_along_axis(bank_rows, index, axis=2, mode="clip")
            return lax.dynamic_update_slice(rows, picked, (0, 0, 0, 0))

        keys, values = (
            (copy(rows[0], bank_rows),)
            for rows, bank_rows in zip((cache.keys, cache.values), state.bank_rows, strict=True)
        )
        return {
            "cache": cache.replace(keys=keys, values=values), "indices": routed.indices[:, 0],
            "valid": routed.valid[:, 0],
        }  # fmt: skip

    def _scores(
        self, params: Params, state: HeadState, context: RoundContext,
        query: Float[Array, "B T X"], step: Array | int,
    ) -> Float[Array, "B 1 R"]:  # fmt: skip
        """How well the bank fits; the branches of a tree share one route."""
        places = jnp.broadcast_to((context.lengths + step)[:, None], query.shape[:2])
        keys = sampling.draw_keys(context.sampling.seeds, places, Purpose.ROUTE)
        scores = routing.route_scores(
            self.router, params["head"].get("router"), query, state.bank, keys
        )
        if query.shape[1] > 1:  # each branch has a say
            shared = jax.nn.softmax(scores, axis=-1).mean(axis=1, keepdims=True)
            scores = jnp.where(state.bank.valid[:, None], shared, NEVER)
        return scores

    def advance(
        self, params: Params, state: HeadState, context: RoundContext, token: Int[Array, "B 1"],
        step: Int[Array, ""], draft: Growing,
    ) -> tuple[Float[Array, "B 1 V"], Growing]:  # fmt: skip
        """One more token of a chain."""
        words = self.head.embed(params["shared"], token)
        positions = (context.lengths - 1 + step)[:, None]
        rows = self._rows(params, words, draft.g, positions, spread(state.glance, words))
        ends = root_end(state, context) + step
        if self.route_every == "step":
            found = self._route(params, state, context, rows.x, step, draft)
            draft = found.pop("cache").replace(**found)
        draft = write_rows(draft, rows.keys, rows.values, ends - 1)
        g = self._attend(params, rows, draft, committed_mask(draft.valid, ends, draft))
        return self._logits(params, g, context), draft.replace(g=g)

    def _expand(
        self, params: Params, state: HeadState, context: RoundContext, tokens: Int[Array, "B T"],
        parents: Int[Array, "B T"], step: int, draft: Growing,
    ) -> tuple[Float[Array, "B T V"], Growing]:  # fmt: skip
        """One level of a tree: each row sees the committed rows, its ancestors and itself."""
        words = self.head.embed(params["shared"], tokens)
        positions = jnp.broadcast_to((context.lengths - 1 + step)[:, None], tokens.shape)
        features = take_rows(draft.g, parents)
        rows = self._rows(params, words, features, positions, spread(state.glance, words))
        if self.route_every == "step":
            found = self._route(params, state, context, rows.x, step, draft)
            draft = found.pop("cache").replace(**found)
        ends, before = root_end(state, context), draft.seen.shape[2]
        draft = write_rows(draft, rows.keys, rows.values, ends + before)
        own = jnp.eye(tokens.shape[1], dtype=bool)[None]
        own = jnp.broadcast_to(own, (tokens.shape[0], *own.shape[1:]))
        seen = jnp.concatenate([take_rows(draft.seen, parents), own], axis=2)
        mask = committed_mask(draft.valid, ends, draft) | shifted_mask(seen, ends, draft.capacity)
        g = self._attend(params, rows, draft, mask)
        return self._logits(params, g, context), draft.replace(g=g, seen=seen)

    def _read(self, params: Params, tapped: Float[Array, "B T F"]) -> Float[Array, "B T W"]:
        return self.head.read(params["head"], params["shared"], tapped)

    def _rows(
        self, params: Params, words: Float[Array, "B T D"], features: Float[Array, "B T W"],
        positions: Int[Array, "B T"], glances: Float[Array, "B T W"] | None = None,
    ) -> Rows:  # fmt: skip
        x, residual = self.head.rows(params["head"], words, features, glances)
        return Rows(x, residual, *self.head.project(params["head"], x, positions))

    def _attend(
        self, params: Params, rows: Rows, cache: KVCache, mask: Bool[Array, "B #T C"]
    ) -> Float[Array, "B T W"]:
        """g of rows that stand in the cache already."""
        mask = jnp.broadcast_to(mask, (*rows.x.shape[:2], mask.shape[2]))
        mixed = attend(rows.queries, cache.keys[0], cache.values[0], mask)
        return self.head.finish(params["head"], rows.residual, mixed)

    def _logits(
        self, params: Params, g: Float[Array, "B T W"], context: RoundContext
    ) -> Float[Array, "B T V"]:
        logits = self.head.logits(params["head"], params["shared"], g)
        return sampling.mask_undrawable(logits, context.drawable)
