"""Acceptance alignment: train the drafter on the prefix length that the verifier accepts.

B: examples, M: prefixes (anchors) of an example, K: sampled blocks of a prefix, g: draft length,
V: vocabulary.

    rollout   K blocks of g tokens from the drafter at each prefix           (jitted, no gradient)
    scoring   the verifier over all of them: one prefill of the prompts, the blocks as branches;
              the reference drafter over them too; acceptance, rewards, advantages   (jitted)
    update    gradient of the loss on the scored blocks                              (jitted)

Objectives (method.md 4.2): `grpo`, the paper's; `grpo_exact`, the unbiased gradient of E[A];
`expected_acceptance`, E[A] along the verifier's own responses, which needs no rollout.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int, Key

from tiger_jax.decoding.engine import Engine
from tiger_jax.errors import UserError
from tiger_jax.models.interface import VisionLanguageModel
from tiger_jax.ops.sampling import log_chosen, mask_undrawable
from tiger_jax.training import block_layout, draft_blocks, grpo_loss, rewards, rollout
from tiger_jax.training.distill_step import route_loss
from tiger_jax.training.draft_batch import DraftBatch
from tiger_jax.training.draft_blocks import BlockDrafter
from tiger_jax.training.train_state import TrainState
from tiger_jax.training.train_step import LossSums, Metrics, TrainStep

OBJECTIVES = ("grpo", "grpo_exact", "expected_acceptance")


@dataclasses.dataclass(frozen=True)
class AlignSettings:
    """How acceptance is rewarded. Defaults are the paper's where it names them."""

    objective: str = "grpo"
    reward: str = "accepted_prefix"
    credit: str = "block"
    samples: int = 4
    """K."""
    temperature: float = 1.0
    """Of the rollouts; above 0, or all blocks of a prefix would be one."""
    acceptance_temperature: float = 1.0
    """Of the acceptance rule in the reward: the one that decoding will use. 0 rewards matches with
    the verifier's argmax, which ruins acceptance at temperature 1 (method.md 4.2)."""
    beta: float = 0.02
    """Weight of KL(q || q_ref)."""
    eps: float = 1e-6
    """Added to the standard deviation of a group."""
    route_weight: float = 0.3
    """Of route_distill, which stays on: without it the router unlearns (method.md 2.1)."""

    def __post_init__(self) -> None:
        for name, allowed in (
            ("objective", OBJECTIVES), ("reward", tuple(rewards.REWARDS)),
            ("credit", grpo_loss.CREDITS),
        ):  # fmt: skip
            if getattr(self, name) not in allowed:
                got = getattr(self, name)
                raise UserError(f"{name}: expected one of {', '.join(allowed)}, got {got!r}")
        least = 2 if self.objective == "grpo" else 1  # blocks are compared with each other
        if self.samples < least:
            raise UserError(f"samples: expected at least {least}, got {self.samples}")
        if self.temperature <= 0:
            raise UserError(f"temperature: expected above 0 for rollouts, got {self.temperature}")
        for name in ("acceptance_temperature", "beta", "eps"):
            if getattr(self, name) < 0:
                raise UserError(f"{name}: expected at least 0, got {getattr(self, name)}")


@struct.dataclass
class ScoredBlocks:
    """Sampled blocks with everything that the update needs and does not differentiate."""

    batch: DraftBatch
    tokens: Int[Array, "B M K g"]
    log_p: Float[Array, "B M K g"]
    """Of the tokens under the verifier, at the rollouts' temperature."""
    reference: Float[Array, "B M K g V"]
    """Logits of q_ref, without the ids that are never drawn, as those of q."""
    drawable: Any
    """bool [V]."""
    accepted: Any
    """bool [B, M, K, g]: coins of the acceptance test."""
    probabilities: Float[Array, "B M K g"]
    advantages: Float[Array, "B M K"]
    route_key: Any
    metrics: Metrics


def make_expected_acceptance_loss(
    drafter: BlockDrafter, settings: AlignSettings
) -> Callable[[Any, DraftBatch, Array], LossSums]:
    """- E[A] along the verifier's own responses (drawn at temperature 1); a unit is one block."""

    def loss(params: Any, batch: DraftBatch, key: Array) -> LossSums:
        opened = drafter.open(params, batch.stream, batch.tiles, batch.text, batch.anchors, key)
        logits = drafter.logits(params, opened, batch.block_tokens)
        log_q = log_chosen(logits, batch.block_tokens)
        # The text is given, so no block can be made short: what lies behind its end pays nothing.
        ended = jnp.zeros(batch.anchors.shape, bool)
        value = grpo_loss.expected_acceptance(log_q, batch.block_logprobs, batch.live, ended)
        blocks = (batch.anchors >= 0).astype(jnp.float32)
        route, metrics = route_loss(opened, batch, blocks)
        chances = jnp.exp(jnp.minimum(log_q - batch.block_logprobs, 0.0)) * batch.live
        metrics |= _acceptance_metrics(jnp.cumprod(chances, axis=-1), batch.block_lengths)
        tokens = batch.live.sum().astype(jnp.float32)
        metrics["token_acceptance"] = (chances.sum(), tokens)
        metrics["entropy"] = ((_entropy(logits) * batch.live).sum(), tokens)
        value = (value * blocks).sum()
        metrics["expected_A"] = (value, blocks.sum())
        total = -value + settings.route_weight * route
        return LossSums(loss=total, weight=blocks.sum(), metrics=metrics)

    return loss


def make_grpo_loss(
    drafter: BlockDrafter, settings: AlignSettings, end_ids: tuple[int, ...]
) -> Callable[[Any, ScoredBlocks, Array], LossSums]:
    """Policy loss on scored blocks + beta KL(q || q_ref) + route_distill; a unit is one prefix."""

    def loss(params: Any, scored: ScoredBlocks, key: Array) -> LossSums:
        del key  # the routes are those of the rollout
        batch, tokens = scored.batch, scored.tokens
        opened = drafter.open(
            params, batch.stream, batch.tiles, batch.text, batch.anchors, scored.route_key
        )
        logits = sampled_logits(drafter, params, opened, tokens)
        logits = mask_undrawable(logits, scored.drawable)
        prefixes = (batch.anchors >= 0).astype(jnp.float32)
        live = rewards.before_end(tokens, end_ids)
        log_q = log_chosen(logits, tokens, settings.temperature)
        if settings.objective == "grpo_exact":
            policy = grpo_loss.grpo_exact(log_q, scored.log_p, live)
        else:
            credit = grpo_loss.credit_mask(settings.credit, live, scored.accepted)
            policy = grpo_loss.grpo(log_q, scored.advantages, credit)
        divergence = grpo_loss.exact_kl(logits, scored.reference) * live
        divergence = divergence.sum(axis=-1).mean(axis=-1)
        route, metrics = route_loss(opened, batch, prefixes)
        total = ((policy + settings.beta * divergence) * prefixes).sum()
        total = total + settings.route_weight * route
        spread = (_entropy(logits) * live).sum(axis=(2, 3)) / live.sum(axis=(2, 3))
        metrics |= {
            **scored.metrics,
            "kl": ((divergence * prefixes).sum(), prefixes.sum()),
            "entropy": ((spread * prefixes).sum(), prefixes.sum()),
        }
        return LossSums(loss=total, weight=prefixes.sum(), metrics=metrics)

    return loss


def sampled_logits(
    drafter: BlockDrafter, params: Any, opened: draft_blocks.Opened, tokens: Int[Array, "B M K g"]
) -> Float[Array, "B M K g V"]:
    """Draft logits of K blocks at each prefix."""
    batch, count, samples, length = tokens.shape
    flat = tokens.reshape(batch, count * samples, length)
    repeated = draft_blocks.repeat_blocks(opened, samples)
    logits = drafter.logits(params, repeated, flat)
    return logits.reshape(*tokens.shape, -1)


@dataclasses.dataclass(frozen=True)
class AlignmentStep:
    """A training step that samples and scores before it updates; the loop knows no difference."""

    drafter: BlockDrafter
    settings: AlignSettings
    verifier: Engine
    end_ids: tuple[int, ...]
    reference_params: Any
    """q_ref, in the compute dtype."""
    update: TrainStep
    gather: Callable[[Any], Any] = lambda params: params
    """Brings the drafter's weights together, once a step, for the small passes of a rollout."""

    def compiled(self) -> int:
        """Programs compiled so far."""
        programs = (rollout.sample_blocks, verify_blocks, score_blocks)
        return self.update.compiled() + sum(program._cache_size() for program in programs)

    def __call__(self, state: TrainState, batches: list[DraftBatch]) -> tuple[TrainState, Metrics]:
        """Sample and score all micro-batches with the same weights, then update once."""
        gathered = self.gather(state.params)
        scored = [
            self.score(gathered, batch, jax.random.fold_in(state.step_key(), 1000 + micro))
            for micro, batch in enumerate(batches)
        ]
        del gathered  # its memory is the update's
        return self.update(state, scored)

    def score(self, params: Any, batch: DraftBatch, key: Key[Array, ""]) -> ScoredBlocks:
        """Rollout and scoring of one micro-batch.

        Args:
            params: the drafter's, gathered.
        """
        route_key, draw_key, coin_key = jax.random.split(key, 3)
        drawable = jnp.asarray(self.verifier.drawable)
        tokens, q_logits = rollout.sample_blocks(
            self.drafter.unrolled(), self.settings.samples, self.settings.temperature, params,
            batch, drawable, route_key, draw_key,
        )  # fmt: skip
        p_logits = self.verifier.over_batch(self._verify, (batch, tokens))
        return score_blocks(
            self.drafter, self.settings, self.end_ids, self.reference_params, drawable, batch,
            tokens, q_logits, p_logits, route_key, coin_key,
        )  # fmt: skip

    def _verify(self, drafted: tuple[DraftBatch, Array]) -> Float[Array, "B M K g V"]:
        return verify_blocks(self.verifier.model, self.verifier.params, *drafted)


@partial(jax.jit, static_argnames=("drafter", "settings", "end_ids"))
def score_blocks(
    drafter: BlockDrafter, settings: AlignSettings, end_ids: tuple[int, ...],
    reference_params: Any, drawable: Array, batch: DraftBatch, tokens: Int[Array, "B M K g"],
    q_logits: Float[Array, "B M K g V"], p_logits: Float[Array, "B M K g V"],
    route_key: Key[Array, ""], coin_key: Key[Array, ""],
) -> ScoredBlocks:  # fmt: skip
    """Reference, acceptance test, rewards and advantages.

    Args:
        p_logits: the verifier's (`verify_blocks`).
    """
    p_logits = mask_undrawable(p_logits, drawable)
    opened = drafter.open(
        reference_params, batch.stream, batch.tiles, batch.text, batch.anchors, route_key
    )
    reference = mask_undrawable(sampled_logits(drafter, reference_params, opened, tokens), drawable)
    chances = rewards.acceptance_probabilities(
        q_logits, p_logits, tokens, settings.acceptance_temperature
    )
    coins = jax.random.uniform(coin_key, chances.shape) < chances
    coins = rewards.extend_past_end(coins, tokens, end_ids)
    chances = rewards.extend_past_end(chances, tokens, end_ids)
    paid = rewards.REWARDS[settings.reward](coins, chances)
    divide = settings.reward not in rewards.CLOSED_FORM
    advantages, spread = rewards.group_advantages(paid, settings.eps, divide)
    return ScoredBlocks(
        batch=batch, tokens=tokens,
        log_p=log_chosen(p_logits, tokens, settings.temperature),
        reference=reference, drawable=drawable, accepted=coins, probabilities=chances,
        advantages=advantages, route_key=route_key,
        metrics=_rollout_metrics(batch, tokens, coins, paid, spread, end_ids),
    )  # fmt: skip


@partial(jax.jit, static_argnames="verifier")
def verify_blocks(
    verifier: VisionLanguageModel, params: Any, batch: DraftBatch, tokens: Int[Array, "B M K g"]
) -> Float[Array, "B M K g V"]:
    """The verifier's logits at every drafted position: one pass over prompts and responses, the
    blocks as branches that see the text up to their anchor."""
    run = block_layout.run_prompts(verifier, params, batch.prefixes, batch.text)
    size, count, samples, length = tokens.shape
    anchors = jnp.repeat(batch.anchors, samples, axis=1)
    visible = block_layout.visible_before(
        anchors, batch.segments, batch.prefix_lengths, batch.prefix_tokens.shape[1], inclusive=True
    )
    flat = tokens.reshape(size, count * samples, length)
    places = block_layout.at_anchors(batch.positions, anchors)
    positions = places[..., None] + jnp.arange(1, length + 1)[None, None]
    x = verifier.embed(params, flat.reshape(size, -1)).reshape(*flat.shape, -1)
    own = jnp.tril(jnp.ones((length, length), bool))[None, None]
    hidden, _, _, _ = verifier.branch(params, x, positions, run.context, visible[:, :, None], own)
    first = block_layout.at_anchors(run.hidden, anchors)[:, :, None]
    hidden = jnp.concatenate([first, hidden[:, :, :-1]], axis=2)
    return verifier.logits(params, hidden).reshape(*tokens.shape, -1)


def _rollout_metrics(
    batch: DraftBatch, tokens: Array, coins: Array, paid: Float[Array, "B M K"],
    spread: Float[Array, "B M"], end_ids: tuple[int, ...],
) -> Metrics:  # fmt: skip
    """A without what the end-token rule adds, its tail, and how much there is to learn from."""
    live = rewards.before_end(tokens, end_ids)
    accepted = rewards.accepted_prefix(coins & live)
    prefixes = (batch.anchors >= 0).astype(jnp.float32)
    real = (batch.anchors >= 0)[..., None, None]
    groups, blocks = prefixes.sum(), prefixes.sum() * tokens.shape[2]

    def over_blocks(values: Array) -> tuple[Array, Array]:
        return (values * prefixes[..., None]).sum(), blocks

    def over_groups(values: Array) -> tuple[Array, Array]:
        return (values * prefixes).sum(), groups

    return {
        "A": over_blocks(accepted),
        **{f"P(A>={n})": over_blocks((accepted >= n).astype(jnp.float32)) for n in (2, 4, 8)},
        "reward": over_blocks(paid),
        "reward_std": over_groups(spread),
        "frac_zero_std": over_groups((spread == 0).astype(jnp.float32)),
        "token_acceptance": (
            (coins & live & real).sum().astype(jnp.float32),
            (live & real).sum().astype(jnp.float32),
        ),
    }


def _acceptance_metrics(reached: Float[Array, "B M g"], lengths: Int[Array, "B M"]) -> Metrics:
    """E[A] and P(A >= n) over the blocks whose text goes on for all g tokens.

    Args:
        reached: probability that token u and all before it are accepted.
        lengths: tokens of each block.
    """
    size = reached.shape[-1]
    full = (lengths == size).astype(jnp.float32)
    count = full.sum()
    shares = {f"P(A>={n})": reached[..., n - 1] for n in (2, 4, 8) if n <= size}
    values = {"A": reached.sum(axis=-1)} | shares
    return {name: ((value * full).sum(), count) for name, value in values.items()}


def _entropy(logits: Float[Array, "*b V"]) -> Float[Array, "*b"]:
    logs = jax.nn.log_softmax(logits, axis=-1)
    return -(jnp.exp(logs) * logs).sum(axis=-1)
