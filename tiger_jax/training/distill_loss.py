"""What a drafter learns from a frozen verifier: its next-token law and where it looks.

B: pictures, M: blocks (anchors) of a picture, T: positions, W: window, n: kept entries,
R: bank rows, V: vocabulary.

The verifier's law is kept on disk as its n likeliest entries. Both losses compare laws coarsened
to these entries and one bucket for everything else:

    teacher   [ p_1 .. p_n | 1 - sum p ]
    student   [ q_1 .. q_n | sum of the q outside ]

Coarsening can only lower a divergence (data processing), and with n = V nothing is coarsened. The
bucket of the student is summed over the entries outside, never as 1 - sum q: the difference has no
correct digit left where the bucket is small.
"""

import jax
import jax.numpy as jnp
from flax import struct
from jax.scipy.special import xlogy
from jaxtyping import Array, Bool, Float, Int

from tiger_jax.ops.sampling import NEVER

LOWEST = -100.0
"""Log-probabilities end here, below float32's smallest number. Rounding leaves a teacher mass of
1e-7 in buckets that hold nothing; times NEVER it would be the whole loss."""


@struct.dataclass
class CoarseLaws:
    """A teacher's and a student's law over the kept entries and the bucket of the rest."""

    teacher: Float[Array, "... n"]
    teacher_rest: Float[Array, "..."]
    student_logs: Float[Array, "... n"]
    student_rest_log: Float[Array, "..."]

    def cross_entropy(self) -> Float[Array, "..."]:
        """Of the student against the teacher, nats."""
        kept = (self.teacher * self.student_logs).sum(axis=-1)
        return -(kept + self.teacher_rest * self.student_rest_log)

    def teacher_entropy(self) -> Float[Array, "..."]:
        """Nats."""
        kept = xlogy(self.teacher, self.teacher).sum(axis=-1)
        return -(kept + xlogy(self.teacher_rest, self.teacher_rest))


def forward_kl(
    logits: Float[Array, "... V"], top_ids: Int[Array, "... n"], top_logprobs: Float[Array, "... n"]
) -> Float[Array, "..."]:
    """KL(p || q) in nats of the verifier's law p and the drafter's q = softmax(logits).

    Args:
        logits: of the drafter, divided by the temperature already; may hold NEVER.
        top_ids: distinct tokens; -1 = padding, which counts nothing.
        top_logprobs: of p at the same temperature; float16 is precise enough. -inf = no mass.

    Returns:
        >= 0 up to rounding. No gradient reaches p.
    """
    probabilities = jnp.exp(top_logprobs.astype(jnp.float32))
    laws = coarse_laws(logits, top_ids, probabilities)
    return laws.cross_entropy() - laws.teacher_entropy()


def route_cross_entropy(
    scores: Float[Array, "B M R"], target_ids: Int[Array, "B M n"],
    target_weights: Float[Array, "B M n"],
) -> Float[Array, "B M"]:  # fmt: skip
    """Cross entropy (nats) of softmax(scores) against the verifier's attention over the bank.

    Args:
        scores: of the router; NEVER at padded bank rows.
        target_ids: distinct bank rows, those with most attention; -1 = padding.
        target_weights: their share of `attention_target`; what is missing to 1 lies on other rows.

    Returns:
        0 where no row has weight: the verifier did not look at the picture, or there is none.
    """
    weights = jnp.where(target_ids >= 0, target_weights.astype(jnp.float32), 0.0)
    taught = weights.sum(axis=-1) > 0
    return jnp.where(taught, coarse_laws(scores, target_ids, weights).cross_entropy(), 0.0)


def coarse_laws(
    logits: Float[Array, "... V"], ids: Int[Array, "... n"], probabilities: Float[Array, "... n"]
) -> CoarseLaws:
    """Both laws over [ids, rest]; entries of id -1 have mass 0 on both sides."""
    student = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    real = ids >= 0
    outside = _outside(ids, logits.shape[-1]) & (logits > NEVER / 2)
    teacher = jax.lax.stop_gradient(jnp.where(real, probabilities.astype(jnp.float32), 0.0))
    rest = jnp.maximum(1.0 - teacher.sum(axis=-1), 0.0)
    # Where every drawable entry is kept, a rest is rounding and belongs to no one.
    rest = jnp.where(outside.any(axis=-1), rest, 0.0)
    total = teacher.sum(axis=-1) + rest
    total = jnp.where(total > 0, total, 1.0)
    kept_logs = jnp.take_along_axis(student, jnp.maximum(ids, 0), axis=-1)
    rest_log = jax.nn.logsumexp(jnp.where(outside, student, NEVER), axis=-1)
    return CoarseLaws(
        teacher=teacher / total[..., None],
        teacher_rest=rest / total,
        student_logs=jnp.where(real, jnp.maximum(kept_logs, LOWEST), 0.0),
        student_rest_log=jnp.maximum(rest_log, LOWEST),
    )


def attention_target(attention: Float[Array, "... R"], power: float) -> Float[Array, "... R"]:
    """attention ** power, renormalised over the bank; rows without any mass stay zero.

    A power above 1 favours the few rows that the router can take (trial.md 3: power 3).
    """
    attention = attention.astype(jnp.float32)
    peak = attention.max(axis=-1, keepdims=True)
    # Divided by the peak first: the cube of a small attention is no float32 number any more.
    sharp = (attention / jnp.where(peak > 0, peak, 1.0)) ** power
    sharp = jnp.where(peak > 0, sharp, 0.0)
    mass = sharp.sum(axis=-1, keepdims=True)
    return sharp / jnp.where(mass > 0, mass, 1.0)


def window_mean(
    attention: Float[Array, "B T R"], valid: Bool[Array, "B T W"]
) -> Float[Array, "B T R"]:
    """Mean over i < W of attention[t + i], those with valid[t, i] and t + i < T; else zeros."""
    length, window = valid.shape[1:]
    ahead = jnp.pad(attention.astype(jnp.float32), ((0, 0), (0, window - 1), (0, 0)))
    inside = jnp.arange(length)[:, None] + jnp.arange(window)[None] < length
    weights = (valid & inside[None]).astype(jnp.float32)
    total = jnp.zeros(attention.shape, jnp.float32)
    # A loop of additions: the gathered [B, T, W, R] would be W times as large as the attention.
    for i in range(window):
        total = total + weights[:, :, i, None] * ahead[:, i : i + length]
    return total / jnp.maximum(weights.sum(axis=-1), 1.0)[..., None]


def same_segment(segments: Int[Array, "B T"], window: int) -> Bool[Array, "B T W"]:
    """valid of `window_mean`: position t + i exists and is of the same segment; 0 = padding."""
    length = segments.shape[1]
    ahead = jnp.pad(segments, ((0, 0), (0, window - 1)))
    shifted = jnp.stack([ahead[:, i : i + length] for i in range(window)], axis=-1)
    return (shifted == segments[..., None]) & (segments > 0)[..., None]


def _outside(ids: Int[Array, "... n"], size: int) -> Bool[Array, "... V"]:
    """True at the entries that `ids` does not name."""
    rows = ids.reshape(-1, ids.shape[-1])
    # -1 would wrap to the last entry; `size` lies outside and is dropped.
    rows = jnp.where(rows >= 0, rows, size)
    named = jnp.ones((rows.shape[0], size), bool)
    named = named.at[jnp.arange(rows.shape[0])[:, None], rows].set(False, mode="drop")
    return named.reshape(*ids.shape[:-1], size)
