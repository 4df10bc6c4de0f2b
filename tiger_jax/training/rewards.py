"""What a drafted block is worth: the verifier's acceptance, turned into a reward and an advantage.

K: sampled blocks of an anchor, g: draft length, V: vocabulary, E: end tokens.

The reward of the paper is A, the accepted prefix (arXiv 2607.11131, Eq. accepted-prefix-k). Every
reward reads the outcome of one coin per position (`accepted`) and the coins' probabilities, both
extended past the end token:

    tokens          a    b   </s>   x    x          g = 5; x: drawn after the end, means nothing
    before_end      1    1    1     0    0
    accepted        1    1    1     .    .   ->  1 1 1 1 1    A = 5
    accepted        1    1    0     .    .   ->  1 1 0 0 0    A = 2
    probabilities  .9   .5   .8     .    .   -> .9 .5 .8 1 1

Without it a block that rightly ends is paid less than a long one, and the drafter learns to
propose long wordings (trial.md 4: A 3.12 -> 2.72 on short answers).
"""

from collections.abc import Callable, Sequence

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from tiger_jax.errors import UserError
from tiger_jax.ops.sampling import log_chosen


def acceptance_probabilities(
    q_logits: Float[Array, "... g V"], p_logits: Float[Array, "... g V"],
    tokens: Int[Array, "... g"], temperature: float,
) -> Float[Array, "... g"]:  # fmt: skip
    """Probability that the verifier accepts each token: min(1, p/q), by the rule of decoding.

    Args:
        q_logits, p_logits: raw logits of drafter and verifier at the token's position.
        tokens: the drafts, drawn from q.
        temperature: of both laws, static; no top-k or top-p. 0: accepted iff argmax of p.

    Raises:
        UserError: a negative temperature.
    """
    if temperature < 0:
        raise UserError(f"temperature: expected 0 or more, got {temperature}")
    if temperature == 0:
        return (tokens == jnp.argmax(p_logits, axis=-1)).astype(jnp.float32)
    ratio = log_chosen(p_logits, tokens, temperature) - log_chosen(q_logits, tokens, temperature)
    return jnp.exp(jnp.minimum(ratio, 0.0))


def accepted_prefix(
    accepted: Bool[Array, "... g"] | Float[Array, "... g"],
) -> Float[Array, "..."]:
    """sum_u prod_{m<=u} accepted_m: A of coins, the expected A of probabilities; 0 .. g."""
    return jnp.cumprod(accepted.astype(jnp.float32), axis=-1).sum(axis=-1)


def binary(accepted: Bool[Array, "... g"] | Float[Array, "... g"]) -> Float[Array, "..."]:
    """1 where A >= 1."""
    return (accepted[..., 0] > 0).astype(jnp.float32)


def token_agreement(
    accepted: Bool[Array, "... g"] | Float[Array, "... g"],
) -> Float[Array, "..."]:
    """Share of positions accepted on their own coin, whatever stands before them."""
    return accepted.astype(jnp.float32).mean(axis=-1)


def expected_prefix(probabilities: Float[Array, "... g"]) -> Float[Array, "..."]:
    """E[A | block]: the mean of `accepted_prefix` over the coins, without their variance."""
    return accepted_prefix(probabilities)


REWARDS: dict[str, Callable[[Array, Array], Array]] = {
    "accepted_prefix": lambda accepted, probabilities: accepted_prefix(accepted),
    "binary": lambda accepted, probabilities: binary(accepted),
    "token_agreement": lambda accepted, probabilities: token_agreement(accepted),
    "expected_prefix": lambda accepted, probabilities: expected_prefix(probabilities),
}
"""name -> function of (accepted [..., g], probabilities [..., g]), both extended past the end."""

CLOSED_FORM = frozenset({"expected_prefix"})
"""Rewards without coins. Their advantages are not divided by the group's standard deviation:
it can be tiny, and near-equal rewards would become advantages of +-1."""


def before_end(
    tokens: Int[Array, "... g"], end_ids: Int[Array, "E"] | Sequence[int]
) -> Bool[Array, "... g"]:
    """m_u of the loss: True up to and including the first end token; -1 in `end_ids` is none."""
    return _ends_before(_is_end(tokens, end_ids)) == 0


def extend_past_end(
    accepted: Bool[Array, "... g"] | Float[Array, "... g"], tokens: Int[Array, "... g"],
    end_ids: Int[Array, "E"] | Sequence[int],
) -> Bool[Array, "... g"] | Float[Array, "... g"]:  # fmt: skip
    """Positions after an accepted end token count as accepted.

    Float (probabilities) become 1 there: products of prefixes then carry the end token's on. Bool
    (coins) become the end token's own coin: the prefix is the same, and `token_agreement` does not
    pay for what follows a rejected end token.
    """
    end = _is_end(tokens, end_ids)
    live = _ends_before(end) == 0
    if accepted.dtype != bool:
        return jnp.where(live, accepted, jnp.ones_like(accepted))
    end_accepted = (accepted & end & live).any(axis=-1, keepdims=True)
    return jnp.where(live, accepted, jnp.broadcast_to(end_accepted, accepted.shape))


def group_advantages(
    rewards: Float[Array, "... K"], eps: float, divide_by_std: bool
) -> tuple[Float[Array, "... K"], Float[Array, "..."]]:
    """(R - mean) / (std + eps) inside each group (Eq. advantage), and std (over K, not K - 1).

    A group of equal rewards has advantages and std of exactly 0. Without `divide_by_std`, for
    rewards in CLOSED_FORM, it is R - mean.
    """
    rewards = rewards.astype(jnp.float32)
    # The mean of equal numbers can be off by a bit, which the division by eps would magnify.
    spread = rewards.max(axis=-1) > rewards.min(axis=-1)
    centred = rewards - rewards.mean(axis=-1, keepdims=True)
    centred = jnp.where(spread[..., None], centred, 0.0)
    std = jnp.sqrt(jnp.square(centred).mean(axis=-1))
    return (centred / (std[..., None] + eps) if divide_by_std else centred), std


def _is_end(
    tokens: Int[Array, "... g"], end_ids: Int[Array, "E"] | Sequence[int]
) -> Bool[Array, "... g"]:
    ids = jnp.asarray(end_ids, jnp.int32).reshape((1,) * tokens.ndim + (-1,))
    return ((tokens[..., None] == ids) & (ids >= 0)).any(axis=-1)


def _ends_before(end: Bool[Array, "... g"]) -> Int[Array, "... g"]:
    """Number of end tokens before each position."""
    ends = end.astype(jnp.int32)
    return jnp.cumsum(ends, axis=-1) - ends
