"""The one way in which decoding knows drafters.

B: batch, S: prompt length, D1: draft depth + 1, F: width of the tapped hidden states.

A round is propose -> verify -> commit -> observe. A drafter keeps its own state, a pytree of static
shape, and never touches the verifier's. Methods are pure; a drafter object holds only static things
and is hashable, so that it can be part of a program's compile key.
"""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from tiger_jax.decoding.draft_tree import DraftSpec, DraftTree
from tiger_jax.decoding.state import DecodeState, Limits
from tiger_jax.models.interface import DeviceTiles, VisionLanguageModel
from tiger_jax.ops.rotary import rope_deltas
from tiger_jax.ops.sampling import Sampling, SamplingMode
from tiger_jax.routing.bank import Stream


@struct.dataclass
class PromptArrays:
    """A bucketed batch of prompts, as the prefill programs see it."""

    tokens: Int[Array, "B S"]
    lengths: Int[Array, "B"]
    image_rows: Int[Array, "B S"] | None
    """Row of the visual table in each token's place, -1 for text; None: no picture in the batch."""
    tiles: DeviceTiles | None
    stream: Stream | None = None
    """The same prompts as a routed drafter reads them; only such a drafter needs it."""
    positions: Int[Array, "B S *A"] | None = None
    """Rotary positions; None: 0 .. S - 1."""

    @property
    def rotary_positions(self) -> Int[Array, "B S *A"]:
        """`positions`, spelt out."""
        if self.positions is not None:
            return self.positions
        places = jnp.arange(self.tokens.shape[1], dtype=jnp.int32)[None]
        return jnp.broadcast_to(places, self.tokens.shape)

    @property
    def last_tokens(self) -> Int[Array, "B"]:
        """The last token of each prompt."""
        return jnp.take_along_axis(self.tokens, (self.lengths - 1)[:, None], axis=1)[:, 0]

    @property
    def rope_deltas(self) -> Int[Array, "B"]:
        """Rotary position minus row number of every token behind the prompt."""
        return rope_deltas(self.rotary_positions, self.lengths)


def prompt_arrays(batch: Any, dtype: DTypeLike, stream: Stream | None = None) -> PromptArrays:
    """A host batch (data.batches.PromptBatch) on the device, tiles in the models' dtype."""
    pictured = len(batch.tiles) > 0
    tiles = jax.tree.map(jnp.asarray, batch.tiles.astype(dtype)) if pictured else None
    return PromptArrays(
        tokens=jnp.asarray(batch.tokens), lengths=jnp.asarray(batch.lengths),
        image_rows=jnp.asarray(batch.image_rows) if pictured else None, tiles=tiles,
        positions=jnp.asarray(batch.positions), stream=stream,
    )  # fmt: skip


@struct.dataclass
class RoundContext:
    """What a drafter may know when it proposes."""

    pending: Int[Array, "B"]
    """Root of the draft: the last emitted token."""
    previous: Int[Array, "B"]
    """The token before the root."""
    lengths: Int[Array, "B"]
    """Committed tokens before the root."""
    rope_deltas: Int[Array, "B"]
    """Rotary position minus row number of a text token (PromptArrays.rope_deltas)."""
    active: Bool[Array, "B"]
    """Rows that still run; the others need no draft."""
    sampling: Sampling
    drawable: Bool[Array, "V"]

    @classmethod
    def of(cls, state: DecodeState, sampling: Sampling, limits: Limits) -> "RoundContext":
        """The round that a decoding state is about to begin."""
        return cls(
            pending=state.pending, previous=state.previous, lengths=state.lengths,
            rope_deltas=state.rope_deltas, active=state.active, sampling=sampling,
            drawable=limits.drawable,
        )  # fmt: skip

    @property
    def positions(self) -> Int[Array, "B"]:
        """The root's rotary position."""
        return self.lengths + self.rope_deltas


@struct.dataclass
class Commit:
    """What became of a draft."""

    path: Int[Array, "B D1"]
    """Accepted node ids, root first; entries behind `accepted` are padding."""
    accepted: Int[Array, "B"]
    tokens: Int[Array, "B D1"]
    """The root and the accepted drafts."""
    next_token: Int[Array, "B"]
    """Root of the next round."""
    lengths: Int[Array, "B"]
    """Committed tokens before the *old* root."""
    taps: Float[Array, "B D1 F"]
    """The verifier's hidden states along the path, for `spec.taps`."""


@runtime_checkable
class Drafter(Protocol):
    """Proposes tokens for the verifier to accept or replace."""

    @property
    def spec(self) -> DraftSpec:
        """Static shape of the proposals."""

    def prefill(
        self, params: Any, prompt: PromptArrays, taps: Float[Array, "B S F"], capacity: int
    ) -> Any:
        """Read the prompts; `taps` are the verifier's hidden states there, `capacity` the rows that
        text and drafts may come to need."""

    def propose(
        self, params: Any, state: Any, context: RoundContext, mode: SamplingMode
    ) -> tuple[DraftTree, Any]:
        """Draft from the root."""

    def observe(self, params: Any, state: Any, commit: Commit) -> Any:
        """Learn what was accepted."""


@runtime_checkable
class RoutingDrafter(Drafter, Protocol):
    """A drafter that chooses visual tokens before it drafts, as a part that can be timed alone."""

    def route(self, params: Any, state: Any, context: RoundContext) -> Any:
        """Read the tokens committed last and choose; the returned state remembers the choice in
        `indices` [B, k]. `propose` begins with the same."""


Extend = Callable[[Int[Array, "B 1"], Array | int, Any], tuple[Float[Array, "B 1 V"], Any]]
"""(token, its number behind the root, drafter's state) -> (scores of the next token, state)."""


@runtime_checkable
class AnsweringDrafter(Drafter, Protocol):
    """A drafter that can answer without a verifier: a whole model, which a head is not.

    Scores are raw: undrawable ids are not masked.
    """

    draft_length: int
    model: VisionLanguageModel

    def begin_answer(
        self, params: Any, prompt: PromptArrays, context: RoundContext, capacity: int
    ) -> tuple[Float[Array, "B 1 V"], Any]:
        """Read the prompts: scores of the first token behind them, and the state. The root of
        `context` is the last token of each prompt."""

    def begin_block(
        self, params: Any, state: Any, context: RoundContext
    ) -> tuple[Float[Array, "B 1 V"], Any, Extend]:
        """Read what is new up to the root: scores of the token behind it, the state, and how to go
        on. `propose` begins with the same."""
