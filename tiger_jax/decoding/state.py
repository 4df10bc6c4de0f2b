"""What a decoding loop carries, and how emitted tokens enter it.

B: batch, M: room for emitted tokens, E: stop ids, n: tokens of one round, V: vocabulary.
"""

import enum
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from tiger_jax.ops.kv_cache import KVCache


class Finish(enum.IntEnum):
    """Why a row stopped. STOP_STRING is found by the host, which alone knows the text."""

    RUNNING = 0
    STOP_TOKEN = 1
    LENGTH = 2
    STOP_STRING = 3


@struct.dataclass
class Limits:
    """What ends a request, and which ids may be drawn: arrays, so that they never recompile."""

    stop_ids: Int[Array, "B E"]
    """Ids that end a row when emitted, padded with -1."""
    max_new_tokens: Int[Array, "B"]
    """0 marks a row that only fills the batch."""
    drawable: Bool[Array, "V"]
    """False for ids beyond the tokenizer, for <image> and for padding."""


@struct.dataclass
class DecodeState:
    """One batch between two rounds. Donated to every program that takes it."""

    cache: KVCache | None
    """The verifier's keys and values; None where a drafter answers alone."""
    lengths: Int[Array, "B"]
    """Valid cache rows; also the row that `pending` will have."""
    rope_deltas: Int[Array, "B"]
    """Rotary position minus row number of every token behind the prompt: pictures may take fewer
    positions than rows."""
    pending: Int[Array, "B"]
    """The last emitted token, which the verifier's cache does not hold yet."""
    previous: Int[Array, "B"]
    """The token before it, which the drafter's cache may lack."""
    tokens: Int[Array, "B M"]
    """Emitted tokens; entries from counts[b] on are stale."""
    logprobs: Float[Array, "B M"]
    """Natural-log probability of each emitted token under the verifier's own, unprocessed law."""
    counts: Int[Array, "B"]
    finish: Int[Array, "B"]
    """A `Finish` value per row."""
    rounds: Int[Array, "B"]
    """Verifications that a row took part in while it was running."""
    drafted: Int[Array, "B"]
    """Draft tokens proposed."""
    accepted: Int[Array, "B M"]
    """A of each round, after the cut at a stop token or at the length limit."""
    drafter: Any = ()
    """The drafter's own state; nothing in plain decoding."""

    @property
    def active(self) -> Bool[Array, "B"]:
        """Rows still running."""
        return self.finish == Finish.RUNNING


def while_active(
    step: Callable[[DecodeState], DecodeState], state: DecodeState, bound: Int[Array, ""]
) -> DecodeState:
    """`step` again and again until every row has finished, or `bound` times."""

    def going(carry: tuple[Array, DecodeState]) -> Array:
        done, state = carry
        return (done < bound) & state.active.any()

    def body(carry: tuple[Array, DecodeState]) -> tuple[Array, DecodeState]:
        done, state = carry
        return done + 1, step(state)

    return lax.while_loop(going, body, (jnp.int32(0), state))[1]


def token_logprobs(logits: Float[Array, "B n V"], tokens: Int[Array, "B n"]) -> Float[Array, "B n"]:
    """log softmax(logits)[token], float32."""
    logits = logits.astype(jnp.float32)
    top = logits.max(axis=-1)
    norm = top + jnp.log(jnp.exp(logits - top[..., None]).sum(axis=-1))
    return jnp.take_along_axis(logits, tokens[..., None], axis=2, mode="clip")[..., 0] - norm


def emit(
    state: DecodeState, limits: Limits, tokens: Int[Array, "B n"], logprobs: Float[Array, "B n"],
    available: Int[Array, "B"],
) -> tuple[DecodeState, Int[Array, "B"]]:  # fmt: skip
    """Append the first available[b] tokens of each running row, cut at the first stop id or limit.

        tokens  a b </s> c   available 4   limit far off   ->  emitted 3: a b </s>, STOP_TOKEN

    A stop token wins over the length limit when both fall on the same token. Returns the state and
    the number of tokens emitted per row (0 for rows that had finished before).
    """
    room = limits.max_new_tokens - state.counts
    is_stop = (tokens[:, :, None] == limits.stop_ids[:, None]).any(axis=-1)
    order = jnp.arange(tokens.shape[1])[None]
    first_stop = jnp.min(jnp.where(is_stop, order, tokens.shape[1]), axis=1)
    emitted = jnp.minimum(jnp.minimum(available, first_stop + 1), room)
    emitted = jnp.where(state.active, jnp.maximum(emitted, 0), 0)
    stopped = state.active & (first_stop < emitted)
    full = state.active & (state.counts + emitted >= limits.max_new_tokens)
    finish = jnp.where(full, Finish.LENGTH, state.finish)
    finish = jnp.where(stopped, Finish.STOP_TOKEN, finish).astype(jnp.int32)
    # Rows that emit nothing write behind their own end, where entries are stale anyway.
    return state.replace(
        tokens=_write(state.tokens, tokens, state.counts),
        logprobs=_write(state.logprobs, logprobs, state.counts),
        counts=state.counts + emitted,
        finish=finish,
    ), emitted


def record_round(
    state: DecodeState, active: Bool[Array, "B"], drafted: Int[Array, "B"],
    accepted: Int[Array, "B"],
) -> DecodeState:  # fmt: skip
    """Count one round for the rows that ran in it."""
    return state.replace(
        accepted=_write(state.accepted, accepted[:, None], state.rounds),
        rounds=state.rounds + active,
        drafted=state.drafted + jnp.where(active, drafted, 0),
    )


def _write(rows: Array, new: Array, starts: Int[Array, "B"]) -> Array:
    """rows[b, starts[b] + i] = new[b, i]; what falls behind the end is dropped."""
    batch = jnp.arange(rows.shape[0])[:, None]
    slots = starts[:, None] + jnp.arange(new.shape[1])[None]
    return rows.at[batch, slots].set(new.astype(rows.dtype), mode="drop", unique_indices=True)
