"""The loss of a head on blocks that it drafted along given text: its method's own, or ours.

B: examples, M: blocks, g: draft length, R: bank rows, V: vocabulary.

    kl                   forward KL from the verifier's law                     (tiger_head)
    expected_acceptance  - E[A] along the verifier's own draws, after kl        (tiger_head)
    eagle2               smooth L1 on states + 0.1 cross entropy
    eagle3               cross entropy over the draft vocabulary
    vispec               10 |p - q|_1 + 0.1 ListMLE of the teacher's ten best
    vispec_text          smooth L1 + 0.1 (cross entropy + 0.1 ListMLE), ViSpec's first stage
    medusa               cross entropy with the response's own tokens

A step's positions are weighted by decay^u. How far a head is unrolled is the blocks' length: the
official EAGLE-2 has 1, ViSpec 2, EAGLE-3 7.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from tiger_jax.errors import UserError
from tiger_jax.ops.sampling import log_chosen
from tiger_jax.training import grpo_loss, head_loss
from tiger_jax.training.distill_loss import forward_kl
from tiger_jax.training.head_batch import HeadBatch
from tiger_jax.training.head_blocks import BlockHead, Unrolled
from tiger_jax.training.rewards import accepted_prefix
from tiger_jax.training.train_step import LossSums, Metrics

OBJECTIVES = (
    "kl", "expected_acceptance", "eagle2", "eagle3", "vispec", "vispec_text", "medusa"
)  # fmt: skip
ON_STATES = ("eagle2", "vispec_text")
"""Those that compare g with the verifier's last state."""
EAGLE2_CROSS_ENTROPY = 0.1
VISPEC_L1, VISPEC_ORDER = 10.0, 0.1


@dataclasses.dataclass(frozen=True)
class HeadLossSettings:
    """How a head is taught."""

    objective: str = "kl"
    decay: float = 1.0
    """Weight of step u is decay^u; EAGLE-3 and Medusa use 0.8."""
    route_weight: float = 1.0
    """Of the verifier's attention as the router's teacher."""

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            choices = ", ".join(OBJECTIVES)
            raise UserError(f"objective: expected one of {choices}, got {self.objective!r}")
        if not 0 < self.decay <= 1:
            raise UserError(f"decay: expected 0 < decay <= 1, got {self.decay}")


def make_head_loss(
    block_head: BlockHead, settings: HeadLossSettings
) -> Callable[[Any, HeadBatch, Array], LossSums]:
    """The loss function of `make_train_step`; a unit is one drafted token (expected_acceptance: one
    block). Raises UserError for eagle2's loss on a head that does not see the last state."""
    shape = block_head.head.config
    if settings.objective in ON_STATES and shape.taps[-1] != shape.num_layers:
        raise UserError(
            f"objective: {settings.objective} needs the last state among the features, "
            f"got {shape.taps}"
        )

    def loss(params: Any, batch: HeadBatch, key: Array) -> LossSums:
        draft = batch.draft
        unrolled = block_head.unroll(params, batch, key)
        logits = block_head.logits(params, batch, unrolled)
        live = draft.live.astype(jnp.float32)
        if settings.objective == "expected_acceptance":
            total, counted = _expected_acceptance(logits, batch)
        else:
            losses, counted = _position_losses(
                settings.objective, block_head, params, batch, unrolled, logits
            )
            counted = counted * live
            steps = settings.decay ** jnp.arange(live.shape[-1], dtype=jnp.float32)[None, None]
            total = (losses * counted * steps).sum()
        route, metrics = _route_loss(unrolled, batch, blocks=counted.ndim == 2)
        metrics |= _metrics(logits, batch)
        weight = counted.sum()
        return LossSums(loss=total + settings.route_weight * route, weight=weight, metrics=metrics)

    return loss


def _position_losses(
    objective: str, block_head: BlockHead, params: Any, batch: HeadBatch, unrolled: Unrolled,
    logits: Float[Array, "B M g V"],
) -> tuple[Float[Array, "B M g"], Float[Array, "B M g"]]:  # fmt: skip
    """(loss of each drafted token, 1 where it counts)."""
    draft, head = batch.draft, block_head.head
    law = draft.law_ids, draft.law_logprobs
    everywhere = jnp.ones(draft.block_tokens.shape, jnp.float32)
    if objective == "kl":
        return forward_kl(logits, *law), everywhere
    if objective == "medusa":
        return head_loss.hard_cross_entropy(logits, draft.block_tokens), everywhere
    if objective == "eagle3":
        losses, counted = head_loss.draft_cross_entropy(logits, *law)
        return losses, counted.astype(jnp.float32)
    if objective == "vispec":
        order = head_loss.list_mle(logits, draft.law_ids)
        return VISPEC_L1 * head_loss.probability_l1(logits, *law) + VISPEC_ORDER * order, everywhere
    width = head.config.hidden_size
    target = head.last_state(batch.shared, batch.next_features()[..., -width:])
    features = head_loss.smooth_l1(head.state(params, unrolled.states), target)
    labels = head_loss.cross_entropy(logits, *law)
    if objective == "vispec_text":
        labels = labels + VISPEC_ORDER * head_loss.list_mle(logits, draft.law_ids)
    return features + EAGLE2_CROSS_ENTROPY * labels, everywhere


def _expected_acceptance(
    logits: Float[Array, "B M g V"], batch: HeadBatch
) -> tuple[Array, Float[Array, "B M"]]:
    """(- sum of E[A] over blocks, 1 at each block); a unit is one block."""
    draft = batch.draft
    log_q = log_chosen(logits, draft.block_tokens)
    ended = jnp.zeros(draft.anchors.shape, bool)  # what lies behind the text's end pays nothing
    value = grpo_loss.expected_acceptance(log_q, draft.block_logprobs, draft.live, ended)
    blocks = (draft.anchors >= 0).astype(jnp.float32)
    return -(value * blocks).sum(), blocks


def _route_loss(unrolled: Unrolled, batch: HeadBatch, blocks: bool) -> tuple[Array, Metrics]:
    """Cross entropy of the router against where the verifier looks.

    A route a step is taught by the look of its token; one a block by the mean look over the draft,
    each token's sharpened before, so that all of them have a say.

    Args:
        blocks: the loss that it is added to counts blocks, not drafted tokens.
    """
    if unrolled.scores is None:
        return jnp.zeros(()), {}
    looks, weights = batch.looks(), batch.draft.live.astype(jnp.float32)
    if unrolled.scores.shape[2] == 1:
        weights = weights.sum(axis=2, keepdims=True)
        looks = looks.sum(axis=2, keepdims=True) / jnp.maximum(weights, 1.0)[..., None]
    if blocks:
        weights = weights / jnp.maximum(weights.sum(axis=2, keepdims=True), 1.0)
    # Padded rows have no look, and their log-probability is finite: they count nothing.
    losses = -(looks * jax.nn.log_softmax(unrolled.scores, axis=-1)).sum(axis=-1) * weights
    held = jnp.take_along_axis(looks, unrolled.indices, axis=-1, mode="fill", fill_value=0)
    held = held.sum(axis=-1) * weights
    return losses.sum(), {
        "route": (losses.sum(), weights.sum()), "route_mass": (held.sum(), weights.sum())
    }  # fmt: skip


def _metrics(logits: Float[Array, "B M g V"], batch: HeadBatch) -> Metrics:
    draft = batch.draft
    tokens = draft.live.sum().astype(jnp.float32)
    agreed = (jnp.argmax(logits, axis=-1) == draft.block_tokens) & draft.live
    full = (draft.block_lengths == draft.block_tokens.shape[2]).astype(jnp.float32)
    log_q = log_chosen(logits, draft.block_tokens)
    chances = jnp.exp(jnp.minimum(log_q - draft.block_logprobs, 0.0)) * draft.live
    expected = jnp.cumprod(chances, axis=-1).sum(axis=-1)
    return {
        "agreement": (agreed.sum().astype(jnp.float32), tokens),
        "token_acceptance": (chances.sum(), tokens),
        "accepted_greedy": ((accepted_prefix(agreed) * full).sum(), full.sum()),
        "expected_A": ((expected * full).sum(), full.sum()),
    }
