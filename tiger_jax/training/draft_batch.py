"""What a drafter's training step receives.

B: examples, P: verifier-prefix tokens, L: packed text tokens, M: blocks, g: draft length, k: kept
tokens of a law, w: kept rows of an attention, N: tiles of the batch, S: tile side.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int

from tiger_jax.routing.bank import Stream, make_stream
from tiger_jax.training.block_layout import Prefixed, TextRows, at_anchors


@struct.dataclass
class DraftBatch(Prefixed):
    """Prompts with the verifier's responses, and blocks to draft (data/draft_batches.py)."""

    tiles: Any
    """What the vision tower takes, float32 [N, S, S, 3] or Frames."""
    prefix_tokens: Any
    """int32 [B, P]: the prefixes as the verifier reads them."""
    prefix_image_rows: Any
    prefix_lengths: Any
    prefix_positions: Any
    """int32 [B, P] or [B, P, 3]: rotary positions."""
    stream: Stream
    """The prefixes as the drafter reads them."""
    tokens: Any
    """int32 [B, L]."""
    segments: Any
    positions: Any
    anchors: Any
    """int32 [B, M]: the root's place in the packed text; -1 = no block."""
    block_lengths: Any
    """int32 [B, M]: drafted tokens that belong to the response; 0 = no block."""
    block_tokens: Any
    """int32 [B, M, g]."""
    block_logprobs: Any
    """float32 [B, M, g]: under the verifier's own law."""
    law_ids: Any
    """int32 [B, M, g, k]; -1 = no entry."""
    law_logprobs: Any
    route_ids: Any
    """int32 [B, M, w]; -1 = no entry."""
    route_weights: Any

    @property
    def rows(self) -> Int[Array, "B L"]:
        """Which token of its whole prompt and response each packed one is."""
        return self.positions - self.prefixes.rope_deltas[:, None]

    @property
    def text(self) -> TextRows:
        """The packed texts."""
        return TextRows(self.tokens, self.segments, self.positions)

    @property
    def live(self) -> Bool[Array, "B M g"]:
        """Positions of blocks that hold a response token."""
        places = jnp.arange(self.block_tokens.shape[2])[None, None]
        return places < self.block_lengths[..., None]

    def at_blocks(self, values: Array) -> Array:
        """What stands at the token before each drafted one, the root first: [B, L, ...] ->
        [B, M, g, ...]. There the verifier's law of the drafted token stands, too."""
        steps = jnp.arange(self.block_tokens.shape[2])[None, None]
        places = jnp.maximum(self.anchors, 0)[..., None] + steps
        found = at_anchors(values, places.reshape(places.shape[0], -1))
        return found.reshape(*places.shape, *values.shape[2:])


def draft_batch(rows: Mapping[str, Any]) -> DraftBatch:
    """The fields of data.draft_batches.DraftRows as a batch."""
    arrays = {name: rows[name] for name in rows if name != "record_ids"}
    return DraftBatch(**{**arrays, "stream": make_stream(rows["stream"]._asdict())})
