"""Held-out drafts to look at while a drafter learns: what the verifier would have accepted.

B: examples, M: blocks, L: packed text tokens.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from tiger_jax.sharding.processes import fetch
from tiger_jax.training.draft_batch import DraftBatch
from tiger_jax.training.draft_blocks import BlockDrafter
from tiger_jax.training.metric_log import show_sample
from tiger_jax.training.rewards import accepted_prefix

EXAMPLES = 2


def accepted_texts(
    drafter: BlockDrafter, decode: Callable[[list[int]], str], params: Any, batch: DraftBatch
) -> dict[str, str]:
    """The first question of a few examples, each block of its response with the accepted part
    marked (temperature 0).

    Args:
        decode: token ids -> text.
    """
    lengths = fetch(_accepted(drafter, params, batch)).astype(int)
    names = ("tokens", "segments", "anchors", "block_tokens", "block_lengths")
    rows = {name: fetch(getattr(batch, name)) for name in names}
    return {
        f"sample_{b}": _sample(decode, {name: row[b] for name, row in rows.items()}, lengths[b])
        for b in range(min(EXAMPLES, len(lengths)))
    }


@partial(jax.jit, static_argnames="drafter")
def _accepted(drafter: BlockDrafter, params: Any, batch: DraftBatch) -> Float[Array, "B M"]:
    key = jax.random.key(0)
    opened = drafter.open(params, batch.stream, batch.tiles, batch.text, batch.anchors, key)
    logits = drafter.logits(params, opened, batch.block_tokens)
    return accepted_prefix((jnp.argmax(logits, axis=-1) == batch.block_tokens) & batch.live)


def _sample(decode: Callable, row: dict[str, np.ndarray], accepted: np.ndarray) -> str:
    first = (row["anchors"] >= 0) & (row["segments"][row["anchors"]] == 1)
    blocks = sorted(np.flatnonzero(first), key=lambda m: row["anchors"][m])
    if not blocks:
        return ""
    start = row["anchors"][blocks[0]] + 1
    question = decode([int(token) for token in row["tokens"][:start]])
    texts = []
    for m in blocks:
        tokens = [int(token) for token in row["block_tokens"][m][: row["block_lengths"][m]]]
        texts.append((decode(tokens[: accepted[m]]), decode(tokens[accepted[m] :])))
    return show_sample(question, texts)
