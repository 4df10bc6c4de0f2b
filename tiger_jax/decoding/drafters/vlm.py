"""A small vision-language model as drafter, with all its visual tokens (selector `full`).

B: batch, C: cache rows, V: vocabulary.

Its cache runs beside the verifier's: row i holds token i of the same sequence. A round writes rows
length .. length + g - 1; what was rejected is overwritten by the next round, never read.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from tiger_jax.decoding import draft_tree
from tiger_jax.decoding.draft_tree import DraftSpec, DraftTree
from tiger_jax.decoding.drafters.protocol import Commit, PromptArrays, RoundContext
from tiger_jax.decoding.prefill import prefill_model
from tiger_jax.models.interface import Params, VisionLanguageModel
from tiger_jax.ops import sampling
from tiger_jax.ops.kv_cache import KVCache
from tiger_jax.ops.sampling import Purpose, SamplingMode


@struct.dataclass
class _Draft:
    """The chain while it grows; arrays hold all g + 1 nodes from the start."""

    cache: KVCache
    step: Int[Array, ""]
    tokens: Int[Array, "B N"]
    valid: Bool[Array, "B N"]
    laws: Float[Array, "B N V"] | None
    drafting: Bool[Array, "B"]
    """Rows that go on drafting."""
    logits: Float[Array, "B 1 V"]
    """Logits of the next draft token."""


@dataclasses.dataclass(frozen=True)
class VLMDrafter:
    """Drafts a chain of up to `draft_length` tokens."""

    model: VisionLanguageModel
    draft_length: int
    confidence: float = 0.0
    """A row stops drafting where the likeliest next token has a lower probability. The test looks
    at the law before the token is drawn: looking at the drawn token would skew the emitted law."""

    @property
    def spec(self) -> DraftSpec:
        """A sampled chain."""
        return DraftSpec(nodes=self.draft_length + 1, depth=self.draft_length)

    def prefill(
        self, params: Params, prompt: PromptArrays, taps: Float[Array, "B S F"], capacity: int
    ) -> KVCache:
        """Read prompts and pictures with the drafter's own tower."""
        del taps
        return prefill_model(self.model, params, prompt, capacity).cache

    def propose(
        self, params: Params, state: KVCache, context: RoundContext, mode: SamplingMode
    ) -> tuple[DraftTree, KVCache]:
        """Draft token by token; with a confidence the loop ends early when no row goes on."""
        draft = self._start(params, state, context, mode)

        def going(draft: _Draft) -> Array:
            return (draft.step < self.draft_length) & draft.drafting.any()

        def step(draft: _Draft) -> _Draft:
            return self._add_token(self._advance(params, draft, context), context, mode)

        # The last token needs no successor, so the first draw stands before the loop.
        draft = self._add_token(draft, context, mode)
        if self.confidence > 0:
            draft = lax.while_loop(going, step, draft)
        else:
            # A loop inside the loop of rounds costs more than the small steps themselves.
            for _ in range(self.draft_length - 1):
                draft = step(draft)
        return draft_tree.chain(draft.tokens, draft.valid, draft.laws), draft.cache

    def observe(self, params: Params, state: KVCache, commit: Commit) -> KVCache:
        """Nothing to do: accepted rows are already right, and the next round repairs the rest."""
        del params, commit
        return state

    def _start(
        self, params: Params, cache: KVCache, context: RoundContext, mode: SamplingMode
    ) -> _Draft:
        """Run the last two committed tokens: after a fully accepted block the cache lacks the first
        of them, otherwise its row is written again with the same values."""
        tokens = jnp.stack([context.previous, context.pending], axis=1)
        starts = context.lengths - 1
        logits, cache = self._logits(params, tokens, cache, starts, context)
        shape = (tokens.shape[0], self.draft_length + 1)
        laws = None
        if mode is not SamplingMode.GREEDY:
            laws = jnp.zeros((*shape, logits.shape[-1]), jnp.float32)
        nodes = jnp.zeros(shape, jnp.int32).at[:, 0].set(context.pending)
        return _Draft(
            cache=cache, step=jnp.int32(0), tokens=nodes,
            valid=jnp.zeros(shape, bool).at[:, 0].set(True),
            laws=laws, drafting=context.active, logits=logits,
        )  # fmt: skip

    def _add_token(self, draft: _Draft, context: RoundContext, mode: SamplingMode) -> _Draft:
        """Draw node step + 1 from the current logits, for the rows that are confident enough."""
        node = draft.step + 1
        drafting = draft.drafting
        if self.confidence > 0:
            likeliest = jax.nn.softmax(draft.logits[:, 0], axis=-1).max(axis=-1)
            drafting = drafting & (likeliest >= self.confidence)
        laws = draft.laws
        if mode is SamplingMode.GREEDY:
            drawn = jnp.argmax(draft.logits[:, 0], axis=-1).astype(jnp.int32)[:, None]
        else:
            law = sampling.next_token_law(draft.logits, context.sampling, mode)
            positions = (context.lengths + node)[:, None]
            keys = sampling.draw_keys(context.sampling.seeds, positions, Purpose.DRAFT)
            drawn = sampling.draw(law, keys, mode)
            laws = lax.dynamic_update_slice(laws, law, (0, node, 0))
        return draft.replace(
            step=node, drafting=drafting, laws=laws,
            tokens=lax.dynamic_update_slice(draft.tokens, drawn, (0, node)),
            valid=lax.dynamic_update_slice(draft.valid, drafting[:, None], (0, node)),
        )  # fmt: skip

    def _advance(self, params: Params, draft: _Draft, context: RoundContext) -> _Draft:
        """Run the token just drawn."""
        token = lax.dynamic_slice_in_dim(draft.tokens, draft.step, 1, axis=1)
        starts = context.lengths + draft.step
        logits, cache = self._logits(params, token, draft.cache, starts, context)
        return draft.replace(cache=cache, logits=logits)

    def _logits(
        self, params: Params, tokens: Int[Array, "B T"], cache: KVCache,
        starts: Int[Array, "B"], context: RoundContext,
    ) -> tuple[Float[Array, "B 1 V"], Any]:  # fmt: skip
        """Next-token logits after the last of `tokens`, undrawable ids masked."""
        positions = starts[:, None] + jnp.arange(tokens.shape[1])[None]
        mask = draft_tree.chain_mask(starts, tokens.shape[1], cache.capacity)
        hidden, cache, _ = self.model.extend(params, tokens, positions, cache, starts, mask)
        logits = self.model.logits(params, hidden[:, -1:])
        return sampling.mask_undrawable(logits, context.drawable), cache
