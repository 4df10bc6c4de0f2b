"""What a head's training step receives: a drafter's batch, and the verifier's states along it.

B: examples, P: prefix tokens, L: packed text tokens, M: blocks, g: draft length, R: bank rows,
D: verifier width, F: width of its tapped hidden states, w: kept rows of a look.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from tiger_jax.models.head import Shared
from tiger_jax.training.draft_batch import DraftBatch, draft_batch


@struct.dataclass
class HeadBatch:
    """Blocks to draft, with everything that the frozen verifier has to say of them."""

    draft: DraftBatch
    visual: Any
    """float [B, R, D]: projected visual tokens, in the bank's order."""
    prefix_features: Any
    """float [B, P, F]."""
    text_features: Any
    """float [B, L, F]."""
    look_ids: Any
    """int32 [B, M, g, w]: bank rows that the verifier looks at while it reads the token before
    each drafted one; -1 = no entry."""
    look_weights: Any
    shared: Shared | None = None

    @property
    def is_visual(self) -> Bool[Array, "B P"]:
        """Prefix tokens that stand for a part of a picture."""
        return self.draft.prefixes.is_visual

    @property
    def bank_rows(self) -> Int[Array, "B P"]:
        """The bank row of each visual prefix token; of the others, some row."""
        return jnp.maximum(jnp.cumsum(self.is_visual, axis=1) - 1, 0)

    def at_prefix(self, values: Array) -> Array:
        """values[b, bank row of prefix token p, ...]; only that of visual tokens means anything."""
        rows = self.bank_rows.reshape(*self.bank_rows.shape, *[1] * (values.ndim - 2))
        return jnp.take_along_axis(values, rows, axis=1, mode="clip")

    def with_taps(self, columns: tuple[slice, ...]) -> "HeadBatch":
        """Only these columns of the features, side by side."""

        def cut(features: Array) -> Array:
            return jnp.concatenate([features[..., part] for part in columns], axis=-1)

        return self.replace(
            prefix_features=cut(self.prefix_features), text_features=cut(self.text_features)
        )

    def looks(self) -> Float[Array, "B M g R"]:
        """Where the verifier looks at each drafted token's predecessor, over the whole bank; zeros
        at steps that do not exist."""
        size = self.visual.shape[1]
        ids = jnp.where(self.look_ids >= 0, self.look_ids, size)  # padding is dropped
        empty = jnp.zeros((*ids.shape[:3], size), jnp.float32)
        b, m, u = jnp.ogrid[tuple(slice(count) for count in ids.shape[:3])]
        places = b[..., None], m[..., None], u[..., None], ids
        return empty.at[places].add(self.look_weights, mode="drop")

    def next_features(self) -> Float[Array, "B M g F"]:
        """The verifier's states at the drafted tokens' predecessors: what g_u stands for."""
        return self.draft.at_blocks(self.text_features)


def head_batch(rows: Mapping[str, Any]) -> HeadBatch:
    """The fields of data.head_batches.HeadRows as a batch."""
    return HeadBatch(**{**rows, "draft": draft_batch(rows["draft"]._asdict())})
