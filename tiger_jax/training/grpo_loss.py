"""Three objectives that raise A, the drafted tokens that a verifier accepts in a round.

B: pictures, M: anchors of a picture, K: sampled blocks of an anchor, g: draft length,
V: vocabulary.

With a_m = min(1, p(y_m)/q(y_m)) the acceptance of a drafted token and P(accepted, y) = min(p, q),

    E[A] = sum_u sum_{y_1..y_u} prod_{m<=u} min(p(y_m), q(y_m))

grpo                 the paper's: a score-function estimate whose reward takes a_m as constant. But
                     a_m falls where q rises above p, so it pushes up tokens that q over-proposes.
grpo_exact           d min(p, q) = 1[q < p] q d log q, so the gradient of E[A] is
                     E_{y~q} sum_m 1[q_m < p_m] d log q_m sum_{u>=m} prod_{l<=u} a_l.
expected_acceptance  the same E[A] over the verifier's own text: q a = min(p, q) = p min(1, q/p), so
                     it is E_{y~p} sum_u prod_{m<=u} min(1, q_m/p_m), with nothing to sample.

End-token rule (rewards.py): behind an end token p = q = 1, so its prefix counts once for every
position that is left, and no position there has a gradient.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from tiger_jax.errors import UserError

CREDITS = ("block", "prefix")


def grpo(
    log_q: Float[Array, "B M K g"], advantages: Float[Array, "B M K"],
    credit: Bool[Array, "B M K g"],
) -> Float[Array, "B M"]:  # fmt: skip
    """Policy loss - mean_k adv_k sum_u m_u log q(y_u), to be minimised (Eq. grpo without its KL).

    The paper sums over k; the mean keeps the learning rate when K changes.

    Args:
        log_q: of the drawn tokens, under the law they were drawn from.
        advantages: rewards.group_advantages; constants.
        credit: m, from `credit_mask`.
    """
    blocks = jnp.where(credit, log_q, 0.0).sum(axis=-1)
    return -(jax.lax.stop_gradient(advantages) * blocks).mean(axis=-1)


def credit_mask(
    credit: str, live: Bool[Array, "... g"], accepted: Bool[Array, "... g"]
) -> Bool[Array, "... g"]:
    """Positions whose log q the advantage multiplies.

        accepted  1 1 0 1 0     block   1 1 1 1 1
                                prefix  1 1 1 0 0     up to and including the first rejection

    Raises:
        UserError: `credit` is neither "block" (the paper) nor "prefix".
    """
    if credit not in CREDITS:
        raise UserError(f"credit: expected one of {', '.join(CREDITS)}, got {credit}")
    if credit == "block":
        return live
    rejected = (~accepted).astype(jnp.int32)
    return live & (jnp.cumsum(rejected, axis=-1) - rejected == 0)


def exact_kl(
    q_logits: Float[Array, "... V"], ref_logits: Float[Array, "... V"]
) -> Float[Array, "..."]:
    """KL(q || q_ref) in nats over the whole vocabulary; no gradient reaches q_ref.

    The usual one-sample log q(y) - log q_ref(y) has an expected gradient of zero when it stands in
    a loss; this one's is right. Logits that forbid a token are NEVER (finite) on both sides.
    """
    q = jax.nn.log_softmax(q_logits.astype(jnp.float32), axis=-1)
    ref = jax.nn.log_softmax(ref_logits.astype(jnp.float32), axis=-1)
    return (jnp.exp(q) * (q - jax.lax.stop_gradient(ref))).sum(axis=-1)


def grpo_exact(
    log_q: Float[Array, "B M K g"], log_p: Float[Array, "B M K g"], live: Bool[Array, "B M K g"]
) -> Float[Array, "B M"]:
    """Loss whose gradient is an unbiased estimate of that of -E[A]; its value means nothing.

    Args:
        log_q, log_p: of tokens drawn from q, at the temperature they were drawn with.
        live: rewards.before_end.

    No baseline: the credited tokens alone (q < p) have no mean score of zero, so subtracting
    the group's mean from their return would bias the gradient.
    """
    q, p = jax.lax.stop_gradient(log_q), jax.lax.stop_gradient(log_p)
    prefixes = _prefix_products(p, q, live)
    to_go = jnp.cumsum(prefixes[..., ::-1], axis=-1)[..., ::-1]
    credit = live & (q < p)
    return -(to_go * jnp.where(credit, log_q, 0.0)).sum(axis=-1).mean(axis=-1)


def expected_acceptance(
    log_q: Float[Array, "B M g"], log_p: Float[Array, "B M g"], live: Bool[Array, "B M g"],
    ended: Bool[Array, "B M"] | None = None,
) -> Float[Array, "B M"]:  # fmt: skip
    """E[A] given the verifier's own text, 0 .. g: a value to be MAXIMISED, not a loss.

    Args:
        log_q, log_p: of the verifier's tokens y ~ p that follow the anchor.
        live: False behind the end token, or behind what is known of a text cut off.
        ended: whether the positions that are not live lie behind an end token and so count as
            accepted with it; where False they count nothing. None: everywhere.
    """
    prefixes = _prefix_products(log_q, jax.lax.stop_gradient(log_p), live)
    if ended is not None:
        prefixes = jnp.where(live | ended[..., None], prefixes, 0.0)
    return prefixes.sum(axis=-1)


def _prefix_products(
    upper: Float[Array, "... g"], lower: Float[Array, "... g"], live: Bool[Array, "... g"]
) -> Float[Array, "... g"]:
    """prod_{m<=u} min(1, exp(upper_m - lower_m)); a factor of 1 where not live."""
    falls = live & (upper < lower)
    # where, not minimum: at equality (q = p) minimum would pass half a gradient.
    return jnp.exp(jnp.cumsum(jnp.where(falls, upper - lower, 0.0), axis=-1))
