"""Held-out metrics by kind of prompt.

B: examples, M: blocks, L: packed text tokens.

Prompts of several kinds share a picture and lie in one row, so a batch holds all kinds. A kind's
metrics are those of the same batch in which only its blocks count: the same program, no compile.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from tiger_jax.training.block_layout import at_anchors
from tiger_jax.training.draft_batch import DraftBatch
from tiger_jax.training.train_step import Metrics


def kind_metrics(
    evaluate: Callable[[Any, DraftBatch], Metrics], params: Any, batch: DraftBatch,
    kinds: Sequence[str], names: Sequence[str] = ("A", "accepted_greedy"),
) -> Metrics:  # fmt: skip
    """(sum, count) of `names`, as "A/read", for each kind; what `evaluate` lacks is left out.

    Args:
        evaluate: (params, batch) -> metrics, as `make_eval_step` gives.
        kinds: of question 0, 1, .. of every example.
    """
    found: Metrics = {}
    for question, kind in enumerate(kinds):
        sums = evaluate(params, only_question(batch, question))
        for name in names:
            if name in sums:
                before = found.get(f"{name}/{kind}", (0.0, 0.0))
                found[f"{name}/{kind}"] = (before[0] + sums[name][0], before[1] + sums[name][1])
    return found


def only_question(batch: DraftBatch, question: int) -> DraftBatch:
    """The batch with the blocks of one question of every example; the rest is padding."""
    blocks = _of_segment(batch.segments, batch.anchors, batch.block_lengths, question + 1)
    # as they were placed, or the program would be compiled again
    anchors, lengths = jax.device_put(blocks, (batch.anchors.sharding,) * 2)
    return batch.replace(anchors=anchors, block_lengths=lengths)


@jax.jit
def _of_segment(
    segments: Int[Array, "B L"], anchors: Int[Array, "B M"], lengths: Int[Array, "B M"],
    segment: Int[Array, ""],
) -> tuple[Int[Array, "B M"], Int[Array, "B M"]]:  # fmt: skip
    # no block is anchor -1, where at_anchors reads place 0
    own = (at_anchors(segments, anchors) == segment) & (anchors >= 0)
    return jnp.where(own, anchors, -1), jnp.where(own, lengths, 0)
