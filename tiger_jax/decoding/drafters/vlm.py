"""A small vision-language model as drafter, with all its visual tokens (selector `full`).

B: batch, C: cache rows, V: vocabulary.

Its cache runs beside the verifier's: row i holds token i of the same sequence. A round writes rows
length .. length + g - 1; what was rejected is overwritten by the next round, never read.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from tiger_jax.decoding import draft_tree
from tiger_jax.decoding.draft_tree import DraftSpec, DraftTree
from tiger_jax.decoding.drafters.chain import ChainGrowth
from tiger_jax.decoding.drafters.protocol import Commit, Extend, PromptArrays, RoundContext
from tiger_jax.decoding.prefill import prefill_model
from tiger_jax.models.interface import Params, VisionLanguageModel
from tiger_jax.ops import sampling
from tiger_jax.ops.kv_cache import KVCache
from tiger_jax.ops.sampling import SamplingMode


@dataclasses.dataclass(frozen=True)
class VLMDrafter:
    """Drafts a chain of up to `draft_length` tokens."""

    model: VisionLanguageModel
    draft_length: int
    confidence: float = 0.0
    """Where a row stops drafting early: chain.ChainGrowth."""

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
        """Run the last two committed tokens, then draft."""
        raw, cache, extend = self.begin_block(params, state, context)

        def advance(token: Array, step: Array, cache: KVCache) -> tuple[Array, KVCache]:
            raw, cache = extend(token, step, cache)
            return sampling.mask_undrawable(raw, context.drawable), cache

        logits = sampling.mask_undrawable(raw, context.drawable)
        growth = ChainGrowth(self.draft_length, self.confidence)
        return growth.grow(logits, cache, advance, context, mode)

    def begin_answer(
        self, params: Params, prompt: PromptArrays, context: RoundContext, capacity: int
    ) -> tuple[Float[Array, "B 1 V"], KVCache]:
        """The prefill, and the scores that come with it."""
        del context
        read = prefill_model(self.model, params, prompt, capacity)
        return read.logits, read.cache

    def begin_block(
        self, params: Params, state: KVCache, context: RoundContext
    ) -> tuple[Float[Array, "B 1 V"], KVCache, Extend]:
        """Run the last two committed tokens.

        After a fully accepted block the cache lacks the first of the two; otherwise its row is
        written again with the same values.
        """

        def extend(token: Array, number: Array | int, cache: KVCache) -> tuple[Array, KVCache]:
            return self._logits(params, token, cache, context.lengths + number, context)

        tokens = jnp.stack([context.previous, context.pending], axis=1)
        raw, cache = self._logits(params, tokens, state, context.lengths - 1, context)
        return raw, cache, extend

    def observe(self, params: Params, state: KVCache, commit: Commit) -> KVCache:
        """Nothing to do: accepted rows are already right, and the next round repairs the rest."""
        del params, commit
        return state

    def _logits(
        self, params: Params, tokens: Int[Array, "B T"], cache: KVCache,
        starts: Int[Array, "B"], context: RoundContext,
    ) -> tuple[Float[Array, "B 1 V"], Any]:  # fmt: skip
        """Next-token logits after the last of `tokens`."""
        positions = (starts + context.rope_deltas)[:, None] + jnp.arange(tokens.shape[1])[None]
        mask = draft_tree.chain_mask(starts, tokens.shape[1], cache.capacity)
        hidden, cache, _ = self.model.extend(params, tokens, positions, cache, starts, mask)
        return self.model.logits(params, hidden[:, -1:]), cache
