"""Plain decoding, one token a step: the baseline of every speedup and the oracle of every test.

B: batch, V: vocabulary.
"""

import jax.numpy as jnp
from jaxtyping import Array, Int

from tiger_jax.decoding.draft_tree import chain_mask
from tiger_jax.decoding.state import (
    DecodeState,
    Limits,
    emit,
    record_round,
    token_logprobs,
    while_active,
)
from tiger_jax.models.interface import Params, VisionLanguageModel
from tiger_jax.ops import sampling
from tiger_jax.ops.sampling import Purpose, Sampling, SamplingMode


def decode(
    model: VisionLanguageModel, params: Params, state: DecodeState, request: Sampling,
    limits: Limits, steps: Int[Array, ""], *, mode: SamplingMode,
) -> DecodeState:  # fmt: skip
    """Run until every row has finished, or for `steps` more tokens."""

    def step(state: DecodeState) -> DecodeState:
        return decode_step(model, params, state, request, limits, mode=mode)

    return while_active(step, state, steps)


def decode_step(
    model: VisionLanguageModel, params: Params, state: DecodeState, request: Sampling,
    limits: Limits, *, mode: SamplingMode,
) -> DecodeState:  # fmt: skip
    """Run the pending token and emit its successor."""
    active = state.active
    positions = (state.lengths + state.rope_deltas)[:, None]
    mask = chain_mask(state.lengths, 1, state.cache.capacity)
    hidden, cache, _ = model.extend(
        params, state.pending[:, None], positions, state.cache, state.lengths, mask
    )
    raw = model.logits(params, hidden)
    logits = sampling.mask_undrawable(raw, limits.drawable)
    if mode is SamplingMode.GREEDY:
        token = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    else:
        law = sampling.next_token_law(logits, request, mode)
        keys = sampling.draw_keys(request.seeds, state.lengths[:, None] + 1, Purpose.EMIT)
        token = sampling.draw(law, keys, mode)
    one = jnp.ones_like(state.counts)
    state, emitted = emit(state, limits, token, token_logprobs(raw, token), one)
    state = record_round(state, active, jnp.zeros_like(one), jnp.zeros_like(one))
    return state.replace(
        cache=cache,
        lengths=state.lengths + emitted,
        previous=jnp.where(emitted > 0, state.pending, state.previous),
        pending=jnp.where(emitted > 0, token[:, 0], state.pending),
    )
