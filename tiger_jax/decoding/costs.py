"""Measured costs of the parts of a round, in plain verifier steps of the same run: c, c_route, v.

Everything is timed inside jitted loops of many steps, warmed up, median of several repetitions, on
the caches and the batch that the run itself uses.
"""

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from tiger_jax.decoding.draft_tree import chain_mask
from tiger_jax.decoding.drafters.protocol import (
    Drafter,
    PromptArrays,
    RoundContext,
    RoutingDrafter,
)
from tiger_jax.decoding.engine import Engine, Options
from tiger_jax.decoding.programs import program
from tiger_jax.decoding.state import DecodeState, Limits
from tiger_jax.models.interface import Params, VisionLanguageModel
from tiger_jax.ops.sampling import Sampling, SamplingMode

REPEATS = 5
STEPS = 32


@dataclasses.dataclass(frozen=True)
class Costs:
    """Seconds of the parts of decoding, and their ratios."""

    plain_step: float
    """One plain verifier step."""
    draft: float
    """One proposal of `draft_length` tokens, routing included."""
    round: float
    """One whole round: proposal, verification, commit."""
    draft_length: int
    route: float = 0.0
    """What of `draft` goes to the committed tokens' pass, scores and choice, once a round; of a
    head that does not route, to the refresh with the verifier's states. 0: a drafter without."""

    @property
    def c(self) -> float:
        """One drafter step over one verifier step."""
        return (self.draft - self.route) / (self.draft_length * self.plain_step)

    @property
    def c_route(self) -> float:
        """The routing of a round over one verifier step."""
        return self.route / self.plain_step

    @property
    def v(self) -> float:
        """Verification and commit of g + 1 tokens over one verifier step."""
        return (self.round - self.draft) / self.plain_step


def measure(engine: Engine, prompt: PromptArrays, options: Sequence[Options]) -> Costs:
    """Time plain steps, proposals and rounds on these prompts.

    The stop ids are taken away and the budget filled up, so that every row runs to the end.
    """
    plain = engine.plain()
    plain_seconds = _per_round(plain, prompt, options)
    round_seconds = _per_round(engine, prompt, options)
    request, limits, room, mode = _endless(engine, prompt, options)
    state = engine.start(prompt, request, limits, room, mode)
    drafter, params = engine.drafter, engine.drafter_params
    one_thread = engine.is_small(prompt.tokens.shape[0])
    propose = program(_propose_many, one_thread, ("drafter", "mode"))
    route_seconds = 0.0
    with engine.on_mesh():
        draft_seconds = _median(
            lambda state: propose(drafter, params, state, request, limits, mode=mode), lambda: state
        )
        if isinstance(drafter, RoutingDrafter):
            route = program(_route_many, one_thread, ("drafter",))
            route_seconds = _median(
                lambda state: route(drafter, params, state, request, limits), lambda: state
            )
    return Costs(
        plain_step=plain_seconds,
        draft=draft_seconds / STEPS,
        round=round_seconds,
        draft_length=drafter.spec.depth,
        route=route_seconds / STEPS,
    )


def verification_costs(
    engine: Engine, prompt: PromptArrays, options: Sequence[Options], draft_lengths: Sequence[int]
) -> dict[int, float]:
    """v(g) for several g: a verifier pass over g + 1 tokens over one over a single token.

    Lengths between the measured ones may be interpolated; each costs one compilation.
    """
    request, limits, room, mode = _endless(engine, prompt, options)
    state = engine.start(prompt, request, limits, room, mode)

    verify = program(_verify_many, engine.is_small(prompt.tokens.shape[0]), ("model", "tokens"))

    def seconds(tokens: int) -> float:
        return _median(
            lambda state: verify(engine.model, engine.params, state, tokens=tokens), lambda: state
        )

    with engine.on_mesh():
        single = seconds(1)
        return {length: seconds(length + 1) / single for length in draft_lengths}


def _endless(
    engine: Engine, prompt: PromptArrays, options: Sequence[Options]
) -> tuple[Sampling, Limits, int, SamplingMode]:
    request, limits, room, mode = engine.prepare(prompt, options)
    limits = limits.replace(
        stop_ids=jnp.full_like(limits.stop_ids, -1),
        max_new_tokens=jnp.full_like(limits.max_new_tokens, room),
    )
    return request, limits, room, mode


def _per_round(engine: Engine, prompt: PromptArrays, options: Sequence[Options]) -> float:
    """Seconds of one round of the engine's own decode program."""
    request, limits, room, mode = _endless(engine, prompt, options)

    def start() -> DecodeState:
        return engine.start(prompt, request, limits, room, mode)

    rounds = int(engine.decode(start(), request, limits, mode).rounds.max())
    return _median(lambda state: engine.decode(state, request, limits, mode), start) / rounds


def _median(run: Callable[[DecodeState], Any], start: Callable[[], DecodeState]) -> float:
    """Median seconds of `run`, the first call (compilation) left out."""
    times = []
    for _ in range(REPEATS + 1):
        state = jax.block_until_ready(start())
        begin = time.perf_counter()
        jax.block_until_ready(run(state))
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])


def _propose_many(
    drafter: Drafter, params: Params, state: DecodeState, request: Sampling, limits: Limits, *,
    mode: SamplingMode,
) -> Array:  # fmt: skip
    """STEPS proposals, each from the last token of the one before."""

    def body(_: Array, carry: tuple[Array, Any]) -> tuple[Array, Any]:
        pending, inner = carry
        # A drafter that does not read the root (Medusa) would be run once for all turns.
        pending, inner = lax.optimization_barrier((pending, inner))
        context = _context(state, request, limits).replace(pending=pending)
        tree, inner = drafter.propose(params, inner, context, mode)
        return tree.tokens[:, -1], inner

    return lax.fori_loop(0, STEPS, body, (state.pending, state.drafter))[0]


def _route_many(
    drafter: RoutingDrafter, params: Params, state: DecodeState, request: Sampling, limits: Limits
) -> Any:
    """STEPS routes from the same root; each reads the cache that the one before wrote.

    All of the state is returned: of a selector that never asks the text, the compiler would throw
    the stream's pass away.
    """
    context = _context(state, request, limits)

    def body(_: Array, inner: Any) -> Any:
        return drafter.route(params, inner, context)

    return lax.fori_loop(0, STEPS, body, state.drafter)


def _context(state: DecodeState, request: Sampling, limits: Limits) -> RoundContext:
    """Every row drafts."""
    context = RoundContext.of(state, request, limits)
    return context.replace(active=jnp.ones_like(state.active))


def _verify_many(
    model: VisionLanguageModel, params: Params, state: DecodeState, *, tokens: int
) -> Array:
    """STEPS verifier passes over `tokens` tokens, each fed with the choices of the one before."""
    mask = chain_mask(state.lengths, tokens, state.cache.capacity)
    positions = (state.lengths + state.rope_deltas)[:, None] + jnp.arange(tokens)[None]

    def body(_: Array, carry: tuple[Array, Any]) -> tuple[Array, Any]:
        block, cache = carry
        hidden, cache, _ = model.extend(params, block, positions, cache, state.lengths, mask)
        return jnp.argmax(model.logits(params, hidden), axis=-1).astype(jnp.int32), cache

    block = jnp.broadcast_to(state.pending[:, None], (state.pending.shape[0], tokens))
    return lax.fori_loop(0, STEPS, body, (block, state.cache))[0]
