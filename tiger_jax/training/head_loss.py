"""Losses of draft heads, one number a position: features, soft and hard labels, order.

D: width, V: vocabulary, n: kept entries.

A head is taught by what is kept of the verifier's law at a position: the n likeliest entries
(ids, log-probabilities), most likely first, -1 = padding. What each method is trained with
(baselines.md 3.1-3.4):

    EAGLE-1/2    smooth_l1 + 0.1 cross_entropy
    EAGLE-3      0.8^i draft_cross_entropy of unrolled step i
    ViSpec       smooth_l1 + 0.1 (cross_entropy + 0.1 list_mle) on text,
                 then 10 probability_l1 + 0.1 list_mle on pictures
    Medusa       hard_cross_entropy

Nothing is reduced here: weights of positions, of steps and the mean belong to the caller.
"""

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from tiger_jax.ops.sampling import NEVER
from tiger_jax.training.distill_loss import LOWEST, CoarseLaws, coarse_laws


def smooth_l1(
    prediction: Float[Array, "... D"], target: Float[Array, "... D"]
) -> Float[Array, "..."]:
    """Mean over D of e^2 / 2 where |e| <= 1 and |e| - 1/2 elsewhere, float32.

    No gradient reaches the target, which is a state of the verifier.
    """
    target = jax.lax.stop_gradient(target.astype(jnp.float32))
    errors = optax.losses.huber_loss(prediction.astype(jnp.float32), target, delta=1.0)
    return errors.mean(axis=-1)


def cross_entropy(
    logits: Float[Array, "... V"], ids: Int[Array, "... n"], logprobs: Float[Array, "... n"]
) -> Float[Array, "..."]:
    """Cross entropy (nats) of softmax(logits) against the kept law and one bucket for the rest.

    Returns:
        0 where everything is padding. With n = V it is the cross entropy of the whole laws.
    """
    return _laws(logits, ids, logprobs).cross_entropy()


def draft_cross_entropy(
    logits: Float[Array, "... V"], ids: Int[Array, "... n"], logprobs: Float[Array, "... n"]
) -> tuple[Float[Array, "..."], Bool[Array, "..."]]:
    """EAGLE-3's cross entropy (nats) over the tokens that a head can draft.

    The verifier's law is restricted to kept tokens with a logit above NEVER and renormalised, as
    its softmax over the draft vocabulary would be; drawable tokens that are not kept count as 0.

    Returns:
        (loss, counted): not counted, and 0, where the verifier's most likely token cannot be
        drafted, or nothing is kept. The mean goes over the counted positions alone.
    """
    logits = logits.astype(jnp.float32)
    real = ids >= 0
    drawable = real & (_chosen(logits, ids) > NEVER / 2)
    mass = jnp.exp(jnp.where(real, logprobs.astype(jnp.float32), -jnp.inf))
    best = jnp.argmax(mass, axis=-1, keepdims=True)
    counted = jnp.take_along_axis(drawable, best, axis=-1)[..., 0] & (mass.max(axis=-1) > 0)
    mass = jax.lax.stop_gradient(jnp.where(drawable, mass, 0.0))
    total = mass.sum(axis=-1, keepdims=True)
    law = mass / jnp.where(total > 0, total, 1.0)
    student = _chosen(jax.nn.log_softmax(logits, axis=-1), ids)
    # The floor keeps 0 * NEVER and its gradient out of the sum.
    loss = -(law * jnp.where(drawable, student, LOWEST)).sum(axis=-1)
    return jnp.where(counted, loss, 0.0), counted


def probability_l1(
    logits: Float[Array, "... V"], ids: Int[Array, "... n"], logprobs: Float[Array, "... n"]
) -> Float[Array, "..."]:
    """Sum over the vocabulary of |q - p|, what is not kept lumped into one entry; in [0, 2].

    Half of it is the total variation distance, so 1 - loss / 2 bounds the chance from above that
    speculative sampling accepts a token drawn from q; with n = V it is that chance.
    """
    laws = _laws(logits, ids, logprobs)
    # coarse_laws gives padding the log-probability 0.
    student = jnp.where(ids >= 0, jnp.exp(laws.student_logs), 0.0)
    kept = jnp.abs(student - laws.teacher).sum(axis=-1)
    return kept + jnp.abs(jnp.exp(laws.student_rest_log) - laws.teacher_rest)


def list_mle(
    logits: Float[Array, "... V"], ids: Int[Array, "... m"], n: int = 10
) -> Float[Array, "..."]:
    """Minus log-likelihood (nats) of the order of the verifier's n likeliest tokens.

    Drawing without replacement from softmax(logits) over these tokens gives their order with
    probability prod_j exp(z_j) / (exp(z_j) + .. + exp(z_n)) (ListMLE, Xia et al. 2008).

    Args:
        ids: most likely first; padding and tokens that cannot be drafted are left out of the list.
    """
    ids = ids[..., :n]
    scores = _chosen(logits.astype(jnp.float32), ids)
    listed = (ids >= 0) & (scores > NEVER / 2)
    scores = jnp.where(listed, scores, NEVER)
    behind = jax.lax.cumlogsumexp(scores, axis=scores.ndim - 1, reverse=True)
    return jnp.where(listed, behind - scores, 0.0).sum(axis=-1)


def hard_cross_entropy(
    logits: Float[Array, "... V"], tokens: Int[Array, "..."]
) -> Float[Array, "..."]:
    """-log softmax(logits)[token] in nats; 0 for the token -1 and for tokens at NEVER.

    A token that a head cannot draft has nothing to teach it.
    """
    logits = logits.astype(jnp.float32)
    chosen = _chosen(jax.nn.log_softmax(logits, axis=-1), tokens[..., None])[..., 0]
    taught = (tokens >= 0) & (_chosen(logits, tokens[..., None])[..., 0] > NEVER / 2)
    return jnp.where(taught, -chosen, 0.0)


def _laws(logits: Array, ids: Array, logprobs: Array) -> CoarseLaws:
    return coarse_laws(logits, ids, jnp.exp(logprobs.astype(jnp.float32)))


def _chosen(values: Float[Array, "... V"], ids: Int[Array, "... n"]) -> Float[Array, "... n"]:
    """Of padding, the value of token 0."""
    return jnp.take_along_axis(values, jnp.maximum(ids, 0), axis=-1)
