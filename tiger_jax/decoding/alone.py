"""A drafter that answers by itself: what it is worth without a verifier.

B: batch, g: draft length, V: vocabulary.

    prompt | y1 | y2 ..... y1+g | y2+g ..... y1+2g | ...
             ^    ^ route at y1   ^ route at y1+g

It sees what it sees while it drafts: a router chooses anew once every g tokens, with the state at
the last token before them; the first token has a route of its own, at the last token of the prompt.
Every draft is emitted, nothing is verified, and there is no bonus token. Tokens are drawn as plain
decoding draws them (the same keys), so that a drafter with all visual tokens says what its model
says as a verifier.

Distillation never asks for the first token, which is the verifier's in speculation
(data/draft_batches.py): a drafter that only distillation taught may be poor at it, and so at
answers of one word.
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from tiger_jax.decoding.drafters.protocol import (
    AnsweringDrafter,
    Commit,
    PromptArrays,
    RoundContext,
)
from tiger_jax.decoding.prefill import first_state
from tiger_jax.decoding.state import DecodeState, Limits, emit, token_logprobs, while_active
from tiger_jax.ops import sampling
from tiger_jax.ops.sampling import Purpose, Sampling, SamplingMode


def start(
    drafter: AnsweringDrafter, params: Any, prompt: PromptArrays, request: Sampling,
    limits: Limits, *, capacity: int, room: int, mode: SamplingMode,
) -> DecodeState:  # fmt: skip
    """Read the prompts and emit the first token of each; arguments as `prefill.start` has them."""
    root = prompt.last_tokens
    context = RoundContext(
        pending=root, previous=root, lengths=prompt.lengths - 1, rope_deltas=prompt.rope_deltas,
        active=limits.max_new_tokens > 0, sampling=request, drawable=limits.drawable,
    )  # fmt: skip
    raw, own = drafter.begin_answer(params, prompt, context, capacity)
    return first_state(raw, None, own, prompt, request, limits, room, mode)


def decode(
    drafter: AnsweringDrafter, params: Any, state: DecodeState, request: Sampling, limits: Limits,
    blocks: Int[Array, ""], *, mode: SamplingMode,
) -> DecodeState:  # fmt: skip
    """Run until every row has finished, or for `blocks` more blocks of g tokens."""

    def step(state: DecodeState) -> DecodeState:
        return decode_block(drafter, params, state, request, limits, mode=mode)

    return while_active(step, state, blocks)


def decode_block(
    drafter: AnsweringDrafter, params: Any, state: DecodeState, request: Sampling, limits: Limits,
    *, mode: SamplingMode,
) -> DecodeState:  # fmt: skip
    """Emit g tokens behind one route; rows that end within them are cut there."""
    context = RoundContext.of(state, request, limits)
    raw, own, extend = drafter.begin_block(params, state.drafter, context)
    words, logprobs = [state.pending[:, None]], []
    for number in range(1, drafter.draft_length + 1):
        if number > 1:
            raw, own = extend(words[-1], number - 1, own)
        words.append(_draw(raw, state.lengths + number, request, limits, mode))
        logprobs.append(token_logprobs(raw, words[-1]))
    tokens = jnp.concatenate(words, axis=1)
    own = drafter.observe(params, own, _commit_all(tokens, state.lengths))
    available = jnp.full_like(state.counts, drafter.draft_length)
    state, emitted = emit(
        state, limits, tokens[:, 1:], jnp.concatenate(logprobs, axis=1), available
    )
    moved = emitted > 0
    return state.replace(
        drafter=own,
        lengths=state.lengths + emitted,
        previous=jnp.where(moved, tokens[:, -2], state.previous),
        pending=jnp.where(moved, tokens[:, -1], state.pending),
    )


def _draw(
    raw: Float[Array, "B 1 V"], places: Int[Array, "B"], request: Sampling, limits: Limits,
    mode: SamplingMode,
) -> Int[Array, "B 1"]:  # fmt: skip
    """The tokens at these absolute positions."""
    logits = sampling.mask_undrawable(raw, limits.drawable)
    law = sampling.next_token_law(logits, request, mode)
    keys = sampling.draw_keys(request.seeds, places[:, None], Purpose.EMIT)
    return sampling.draw(law, keys, mode)


def _commit_all(tokens: Int[Array, "B D1"], lengths: Int[Array, "B"]) -> Commit:
    """To the drafter it is a round of which all but the last draft were accepted, and the last is
    the root of the next."""
    batch, nodes = tokens.shape
    return Commit(
        path=jnp.broadcast_to(jnp.arange(nodes, dtype=jnp.int32)[None], tokens.shape),
        accepted=jnp.full((batch,), nodes - 2, jnp.int32),
        tokens=tokens, next_token=tokens[:, -1], lengths=lengths,
        taps=jnp.zeros((batch, nodes, 0), jnp.float32),
    )  # fmt: skip
