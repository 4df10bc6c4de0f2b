"""From logits to a law over the next token, and draws from it.

B: batch, T: positions, V: vocabulary.

Drafter and verifier both go through `next_token_law`, so the ratio p/q of speculative sampling
always compares the laws that tokens were really drawn from. A request's randomness depends only on
its seed, the absolute position of the token and the purpose of the draw; never on its neighbours in
a batch.
"""

import enum

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key, UInt32

NEVER = -1e30
"""Finite, so that it subtracts without NaN; no temperature up to 1000 makes it drawable."""


class Purpose(enum.IntEnum):
    """What a random draw is for. Every purpose has its own stream: a shared one skews the law."""

    DRAFT = 0
    ACCEPT = 1
    RECOVER = 2
    EMIT = 3
    ROUTE = 4


class SamplingMode(enum.Enum):
    """How much of the sampling arithmetic a program needs; static, part of its compile key."""

    GREEDY = "greedy"
    TEMPERATURE = "temperature"
    FILTERED = "filtered"


@struct.dataclass
class Sampling:
    """Sampling options, one entry per request."""

    temperature: Float[Array, "B"]
    """0 means greedy."""
    top_k: Int[Array, "B"]
    """Keep the k most likely tokens (ties with the k-th stay); 0 keeps all."""
    top_p: Float[Array, "B"]
    """Keep the smallest set of most likely tokens whose mass reaches top_p; 1 keeps all."""
    seeds: UInt32[Array, "B"]
    """Seed of each request."""


def mask_undrawable(
    logits: Float[Array, "*B V"], drawable: Bool[Array, "V"]
) -> Float[Array, "*B V"]:
    """Take the ids that are no token of the tokenizer out of every law."""
    return jnp.where(drawable.reshape((1,) * (logits.ndim - 1) + (-1,)), logits, NEVER)


def log_chosen(
    logits: Float[Array, "*B V"], tokens: Int[Array, "*B"], temperature: float | Array = 1.0
) -> Float[Array, "*B"]:
    """log softmax(logits / temperature)[token], float32."""
    logs = jax.nn.log_softmax(logits.astype(jnp.float32) / temperature, axis=-1)
    return jnp.take_along_axis(logs, tokens[..., None], axis=-1, mode="clip")[..., 0]


def next_token_law(
    logits: Float[Array, "B T V"], sampling: Sampling, mode: SamplingMode
) -> Float[Array, "B T V"]:
    """Probabilities after temperature, then top-k, then top-p, float32; one-hot at temperature
    0.
    """
    logits = logits.astype(jnp.float32)
    greedy = jax.nn.one_hot(jnp.argmax(logits, axis=-1), logits.shape[-1], dtype=jnp.float32)
    if mode is SamplingMode.GREEDY:
        return greedy
    temperature = sampling.temperature[:, None, None]
    scaled = logits / jnp.where(temperature > 0, temperature, 1.0)
    if mode is SamplingMode.FILTERED:
        scaled = _filter(scaled, sampling)
    return jnp.where(temperature > 0, jax.nn.softmax(scaled, axis=-1), greedy)


def _filter(scaled: Float[Array, "B T V"], sampling: Sampling) -> Float[Array, "B T V"]:
    """Keep what is at least as likely as the last token inside both limits.

    descending  [5, 3, 2, 0]   top_k 3 -> the third, 2, is the lowest that stays
    mass before [0, .8, .9, 1] top_p .85 -> tokens whose mass before is < .85 stay: 5 and 3
    """
    vocabulary = scaled.shape[-1]
    descending = -jnp.sort(-scaled, axis=-1)
    k = jnp.where(sampling.top_k > 0, sampling.top_k, vocabulary)[:, None, None]
    within_k = jnp.arange(vocabulary)[None, None] < k
    law = jax.nn.softmax(jnp.where(within_k, descending, NEVER), axis=-1)
    before = jnp.cumsum(law, axis=-1) - law
    top_p = sampling.top_p[:, None, None]
    # A float32 sum reaches 1 before the last unlikely tokens: top_p = 1 has to keep them by name.
    inside = within_k & ((before < top_p) | (top_p >= 1))
    lowest = jnp.min(jnp.where(inside, descending, jnp.inf), axis=-1, keepdims=True)
    # The most likely token always stays, also for top_p = 0.
    lowest = jnp.minimum(lowest, descending[..., :1])
    return jnp.where(scaled >= lowest, scaled, NEVER)


def draw_keys(
    seeds: UInt32[Array, "B"], positions: Int[Array, "B T"], purpose: Purpose
) -> Key[Array, "B T"]:
    """One key for each (request seed, absolute position, purpose)."""

    def one(seed: Array, position: Array) -> Array:
        key = jax.random.fold_in(jax.random.key(seed), position)
        return jax.random.fold_in(key, int(purpose))

    return jax.vmap(jax.vmap(one, (None, 0)))(seeds, positions)


def draw(
    law: Float[Array, "B T V"], keys: Key[Array, "B T"], mode: SamplingMode
) -> Int[Array, "B T"]:
    """A token from each law; the argmax where the law is one-hot."""
    if mode is SamplingMode.GREEDY:
        return jnp.argmax(law, axis=-1).astype(jnp.int32)
    logs = jnp.where(law > 0, jnp.log(jnp.where(law > 0, law, 1.0)), -jnp.inf)
    drawn = jax.vmap(jax.vmap(jax.random.categorical))(keys, logs)
    return drawn.astype(jnp.int32)
