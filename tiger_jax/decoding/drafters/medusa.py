"""Medusa's residual heads as drafter: all draft tokens from one hidden state, in one product.

B: batch, S: prompt length, D1: draft depth + 1, g: draft length, T: nodes of a level, F: width of
the tapped hidden state, D: verifier width, V: vocabulary.

Head u stands for the state u tokens behind the last committed one and never asks which tokens were
drawn before, so the laws along a chain are independent, and a level of a tree has one law for all
its nodes. Source: Medusa (arXiv 2401.10774), with the verifier's own lm_head.
"""

import dataclasses

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from tiger_jax.decoding.draft_tree import DraftSpec, DraftTree
from tiger_jax.decoding.drafters.chain import ChainGrowth
from tiger_jax.decoding.drafters.protocol import Commit, PromptArrays, RoundContext
from tiger_jax.decoding.drafters.tree import DynamicTree, StaticTree, draft_spec
from tiger_jax.errors import UserError
from tiger_jax.models.head import DraftHead, Params
from tiger_jax.ops import sampling
from tiger_jax.ops.kv_cache import KVCache
from tiger_jax.ops.sampling import SamplingMode


@dataclasses.dataclass(frozen=True)
class MedusaDrafter:
    """Drafts a chain of up to `draft_length` tokens, or a tree.

    Its parameters are {"head": the head's tree, "shared": the verifier's `Shared`}; its state is f
    [B, D], the verifier's last hidden state at the token before the root.
    """

    head: DraftHead
    draft_length: int
    """Of a chain; a tree has its own depth."""
    tree: DynamicTree | StaticTree | None = None
    confidence: float = 0.0
    """Where a row stops drafting early: chain.ChainGrowth."""

    def __post_init__(self) -> None:
        cfg = self.head.config
        if cfg.layout != "medusa":
            raise UserError(f"layout: expected medusa, got {cfg.layout}")
        if self.tree is not None and self.confidence > 0:
            raise UserError(f"confidence: expected 0 with a tree, got {self.confidence}")
        if not 1 <= self.spec.depth <= cfg.medusa_heads:
            raise UserError(
                f"draft_length: expected 1..{cfg.medusa_heads}, one for each head,"
                f" got {self.spec.depth}"
            )

    @property
    def spec(self) -> DraftSpec:
        """A sampled chain, or a tree of guesses."""
        return draft_spec(self.tree, self.draft_length, self.head.config.taps)

    def prefill(
        self, params: Params, prompt: PromptArrays, taps: Float[Array, "B S F"], capacity: int
    ) -> Float[Array, "B D"]:
        """f at the last prompt token."""
        del capacity
        return self._state_at(params, taps, prompt.lengths - 1)

    def propose(
        self, params: Params, state: Float[Array, "B D"], context: RoundContext, mode: SamplingMode
    ) -> tuple[DraftTree, Float[Array, "B D"]]:
        """Draft from the state before the root."""
        laws = self._logits(params, state, context)

        def advance(token: Array, step: Array, nothing: KVCache) -> tuple[Array, KVCache]:
            del token
            return lax.dynamic_slice_in_dim(laws, step, 1, axis=1), nothing

        def expand(tokens: Array, parents: Array, step: int, nothing: KVCache):
            del tokens, parents
            return laws[:, step : step + 1], nothing

        nothing = KVCache(keys=(), values=())
        if self.tree is None:
            growth = ChainGrowth(self.draft_length, self.confidence)
            tree, _ = growth.grow(laws[:, :1], nothing, advance, context, mode)
        else:
            tree, _ = self.tree.grow(laws[:, :1], nothing, expand, context)
        return tree, state

    def observe(
        self, params: Params, state: Float[Array, "B D"], commit: Commit
    ) -> Float[Array, "B D"]:
        """f at the last accepted token."""
        del state
        return self._state_at(params, commit.taps, commit.accepted)

    def _state_at(
        self, params: Params, taps: Float[Array, "B T F"], places: Int[Array, "B"]
    ) -> Float[Array, "B D"]:
        picked = jnp.take_along_axis(taps, places[:, None, None], axis=1, mode="clip")
        return self.head.read(params["head"], params["shared"], picked)[:, 0]

    def _logits(
        self, params: Params, state: Float[Array, "B D"], context: RoundContext
    ) -> Float[Array, "B g V"]:
        """Drawable logits of every draft token: one read of the lm_head for all heads."""
        ahead = [self.head.ahead(params["head"], state, u) for u in range(self.spec.depth)]
        g = jnp.stack(ahead, axis=1)
        logits = self.head.logits(params["head"], params["shared"], g)
        return sampling.mask_undrawable(logits, context.drawable)
