"""Speculative decoding: draft, verify, accept, commit; many rounds in one `lax.while_loop`.

B: batch, N: nodes with the root, D1: draft depth + 1, C: cache rows, V: vocabulary.

    cache rows     0 ........ length-1 | length   length+1 ...  length+N-1
    hold           committed tokens    | root     draft nodes (verified this round)
    after A hits   ..................... root, the A accepted nodes | stale, overwritten later
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from tiger_jax.decoding import draft_tree, verification
from tiger_jax.decoding.draft_tree import DraftTree
from tiger_jax.decoding.drafters.protocol import Commit, Drafter, RoundContext
from tiger_jax.decoding.state import (
    DecodeState,
    Limits,
    emit,
    record_round,
    token_logprobs,
    while_active,
)
from tiger_jax.decoding.verification import Acceptance
from tiger_jax.models.interface import Params, VisionLanguageModel
from tiger_jax.ops import sampling
from tiger_jax.ops.gather import take_rows
from tiger_jax.ops.kv_cache import KVCache, move_rows
from tiger_jax.ops.sampling import Purpose, Sampling, SamplingMode


def decode(
    model: VisionLanguageModel, drafter: Drafter, params: Params, drafter_params: Any,
    state: DecodeState, request: Sampling, limits: Limits, rounds: Int[Array, ""], *,
    mode: SamplingMode,
) -> DecodeState:  # fmt: skip
    """Run rounds until every row has finished, or `rounds` of them (streaming asks for one)."""

    def step(state: DecodeState) -> DecodeState:
        return decode_round(
            model, drafter, params, drafter_params, state, request, limits, mode=mode
        )

    return while_active(step, state, rounds)


def decode_round(
    model: VisionLanguageModel, drafter: Drafter, params: Params, drafter_params: Any,
    state: DecodeState, request: Sampling, limits: Limits, *, mode: SamplingMode,
) -> DecodeState:  # fmt: skip
    """One draft, one verification, one commit; every row accepts its own number of tokens."""
    spec = drafter.spec
    active = state.active
    context = RoundContext.of(state, request, limits)
    tree, drafter_state = drafter.propose(drafter_params, state.drafter, context, mode)
    raw, cache, taps = _verify(model, drafter, params, tree, state)
    outcome = _accept(drafter, tree, raw, state.lengths, request, limits, mode)
    tokens = tree.tokens
    if not spec.is_chain:  # a chain is its own path
        cache = move_rows(cache, state.lengths, outcome.path)
        tokens, raw, taps = (take_rows(x, outcome.path) for x in (tokens, raw, taps))
    commit = Commit(
        path=outcome.path, accepted=outcome.accepted, tokens=tokens,
        next_token=outcome.next_token, lengths=state.lengths, taps=taps,
    )  # fmt: skip
    state = state.replace(
        cache=cache, drafter=drafter.observe(drafter_params, drafter_state, commit)
    )
    block = _committed_block(tokens, outcome)
    logprobs = token_logprobs(raw, block)
    state, emitted = emit(state, limits, block, logprobs, outcome.accepted + 1)
    drafted = tree.valid[:, 1:].sum(axis=1, dtype=jnp.int32)
    state = record_round(state, active, drafted, jnp.minimum(outcome.accepted, emitted))
    return _move_root(state, tokens, outcome, emitted)


def _verify(
    model: VisionLanguageModel, drafter: Drafter, params: Params, tree: DraftTree,
    state: DecodeState,
) -> tuple[Float[Array, "B N V"], KVCache, Float[Array, "B N F"]]:  # fmt: skip
    """The verifier over all nodes at once: raw logits, its cache, its tapped hidden states."""
    spec, capacity = drafter.spec, state.cache.capacity
    if spec.is_chain:
        mask = draft_tree.chain_mask(state.lengths, spec.nodes, capacity)
        depths = jnp.arange(spec.nodes)[None]
    else:
        seen = draft_tree.ancestors(tree, spec)
        mask = draft_tree.cache_mask(seen, state.lengths, capacity)
        depths = draft_tree.depths(seen)
    positions = (state.lengths + state.rope_deltas)[:, None] + depths
    hidden, cache, taps = model.extend(
        params, tree.tokens, positions, state.cache, state.lengths, mask, spec.taps
    )
    return model.logits(params, hidden), cache, taps


def _accept(
    drafter: Drafter, tree: DraftTree, raw: Float[Array, "B N V"], lengths: Int[Array, "B"],
    request: Sampling, limits: Limits, mode: SamplingMode,
) -> Acceptance:  # fmt: skip
    """Greedy and guessed drafts by the match rule, sampled ones by the residual rule."""
    logits = sampling.mask_undrawable(raw, limits.drawable)
    spec = drafter.spec
    if mode is SamplingMode.GREEDY:
        choices = jnp.argmax(logits, axis=-1).astype(jnp.int32)
        return verification.accept_matches(tree, spec, choices)
    laws = sampling.next_token_law(logits, request, mode)
    seeds = request.seeds
    if not spec.samples:
        depth = draft_tree.depths(draft_tree.ancestors(tree, spec))
        keys = sampling.draw_keys(seeds, lengths[:, None] + depth + 1, Purpose.EMIT)
        return verification.accept_matches(tree, spec, sampling.draw(laws, keys, mode))
    positions = lengths[:, None] + jnp.arange(1, spec.nodes)[None]
    coin_keys = sampling.draw_keys(seeds, positions, Purpose.ACCEPT)
    coins = jax.vmap(jax.vmap(lambda key: jax.random.uniform(key)))(coin_keys)
    path, accepted, law, rejected = verification.accept_residual(tree, laws, coins)
    position = (lengths + accepted + 1)[:, None]
    recover = sampling.draw(
        law[:, None], sampling.draw_keys(seeds, position, Purpose.RECOVER), mode
    )
    plain = sampling.draw(law[:, None], sampling.draw_keys(seeds, position, Purpose.EMIT), mode)
    next_token = jnp.where(rejected, recover[:, 0], plain[:, 0])
    return Acceptance(path=path, accepted=accepted, next_token=next_token)


def _committed_block(tokens: Int[Array, "B D1"], outcome: Acceptance) -> Int[Array, "B D1"]:
    """[root, d1 .. dA, -] -> [d1 .. dA, next_token, -]."""
    shifted = jnp.concatenate([tokens[:, 1:], tokens[:, :1]], axis=1)
    is_next = jnp.arange(tokens.shape[1])[None] == outcome.accepted[:, None]
    return jnp.where(is_next, outcome.next_token[:, None], shifted)


def _move_root(
    state: DecodeState, tokens: Int[Array, "B D1"], outcome: Acceptance, emitted: Int[Array, "B"]
) -> DecodeState:
    """The next round starts at next_token, behind the root and the accepted nodes.

    A block that was cut ended its row, so `emitted` is A + 1 wherever another round follows.
    """
    moved = emitted > 0
    last = jnp.take_along_axis(tokens, outcome.accepted[:, None], axis=1, mode="clip")[:, 0]
    return state.replace(
        lengths=state.lengths + emitted,
        previous=jnp.where(moved, last, state.previous),
        pending=jnp.where(moved, outcome.next_token, state.pending),
    )
