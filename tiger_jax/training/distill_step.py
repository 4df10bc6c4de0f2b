"""Knowledge distillation of a drafter, in the geometry in which it will draft (method.md 4.1).

B: examples, M: blocks, g: draft length, k: routed tokens, w: kept rows of an attention.

Loss: forward KL from the verifier's law on the same prefix, mean over drafted response tokens, plus
route_weight * the cross entropy of the router's scores against the verifier's attention.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from tiger_jax.decoding.engine import Engine
from tiger_jax.models.interface import VisionLanguageModel
from tiger_jax.routing.router import Routed
from tiger_jax.training.block_layout import at_anchors
from tiger_jax.training.distill_loss import forward_kl, route_cross_entropy
from tiger_jax.training.draft_batch import DraftBatch
from tiger_jax.training.draft_blocks import BlockDrafter, Opened
from tiger_jax.training.rewards import accepted_prefix
from tiger_jax.training.teacher_pass import TeacherSettings, teacher_pass
from tiger_jax.training.train_state import TrainState
from tiger_jax.training.train_step import LossSums, Metrics, TrainStep


def make_distill_loss(
    drafter: BlockDrafter, route_weight: float
) -> Callable[[Any, DraftBatch, Array], LossSums]:
    """The loss function of `make_train_step`; a unit is one drafted token."""

    def loss(params: Any, batch: DraftBatch, key: Array) -> LossSums:
        opened = drafter.open(params, batch.stream, batch.tiles, batch.text, batch.anchors, key)
        logits = drafter.logits(params, opened, batch.block_tokens)
        live = batch.live.astype(jnp.float32)
        divergence = (forward_kl(logits, batch.law_ids, batch.law_logprobs) * live).sum()
        tokens = live.sum()
        route, metrics = route_loss(opened, batch, batch.block_lengths.astype(jnp.float32))
        agreed = (jnp.argmax(logits, axis=-1) == batch.block_tokens) & batch.live
        metrics |= {
            "kl": (divergence, tokens),
            "agreement": (agreed.sum().astype(jnp.float32), tokens),
            "accepted_greedy": _full_blocks(accepted_prefix(agreed), batch),
        }
        return LossSums(loss=divergence + route_weight * route, weight=tokens, metrics=metrics)

    return loss


def route_loss(
    opened: Opened, batch: DraftBatch, weights: Float[Array, "B M"]
) -> tuple[Array, Metrics]:
    """Weighted sum over blocks, and how much of the target the routed tokens hold.

    Weights in the unit of the loss that it is added to: drafted tokens of a block, or blocks.
    """
    if opened.scores is None:
        return jnp.zeros(()), {}
    losses = route_cross_entropy(opened.scores, batch.route_ids, batch.route_weights) * weights
    held = held_mass(opened.routed, batch) * weights
    return losses.sum(), {
        "route": (losses.sum(), weights.sum()), "route_mass": (held.sum(), weights.sum())
    }  # fmt: skip


def held_mass(routed: Routed, batch: DraftBatch) -> Float[Array, "B M"]:
    """Share of the target attention on the routed tokens."""
    chosen = jnp.where(routed.valid, routed.indices, -2)  # -1 pads the targets
    hit: Bool[Array, "B M w"] = (batch.route_ids[..., None] == chosen[:, :, None]).any(axis=-1)
    return (hit * batch.route_weights).sum(axis=-1)


def _full_blocks(values: Float[Array, "B M"], batch: DraftBatch) -> tuple[Array, Array]:
    """(sum, count) over blocks that do not reach the end of their response."""
    full = (batch.block_lengths == batch.block_tokens.shape[2]).astype(jnp.float32)
    return (values * full).sum(), full.sum()


@dataclasses.dataclass(frozen=True)
class OnlineTeacher:
    """A training step whose laws and attention come from the verifier itself, in full, instead of
    from the cache, which then gives the responses alone."""

    update: TrainStep
    verifier: Engine
    settings: TeacherSettings

    def compiled(self) -> int:
        """Programs compiled so far."""
        return self.update.compiled() + ask_verifier._cache_size()

    def __call__(self, state: TrainState, batches: list[DraftBatch]) -> tuple[TrainState, Metrics]:
        """Ask for every micro-batch, then update."""
        return self.update(state, [self.verifier.over_batch(self._ask, b) for b in batches])

    def _ask(self, batch: DraftBatch) -> DraftBatch:
        return ask_verifier(self.verifier.model, self.settings, self.verifier.params, batch)


@partial(jax.jit, static_argnames=("verifier", "settings"))
def ask_verifier(
    verifier: VisionLanguageModel, settings: TeacherSettings, params: Any, batch: DraftBatch
) -> DraftBatch:
    """The batch with the verifier's whole laws and attention at its blocks."""
    prefixes = batch.prefixes
    size = prefixes.tokens.shape[1]
    whole = dataclasses.replace(
        settings, kept_tokens=verifier.config.text.vocab_size, kept_rows=size
    )
    said = teacher_pass(verifier, whole, params, prefixes, batch.text)
    bank_row = jnp.cumsum(prefixes.is_visual, axis=1) - 1
    prefix_rows = at_anchors(said.route_ids, batch.anchors)
    flat = prefix_rows.reshape(prefix_rows.shape[0], -1)
    banks = jnp.take_along_axis(bank_row, flat, axis=1, mode="clip").reshape(prefix_rows.shape)
    weights = at_anchors(said.route_weights, batch.anchors)
    return batch.replace(
        law_ids=batch.at_blocks(said.law_ids), law_logprobs=batch.at_blocks(said.law_logprobs),
        block_logprobs=batch.at_blocks(said.next_logprobs),
        route_ids=jnp.where(weights > 0, banks, -1), route_weights=weights,
    )  # fmt: skip
