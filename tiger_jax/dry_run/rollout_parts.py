"""The programs of alignment before its update: blocks drawn from the drafter, and their scores.

B: examples, M: prefixes, K: blocks of a prefix, g: draft length, V: vocabulary.
"""

import dataclasses
from functools import cached_property
from typing import Any

import jax

from tiger_jax.dry_run import abstract_batches as batches
from tiger_jax.dry_run.abstract_batches import place_batch
from tiger_jax.dry_run.parts import Part, device_bytes, join
from tiger_jax.dry_run.published import place
from tiger_jax.dry_run.training_plan import Plan
from tiger_jax.sharding import rules as sharding_rules
from tiger_jax.training import align_step, rollout
from tiger_jax.training.align_step import AlignSettings


@dataclasses.dataclass(frozen=True)
class Rollout:
    """One micro-batch on its way to the update."""

    plan: Plan
    settings: AlignSettings

    def parts(self) -> list[Part]:
        """In the order of AlignmentStep."""
        return [self._gather(), self._draw(), self._verify(), self._score()]

    @cached_property
    def scored(self) -> Any:
        """ScoredBlocks of one micro-batch."""
        fixed, given = self._scoring[:3], self._scoring[3:]
        with jax.sharding.use_abstract_mesh(self.plan.mesh.abstract_mesh):
            made = jax.eval_shape(lambda *rest: align_step.score_blocks(*fixed, *rest), *given)
        return place_batch(made, self.plan.mesh)

    @cached_property
    def gathered(self) -> Any:
        """The drafter's weights in the compute dtype, split over `tensor` alone."""
        plan = self.plan
        with jax.sharding.use_abstract_mesh(plan.mesh.abstract_mesh):
            made = jax.eval_shape(
                lambda params: rollout.gather_weights(params, **self._how), plan.state.params
            )
        axes = rollout.gathered_axes(made, plan.drafter.rules)
        return place(made, sharding_rules.tree_shardings(made, axes, plan.mesh))

    @property
    def _how(self) -> dict[str, Any]:
        return {"rules": self.plan.drafter.rules, "dtype": self.plan.dtype}

    @cached_property
    def tokens(self) -> Any:
        """int32 [B, M, K, g]."""
        return place_batch(batches.ints(*self._shape), self.plan.mesh)

    @cached_property
    def logits(self) -> Any:
        """float32 [B, M, K, g, V]."""
        vocabulary = self.plan.verifier.config.text.vocab_size
        return place_batch(batches.floats(*self._shape, vocabulary), self.plan.mesh)

    @property
    def _shape(self) -> tuple[int, ...]:
        anchors = self.plan.batch.anchors.shape
        return (*anchors, self.settings.samples, self.plan.config.draft_length)

    @property
    def _scoring(self) -> tuple[Any, ...]:
        """Arguments of score_blocks, three static ones first."""
        plan = self.plan
        return (
            plan.drafter, self.settings, plan.end_ids, plan.reference_params,
            plan.drawable, plan.batch, self.tokens, self.logits, self.logits, plan.key, plan.key,
        )  # fmt: skip

    @property
    def _micro(self) -> dict[str, Any]:
        """All micro-batches of a step are placed before the first one is sampled."""
        return {"batch": [self.plan.batch] * self.plan.config.accumulate}

    @property
    def _earlier(self) -> dict[str, Any]:
        return {"batch": [self.scored] * (self.plan.config.accumulate - 1)}

    @property
    def _verifier(self) -> dict[str, Any]:
        return {"parameters": self.plan.verifier_params}

    @property
    def _reference(self) -> dict[str, Any]:
        return {"parameters": self.plan.reference_params}

    def _gather(self) -> Part:
        state = self.plan.state
        moments = {"moments": state.opt_state}
        return Part(
            "alignment: weights gathered", rollout.gather_weights, (state.params,), self.plan.mesh,
            given={"masters": state.params}, keywords=self._how, results="parameters",
            least_bytes=device_bytes(state.params) + device_bytes(self.gathered),
            waiting=join(self._verifier, self._reference, moments, self._micro),
        )  # fmt: skip

    def _draw(self) -> Part:
        plan, settings = self.plan, self.settings
        arguments = (
            plan.drafter.unrolled(), settings.samples, settings.temperature, self.gathered,
            plan.batch, plan.drawable, plan.key, plan.key,
        )  # fmt: skip
        return Part(
            "alignment: rollout", rollout.sample_blocks, arguments, plan.mesh,
            given={"parameters": self.gathered} | self._micro, times=plan.config.accumulate,
            least_bytes=device_bytes(self.gathered) * plan.config.draft_length,
            waiting=join(self._verifier, self._reference, plan.trained, self._earlier),
        )  # fmt: skip

    def _verify(self) -> Part:
        plan = self.plan
        moved = place_batch((plan.batch, self.tokens), plan.verifier_mesh)
        kept = {"parameters": self.gathered, "batch": self.logits}
        return Part(
            "alignment: verifier", align_step.verify_blocks,
            (plan.verifier, plan.verifier_params, *moved), plan.verifier_mesh,
            given=self._verifier | self._micro, least_bytes=device_bytes(plan.verifier_params),
            waiting=join(self._reference, kept, plan.trained, self._earlier),
            times=plan.config.accumulate,
        )  # fmt: skip

    def _score(self) -> Part:
        plan = self.plan
        logits = {"batch": (self.logits, self.logits)}
        return Part(
            "alignment: scoring", align_step.score_blocks, self._scoring, plan.mesh,
            given=join(self._reference, self._micro, logits),
            least_bytes=device_bytes(plan.reference_params),
            waiting=join(
                self._verifier, {"parameters": self.gathered}, plan.trained, self._earlier
            ),
            times=plan.config.accumulate,
        )  # fmt: skip
