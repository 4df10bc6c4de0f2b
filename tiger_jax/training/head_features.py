"""What a head reads of its frozen verifier: hidden states along prompts and responses, the visual
tokens, and where each token looks.

B: examples, P: prefix tokens, L: packed text tokens, D: width, F: width of the tapped hidden
states, w: kept rows of a look, R: bank rows, M: blocks, g: draft length.

One pass over prompts with their responses, packed as in training: it fills the cache
(feature_teacher.py), serves training that asks the verifier online, and exact evaluation.
"""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from tiger_jax.models.head import Shared
from tiger_jax.models.interface import VisionLanguageModel
from tiger_jax.routing.bank import gather_rows
from tiger_jax.training import block_layout
from tiger_jax.training.block_layout import Prefixes, TextRows
from tiger_jax.training.distill_loss import attention_target
from tiger_jax.training.draft_batch import DraftBatch
from tiger_jax.training.head_batch import HeadBatch
from tiger_jax.training.teacher_pass import pad_entries


@dataclasses.dataclass(frozen=True)
class FeatureSettings:
    """What is asked for; part of the cache's fingerprint."""

    taps: tuple[int, ...]
    """Hidden states, in Hugging Face numbering."""
    kept_rows: int = 16
    """Bank rows of each look."""
    power: float = 3.0
    """Sharpening of the attention (method.md 2.1)."""


class Features(NamedTuple):
    """Of one batch of packed texts."""

    table: Float[Array, "N D"]
    """Embeddings of the visual rows that prefix_image_rows name."""
    prefix: Float[Array, "B P F"]
    text: Float[Array, "B L F"]
    look_ids: Int[Array, "B L w"]
    """Bank rows that the verifier looks at while it reads each text token; -1 = no entry."""
    look_weights: Float[Array, "B L w"]


@partial(jax.jit, static_argnames=("model", "settings"))
def verifier_features(
    model: VisionLanguageModel, settings: FeatureSettings, params: Any, prefix: Prefixes,
    text: TextRows,
) -> Features:  # fmt: skip
    """The verifier over packed texts."""
    run = block_layout.run_prompts(model, params, prefix, text, settings.taps)
    seen = jnp.where(prefix.is_visual[:, None], run.attention, 0.0)
    target = attention_target(seen, settings.power)
    weights, rows = lax.top_k(target, min(settings.kept_rows, target.shape[-1]))
    bank_rows = jnp.cumsum(prefix.is_visual, axis=1) - 1
    flat = jnp.take_along_axis(bank_rows, rows.reshape(rows.shape[0], -1), axis=1, mode="clip")
    ids = jnp.where(weights > 0, flat.reshape(rows.shape), -1)
    return Features(
        table=model.encode_images(params, prefix.tiles)[:, : model.config.text.hidden_size],
        prefix=run.prefix_tapped, text=run.tapped,
        look_ids=pad_entries(ids, settings.kept_rows, -1),
        look_weights=pad_entries(weights, settings.kept_rows, 0.0),
    )  # fmt: skip


def with_features(
    model: VisionLanguageModel, settings: FeatureSettings, params: Any, draft: DraftBatch,
    shared: Shared,
) -> HeadBatch:  # fmt: skip
    """A drafter's batch with what a head needs beside it, asked online."""
    found = verifier_features(model, settings, params, draft.prefixes, draft.text)
    weights = jnp.where(draft.live[..., None], draft.at_blocks(found.look_weights), 0.0)
    return HeadBatch(
        draft=draft, visual=gather_rows(found.table, draft.stream.bank),
        prefix_features=found.prefix, text_features=found.text,
        look_ids=jnp.where(weights > 0, draft.at_blocks(found.look_ids), -1), look_weights=weights,
        shared=shared,
    )  # fmt: skip
