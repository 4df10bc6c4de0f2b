"""Supervised loss: next-token cross entropy of the answers, several questions on one picture.

B: pictures, P: prefix tokens (picture and what precedes the questions), L: packed tokens,
N: questions on a picture, T: tokens of a question with its answer, M: tiles, S: tile side,
V: vocabulary, D: width.

    prefix    [ USER: <image> x 136 ]                                    run once
    segments  [ question 1  ASSISTANT:  answer 1 </s> | question 2 .. ]  each sees prefix, itself

Token t of a segment predicts token t + 1 of it. The weights name the predicted tokens that count:
the answer and </s>. The first answer token is predicted by the question's last one, which is inside
the segment, so no loss crosses the border between prefix and segment.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from tiger_jax.data.packing import pack_rows, take_packed
from tiger_jax.models.frames import Tiles
from tiger_jax.models.interface import VisionLanguageModel
from tiger_jax.training import block_layout
from tiger_jax.training.block_layout import Prefixed, TextRows
from tiger_jax.training.train_step import LossSums


@struct.dataclass
class PackedBatch(Prefixed):
    """Pictures with several questions each, the questions packed into one row a picture."""

    prefix_tokens: Any
    """int32 [B, P], padded on the right."""
    prefix_image_rows: Any
    """int32 [B, P]: -1 = a text token, else a row of the flat table of tiles, the last newline."""
    prefix_lengths: Any
    """int32 [B]."""
    prefix_positions: Any
    """int32 [B, P] or [B, P, 3]: rotary positions."""
    tiles: Any
    """What the vision tower takes, float32 [M, S, S, 3] or Frames."""
    tokens: Any
    """int32 [B, L]."""
    segments: Any
    """int32 [B, L]: 1 .. N, 0 = padding (block_layout)."""
    positions: Any
    """int32 [B, L]: those of the segment standing alone behind the prefix."""
    weights: Any
    """float32 [B, L]: weight of the loss of predicting this token; 0 outside answers and </s>."""


def pack_batch(
    prefix_tokens: Int[np.ndarray, "B P"], prefix_image_rows: Int[np.ndarray, "B P"],
    prefix_lengths: Int[np.ndarray, "B"], prefix_positions: Int[np.ndarray, "B P *A"],
    text_starts: Int[np.ndarray, "B"], tiles: Tiles,
    branch_tokens: Int[np.ndarray, "B N T"], loss_mask: Bool[np.ndarray, "B N T"],
    branch_lengths: Int[np.ndarray, "B N"], *, balance: float = 0.0,
) -> PackedBatch:  # fmt: skip
    """Pack a data.mixtures.SceneBatch (branches padded on the right); numpy only, on the host.

    A token of an answer of n tokens weighs n ** -balance: 0 counts tokens, so that one description
    outweighs six short answers; 1 counts answers.
    """
    answers = np.maximum(loss_mask.sum(axis=2, keepdims=True), 1)
    weights = (loss_mask * answers.astype(np.float32) ** -balance).astype(np.float32)
    segments, offsets = pack_rows(branch_lengths)
    return PackedBatch(
        prefix_tokens=prefix_tokens,
        prefix_image_rows=prefix_image_rows,
        prefix_lengths=prefix_lengths,
        prefix_positions=prefix_positions,
        tiles=tiles,
        tokens=take_packed(branch_tokens, segments, offsets),
        segments=segments,
        positions=np.where(segments > 0, text_starts[:, None] + offsets, 0).astype(np.int32),
        weights=take_packed(weights, segments, offsets),
    )


def make_sft_loss(model: VisionLanguageModel) -> Callable[[Any, PackedBatch, Array], LossSums]:
    """The loss function of `make_train_step` for a model; the key is not used."""

    def loss(params: Any, batch: PackedBatch, key: Array) -> LossSums:
        del key
        hidden = segment_hidden(model, params, batch)[:, :-1]
        inside = batch.segments[:, 1:] == batch.segments[:, :-1]
        weights = jnp.where(inside, batch.weights[:, 1:], 0.0)
        return answer_sums(model.logits(params, hidden), batch.tokens[:, 1:], weights)

    return loss


def segment_hidden(
    model: VisionLanguageModel, params: Any, batch: PackedBatch
) -> Float[Array, "B L D"]:
    """Final hidden states of all packed tokens."""
    text = TextRows(batch.tokens, batch.segments, batch.positions)
    return block_layout.run_prompts(model, params, batch.prefixes, text).hidden


def answer_sums(
    logits: Float[Array, "B L V"], targets: Int[Array, "B L"], weights: Float[Array, "B L"]
) -> LossSums:
    """Weighted cross entropy (nats) of the targets; per-token metrics where the weight is not 0."""
    losses = optax.losses.softmax_cross_entropy_with_integer_labels(logits, targets)
    counted = (weights > 0).astype(jnp.float32)
    right = (jnp.argmax(logits, axis=-1) == targets).astype(jnp.float32)
    count = counted.sum()
    return LossSums(
        loss=(losses * weights).sum(), weight=weights.sum(),
        metrics={"nats_per_token": ((losses * counted).sum(), count),
                 "token_accuracy": ((right * counted).sum(), count)},
    )  # fmt: skip
