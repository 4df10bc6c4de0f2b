"""Reading the prompts: pictures through the tower, everything through the decoder, once.

B: batch, S: prompt length (bucketed), C: cache rows, M: room for emitted tokens, V: vocabulary.
"""

from typing import Any

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from tiger_jax.decoding.drafters.protocol import Drafter, PromptArrays
from tiger_jax.decoding.state import DecodeState, Finish, Limits, emit, token_logprobs
from tiger_jax.models.interface import Params, VisionLanguageModel
from tiger_jax.ops import sampling
from tiger_jax.ops.kv_cache import KVCache
from tiger_jax.ops.sampling import Purpose, Sampling, SamplingMode


@struct.dataclass
class Prefilled:
    """One model after the prompts."""

    cache: KVCache
    logits: Float[Array, "B 1 V"]
    """Scores of the first new token."""
    taps: Float[Array, "B S F"]


def prefill_model(
    model: VisionLanguageModel, params: Params, prompt: PromptArrays, capacity: int,
    taps: tuple[int, ...] = (),
) -> Prefilled:  # fmt: skip
    """Run right-padded prompts into a fresh cache of `capacity` rows."""
    table = None if prompt.tiles is None else model.encode_images(params, prompt.tiles)
    x = model.embed(params, prompt.tokens, prompt.image_rows, table)
    cache = model.init_cache(x.shape[0], capacity)
    hidden, cache, tapped = model.prefill(params, x, cache, taps, prompt.positions)
    last = jnp.take_along_axis(hidden, (prompt.lengths - 1)[:, None, None], axis=1)
    return Prefilled(cache=cache, logits=model.logits(params, last), taps=tapped)


def start(
    model: VisionLanguageModel, drafter: Drafter | None, params: Params, drafter_params: Any,
    prompt: PromptArrays, request: Sampling, limits: Limits, *,
    capacity: int, room: int, mode: SamplingMode,
) -> DecodeState:  # fmt: skip
    """Prefill verifier and drafter and emit the first token, which comes from the prompt alone.

    Args:
        capacity: cache rows; at least the longest prompt + max_new_tokens + the drafter's nodes.
        room: M, at least the largest max_new_tokens.
    """
    taps = drafter.spec.taps if drafter else ()
    read = prefill_model(model, params, prompt, capacity, taps)
    own = drafter.prefill(drafter_params, prompt, read.taps, capacity) if drafter else ()
    return first_state(read.logits, read.cache, own, prompt, request, limits, room, mode)


def first_state(
    raw: Float[Array, "B 1 V"], cache: KVCache | None, drafter: Any, prompt: PromptArrays,
    request: Sampling, limits: Limits, room: int, mode: SamplingMode,
) -> DecodeState:  # fmt: skip
    """Emit the first token.

    Args:
        raw: its scores, undrawable ids not masked.
        cache: of the verifier, after the prompts.
        drafter: the drafter's state, likewise.
    """
    logits = sampling.mask_undrawable(raw, limits.drawable)
    law = sampling.next_token_law(logits, request, mode)
    keys = sampling.draw_keys(request.seeds, prompt.lengths[:, None], Purpose.EMIT)
    first = sampling.draw(law, keys, mode)
    batch = prompt.tokens.shape[0]
    none = jnp.zeros((batch,), jnp.int32)
    state = DecodeState(
        cache=cache,
        lengths=prompt.lengths,
        rope_deltas=prompt.rope_deltas,
        pending=first[:, 0],
        previous=prompt.last_tokens,
        tokens=jnp.zeros((batch, room), jnp.int32),
        logprobs=jnp.zeros((batch, room), jnp.float32),
        counts=none,
        finish=jnp.where(limits.max_new_tokens > 0, Finish.RUNNING, Finish.LENGTH).astype(
            jnp.int32
        ),
        rounds=none,
        drafted=none,
        accepted=jnp.zeros((batch, room), jnp.int32),
        drafter=drafter,
    )
    one = jnp.ones((batch,), jnp.int32)
    return emit(state, limits, first, token_logprobs(raw, first), one)[0]
