"""The growing of a sampled chain: what every drafter that drafts token by token does.

B: batch, N: nodes with the root, V: vocabulary.

How a token is run is the drafter's own matter (`Advance`); how it is drawn, and when a row stops,
is the same for all.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from tiger_jax.decoding import draft_tree
from tiger_jax.decoding.draft_tree import DraftTree
from tiger_jax.decoding.drafters.protocol import RoundContext
from tiger_jax.ops import sampling
from tiger_jax.ops.kv_cache import KVCache
from tiger_jax.ops.sampling import Purpose, SamplingMode

Advance = Callable[
    [Int[Array, "B 1"], Int[Array, ""], KVCache], tuple[Float[Array, "B 1 V"], KVCache]
]
"""(node's token, node's number, cache) -> (drawable logits of the next token, cache)."""


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
class ChainGrowth:
    """Grows chains of up to `draft_length` tokens."""

    draft_length: int
    confidence: float = 0.0
    """A row stops drafting where the likeliest next token has a lower probability. The test looks
    at the law before the token is drawn: looking at the drawn token would skew the emitted law."""

    def grow(
        self, logits: Float[Array, "B 1 V"], cache: KVCache, advance: Advance,
        context: RoundContext, mode: SamplingMode,
    ) -> tuple[DraftTree, KVCache]:  # fmt: skip
        """Draft token by token; with a confidence the loop ends early when no row goes on.

        Args:
            logits: drawable logits of the first draft token.
        """
        draft = self._start(logits, cache, context, mode)

        def going(draft: _Draft) -> Array:
            return (draft.step < self.draft_length) & draft.drafting.any()

        def step(draft: _Draft) -> _Draft:
            token = lax.dynamic_slice_in_dim(draft.tokens, draft.step, 1, axis=1)
            logits, cache = advance(token, draft.step, draft.cache)
            return self._add_token(draft.replace(cache=cache, logits=logits), context, mode)

        # The last token needs no successor, so the first draw stands before the loop.
        draft = self._add_token(draft, context, mode)
        if self.confidence > 0:
            draft = lax.while_loop(going, step, draft)
        else:
            # A loop inside the loop of rounds costs more than the small steps themselves.
            for _ in range(self.draft_length - 1):
                draft = step(draft)
        return draft_tree.chain(draft.tokens, draft.valid, draft.laws), draft.cache

    def _start(
        self, logits: Float[Array, "B 1 V"], cache: Any, context: RoundContext, mode: SamplingMode
    ) -> _Draft:
        """A chain of the root alone."""
        shape = (logits.shape[0], self.draft_length + 1)
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
