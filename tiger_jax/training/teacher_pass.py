"""What a frozen verifier says of its own responses: laws, and where it looked.

B: examples, P: prefix tokens, L: packed tokens, k, w: entries kept, V: vocabulary.

One pass over prompts with their responses, packed as in training. It serves the cache (teacher.py)
and the training that asks the verifier online.
"""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from tiger_jax.models.interface import VisionLanguageModel
from tiger_jax.training import block_layout
from tiger_jax.training.block_layout import Prefixes, TextRows
from tiger_jax.training.distill_loss import attention_target, same_segment, window_mean


@dataclasses.dataclass(frozen=True)
class TeacherSettings:
    """What the verifier is asked for; part of the cache's fingerprint."""

    temperature: float = 1.0
    """Of its responses; 0 is greedy."""
    seed: int = 0
    max_new_tokens: int = 96
    kept_tokens: int = 32
    """Likeliest tokens of each law; the rest of its mass is one lump (forward_kl)."""
    kept_rows: int = 32
    """Bank rows of each attention target."""
    window: int = 5
    """Tokens over which the attention is averaged: about a draft."""
    power: float = 3.0
    """Sharpening of the attention (method.md 2.1)."""


class Said(NamedTuple):
    """What a pass over the packed texts gives, for every token.

    k and w are those of the settings whatever vocabulary and prefix are: missing entries have the
    id -1, and -inf or the weight 0.
    """

    law_ids: Int[Array, "B L k"]
    """The likeliest next tokens."""
    law_logprobs: Float[Array, "B L k"]
    next_logprobs: Float[Array, "B L"]
    """Of the token that does come next."""
    route_ids: Int[Array, "B L w"]
    """Prefix tokens that matter most for the tokens after this one."""
    route_weights: Float[Array, "B L w"]


@partial(jax.jit, static_argnames=("model", "settings"))
def teacher_pass(
    model: VisionLanguageModel, settings: TeacherSettings, params: Any, prefix: Prefixes,
    text: TextRows,
) -> Said:  # fmt: skip
    run = block_layout.run_prompts(model, params, prefix, text)
    logprobs = jax.nn.log_softmax(model.logits(params, run.hidden), axis=-1)
    best, ids = lax.top_k(logprobs, min(settings.kept_tokens, logprobs.shape[-1]))
    after = jnp.roll(text.tokens, -1, axis=1)
    following = jnp.take_along_axis(logprobs, after[..., None], axis=-1, mode="clip")[..., 0]
    seen = jnp.where(prefix.is_visual[:, None], run.attention, 0.0)
    # What a segment's last token predicts is no part of the response.
    next_segments = jnp.pad(text.segments[:, 1:], ((0, 0), (0, 1)))
    inner = jnp.where(next_segments == text.segments, text.segments, 0)
    target = attention_target(
        window_mean(seen, same_segment(inner, settings.window)), settings.power
    )
    weights, rows = lax.top_k(target, min(settings.kept_rows, target.shape[-1]))
    return Said(
        law_ids=pad_entries(ids, settings.kept_tokens, -1),
        law_logprobs=pad_entries(best, settings.kept_tokens, -jnp.inf),
        next_logprobs=following,
        route_ids=pad_entries(rows, settings.kept_rows, -1),
        route_weights=pad_entries(weights, settings.kept_rows, 0.0),
    )


def pad_entries(entries: Array, count: int, fill: int | float) -> Array:
    """Kept entries [.., .., n] -> [.., .., count]."""
    missing = count - entries.shape[-1]
    return jnp.pad(entries, ((0, 0), (0, 0), (0, missing)), constant_values=fill)
