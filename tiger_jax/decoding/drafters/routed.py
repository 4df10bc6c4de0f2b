"""A small vision-language model as drafter that sees k routed visual tokens a round.

B: batch, C: cache rows, L: stream length, R: bank rows, k: routed tokens, g: draft length,
D: width, W: width of a visual row, A: axes of a position, V: vocabulary.

    cache rows   0 ........... end-1 | end ........ end+k-1 | end+k | end+k+1 ...
    hold         committed text with | routed tokens        | root  | drafts
                 pooled tokens, root | (original positions) | again |
    next round   ....... accepted drafts, new root | routed ...      the tail is overwritten

The committed text (the prefix stream) depends on no route, so its rows stay valid for the whole
request; the tail lives for one round (method.md 2 and 3). training/draft_blocks.py runs the same
geometry over whole responses at once.
"""

import dataclasses

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from tiger_jax.decoding import draft_tree
from tiger_jax.decoding.draft_tree import DraftSpec, DraftTree
from tiger_jax.decoding.drafters.chain import ChainGrowth
from tiger_jax.decoding.drafters.protocol import Commit, Extend, PromptArrays, RoundContext
from tiger_jax.models.interface import Params, VisionLanguageModel
from tiger_jax.ops import sampling
from tiger_jax.ops.kv_cache import KVCache
from tiger_jax.ops.rotary import on_axes
from tiger_jax.ops.sampling import Purpose, SamplingMode
from tiger_jax.routing import router as routing
from tiger_jax.routing import selectors
from tiger_jax.routing.bank import Bank, Stream, embed_stream, gather_rows
from tiger_jax.routing.router import Routed, RouterConfig


@struct.dataclass
class RoutedState:
    """What a routed drafter carries from round to round."""

    cache: KVCache
    """Keys and values of the stream, and behind them the tail of the round."""
    offsets: Int[Array, "B"]
    """Stream row of a committed token minus its row in the full prompt: pooled tokens stand for
    pictures."""
    bank: Bank
    """The prompt's visual tokens."""
    fresh: Int[Array, "B g"]
    """Drafts that the last round accepted, which the stream lacks; the rest is padding."""
    fresh_count: Int[Array, "B"]
    """How many of them there are: A of the last round, 0 after prefill."""
    indices: Int[Array, "B k"]
    """Bank rows of the last route, ascending; meaningless before the first round."""
    valid: Bool[Array, "B k"]
    """False where the bank had fewer than k tokens; such entries stand last."""


@dataclasses.dataclass(frozen=True)
class RoutedDrafter:
    """Drafts a chain of up to `draft_length` tokens from a routed context.

    Its parameters are the model's own, with those of the router under "router".
    """

    model: VisionLanguageModel
    draft_length: int
    router: RouterConfig
    confidence: float = 0.0
    """Where a row stops drafting early: chain.ChainGrowth."""

    def __post_init__(self) -> None:
        if not self.router.routes:
            raise ValueError("router: expected a selector other than full; use VLMDrafter for it")

    @property
    def spec(self) -> DraftSpec:
        """A sampled chain."""
        return DraftSpec(nodes=self.draft_length + 1, depth=self.draft_length)

    @property
    def stream_needs(self) -> tuple[str, int]:
        """(query, pooled tokens a picture) of the streams that prompts have to bring."""
        return self.router.stream_query, self.router.pooled_tokens

    def prefill(
        self, params: Params, prompt: PromptArrays, taps: Float[Array, "B S F"], capacity: int
    ) -> RoutedState:
        """Encode the pictures once, run the stream, project the bank."""
        del taps
        stream = prompt.stream
        if stream is None:
            raise ValueError("prompt.stream: expected the prompts' streams, got None")
        batch, length = stream.tokens.shape
        table = None if prompt.tiles is None else self.model.encode_images(params, prompt.tiles)
        tokens = self._bank_tokens(table, stream)
        # Beside the text to come (capacity - S rows, drafts included) the tail holds k more.
        rows = length + capacity - prompt.tokens.shape[1] + self.router.routed_tokens
        x = embed_stream(self.model, params, stream, tokens)
        _, cache, _ = self.model.prefill(
            params, x, self.model.init_cache(batch, rows), positions=stream.positions
        )
        chosen = (batch, self.router.routed_tokens)
        return RoutedState(
            cache=cache, offsets=stream.lengths - prompt.lengths,
            bank=routing.make_bank(
                params.get("router"), tokens, stream.bank,
                self._saliency(params, prompt, stream, table),
            ),
            fresh=jnp.zeros((batch, self.draft_length), jnp.int32),
            fresh_count=jnp.zeros((batch,), jnp.int32),
            indices=jnp.zeros(chosen, jnp.int32), valid=jnp.zeros(chosen, bool),
        )  # fmt: skip

    def _bank_tokens(
        self, table: Float[Array, "Rt W"] | None, stream: Stream
    ) -> Float[Array, "B R W"]:
        """A batch without pictures has a bank of padding."""
        if table is None:
            shape = (*stream.bank.rows.shape, self.model.row_width)
            return jnp.zeros(shape, self.model.dtype)
        return gather_rows(table, stream.bank)

    def _saliency(
        self, params: Params, prompt: PromptArrays, stream: Stream,
        table: Float[Array, "Rt W"] | None,
    ) -> Float[Array, "B R"] | None:  # fmt: skip
        """Scores of a selector that looks once; None for the others."""
        selector = self.router.selector
        if selector not in routing.LOOK_ONCE:
            return None
        if table is None:
            return jnp.zeros(stream.bank.rows.shape, jnp.float32)
        if selector == "vispruner":
            k = self.router.routed_tokens
            return selectors.vispruner(self.model, params, prompt.tiles, stream.bank, k)
        x = self.model.embed(params, prompt.tokens, prompt.image_rows, table)
        return selectors.sparsevlm(self.model, params, x, stream, prompt.rotary_positions)

    def propose(
        self, params: Params, state: RoutedState, context: RoundContext, mode: SamplingMode
    ) -> tuple[DraftTree, RoutedState]:
        """Bring the stream up to the root, route, draft behind the routed tokens."""
        raw, state, extend = self.begin_block(params, state, context)

        def advance(token: Array, step: Array, cache: KVCache) -> tuple[Array, KVCache]:
            raw, after = extend(token, step, state.replace(cache=cache))
            return sampling.mask_undrawable(raw, context.drawable), after.cache

        logits = sampling.mask_undrawable(raw, context.drawable)
        growth = ChainGrowth(self.draft_length, self.confidence)
        tree, cache = growth.grow(logits, state.cache, advance, context, mode)
        return tree, state.replace(cache=cache)

    def begin_answer(
        self, params: Params, prompt: PromptArrays, context: RoundContext, capacity: int
    ) -> tuple[Float[Array, "B 1 V"], RoutedState]:
        """Read the prompts, and route at their last token: it has to be a token of text."""
        taps = jnp.zeros((*prompt.tokens.shape, 0), jnp.float32)
        return self.begin_block(params, self.prefill(params, prompt, taps, capacity), context)[:2]

    def begin_block(
        self, params: Params, state: RoutedState, context: RoundContext
    ) -> tuple[Float[Array, "B 1 V"], RoutedState, Extend]:
        """Bring the stream up to the root, route, run the routed tokens and the root."""
        state, scores = self._choose(params, state, context)
        ends = context.lengths + state.offsets + 1

        def run(
            x: Array, positions: Array, first: Array | int, state: RoutedState
        ) -> tuple[Array, RoutedState]:
            mask = tail_mask(ends, state.valid, first, x.shape[1], state.cache.capacity)
            hidden, cache, _ = self.model.extend_embedded(
                params, x, positions, state.cache, ends + first, mask
            )
            return self.model.logits(params, hidden[:, -1:]), state.replace(cache=cache)

        def extend(
            token: Array, number: Array | int, state: RoutedState
        ) -> tuple[Array, RoutedState]:
            place = (context.positions + number)[:, None]
            first = self.router.routed_tokens + number
            return run(self.model.embed(params, token), place, first, state)

        raw, state = run(*self._tail(params, state, scores, context), 0, state)
        return raw, state, extend

    def observe(self, params: Params, state: RoutedState, commit: Commit) -> RoutedState:
        """Remember the accepted drafts: the next round runs them through the stream."""
        del params
        return state.replace(fresh=commit.tokens[:, 1:], fresh_count=commit.accepted)

    def route(self, params: Params, state: RoutedState, context: RoundContext) -> RoutedState:
        """Run the accepted drafts and the root through the stream, and choose with the state at the
        root."""
        return self._choose(params, state, context)[0]

    def scores(
        self, params: Params, state: RoutedState, context: RoundContext
    ) -> Float[Array, "B R"]:
        """What `route` chooses by, for every bank token; NEVER at padding."""
        return self._choose(params, state, context)[1][:, 0]

    def _choose(
        self, params: Params, state: RoutedState, context: RoundContext
    ) -> tuple[RoutedState, Float[Array, "B 1 R"]]:
        """`route`, with the scores of the whole bank."""
        hidden, state = self._run_stream(params, state, context)
        seeds, place = context.sampling.seeds, context.lengths[:, None]
        scores = routing.route_scores(
            self.router, params.get("router"), hidden[:, None], state.bank,
            sampling.draw_keys(seeds, place, Purpose.ROUTE),
        )  # fmt: skip
        routed = routing.choose(scores, self.router.routed_tokens, state.bank.sources)
        state = state.replace(indices=routed.indices[:, 0], valid=routed.valid[:, 0])
        return state, scores

    def _run_stream(
        self, params: Params, state: RoutedState, context: RoundContext
    ) -> tuple[Float[Array, "B D"], RoutedState]:
        """Hidden state at the root, and the cache that holds the stream up to it."""
        # Rows that are done accept nothing: their stream stays where it is.
        count = jnp.where(context.active, state.fresh_count, 0)[:, None]
        place = jnp.arange(self.draft_length + 1)[None]
        fresh = jnp.pad(state.fresh, ((0, 0), (0, 1)))
        tokens = jnp.where(place == count, context.pending[:, None], fresh)
        positions = context.positions[:, None] - count + place
        starts = context.lengths - count[:, 0] + state.offsets
        mask = draft_tree.chain_mask(starts, tokens.shape[1], state.cache.capacity)
        hidden, cache, _ = self.model.extend(params, tokens, positions, state.cache, starts, mask)
        root = jnp.take_along_axis(hidden, count[..., None], axis=1, mode="clip")
        return root[:, 0], state.replace(cache=cache)

    def _tail(
        self, params: Params, state: RoutedState, scores: Float[Array, "B 1 R"],
        context: RoundContext,
    ) -> tuple[Float[Array, "B T W"], Int[Array, "B T *A"]]:  # fmt: skip
        """Embeddings and positions of [routed tokens | root]."""
        routed = Routed(indices=state.indices[:, None], valid=state.valid[:, None])
        tokens, positions = routing.take_routed(state.bank, routed, scores, self.router.gate)
        words = self.model.widen(self.model.embed(params, context.pending[:, None]))
        x = jnp.concatenate([tokens[:, 0].astype(words.dtype), words], axis=1)
        root = on_axes(context.positions[:, None], like=positions[:, 0])
        return x, jnp.concatenate([positions[:, 0], root], axis=1)


def tail_mask(
    ends: Int[Array, "B"], valid: Bool[Array, "B k"], first: Int[Array, ""] | int, count: int,
    capacity: int,
) -> Bool[Array, "B T C"]:  # fmt: skip
    """What tail tokens first .. first + count - 1 see: the stream before `ends`, and the tail up to
    themselves without the routed rows that do not exist (which stand last among the k)."""
    column = jnp.arange(capacity)[None] - ends[:, None]
    real = (column < valid.sum(axis=1)[:, None]) | (column >= valid.shape[1])
    last = first + jnp.arange(count)
    return (column[:, None] <= last[None, :, None]) & real[:, None]
