"""The programs of knowledge distillation and of alignment, with what is on the devices meanwhile.

before       the verifier answers the prompts, alone on the devices
KD           first micro-batch, further ones, optimizer
alignment    weights gathered, rollout, verifier, scoring, then the same three
"""

from typing import Any

import jax
from jax import ShapeDtypeStruct as Shape
from jax.sharding import NamedSharding, PartitionSpec

from tiger_jax.dry_run import abstract_batches as batches
from tiger_jax.dry_run import decoding_parts
from tiger_jax.dry_run.abstract_batches import place_batch
from tiger_jax.dry_run.parts import Part, device_bytes
from tiger_jax.dry_run.published import abstract_weights, place
from tiger_jax.dry_run.rollout_parts import Rollout
from tiger_jax.dry_run.training_plan import Plan
from tiger_jax.training import align_step, optimizer, train_step
from tiger_jax.training.distill_step import ask_verifier, make_distill_loss
from tiger_jax.training.teacher_pass import TeacherSettings, teacher_pass


def answering_parts(plan: Plan) -> list[Part]:
    """The verifier answers `teacher_batch` prompts, then reads a quarter of them at a time."""
    config, mesh = plan.config, plan.answer_mesh
    params = abstract_weights(plan.verifier, plan.dtype, mesh)
    setting = decoding_parts.Setting(
        verifier=plan.verifier, verifier_params=params, mesh=mesh,
        longest=plan.longest, batch=config.teacher_batch, room=config.teacher.max_new_tokens,
        greedy=config.teacher.temperature == 0,
    )  # fmt: skip
    settings = TeacherSettings(**config.teacher.to_dict())
    count = max(1, config.teacher_batch // 4)
    texts = place_batch(batches.teacher_batch(plan.longest, count), mesh)
    reading = Part(
        "answers: laws and attention", teacher_pass, (plan.verifier, settings, params, *texts),
        mesh, {"parameters": params, "batch": texts}, device_bytes(params),
    )  # fmt: skip
    parts = decoding_parts.plain_parts(setting, "answers: ")
    return [*parts, reading]


def training_parts(plan: Plan) -> list[Part]:
    """What a step runs, in order."""
    return distill_parts(plan) if plan.config.objective == "distill" else align_parts(plan)


def distill_parts(plan: Plan) -> list[Part]:
    """KD from cached laws, or from the verifier's own where it is asked online."""
    config, waiting, asking = plan.config, {}, []
    batch = plan.batch
    if config.get("online_teacher"):
        waiting = {"parameters": plan.verifier_params}
        batch = _ask_part(plan, asking)
    loss = make_distill_loss(plan.drafter, config.route_weight)
    return [*asking, *update_parts(plan, "KD: ", loss, batch, waiting)]


def align_parts(plan: Plan) -> list[Part]:
    """Rollout, scoring and update; expected_acceptance has an update alone."""
    config = plan.config
    settings = align_step.AlignSettings(**config.align.to_dict(), route_weight=config.route_weight)
    if settings.objective == "expected_acceptance":
        loss = align_step.make_expected_acceptance_loss(plan.drafter, settings)
        return update_parts(plan, "alignment: ", loss, plan.batch, {})
    rolled = Rollout(plan, settings)
    frozen = {"parameters": (plan.verifier_params, plan.reference_params)}
    loss = align_step.make_grpo_loss(plan.drafter, settings, plan.end_ids)
    return [*rolled.parts(), *update_parts(plan, "alignment: ", loss, rolled.scored, frozen)]


def update_parts(
    plan: Plan, prefix: str, loss: Any, batch: Any, waiting: dict[str, Any]
) -> list[Part]:
    """Gradients of the first micro-batch, of each further one, and the step of the optimizer."""
    config, state = plan.config, plan.state
    frozen = optimizer.frozen_mask(state.params, config.freeze) if config.freeze else None
    step = train_step.make_train_step(loss, plan.transform, frozen, plan.drafter.rules)
    with jax.sharding.use_abstract_mesh(plan.mesh.abstract_mesh):
        sums = jax.eval_shape(step.start, state, batch)
    everywhere = NamedSharding(plan.mesh, PartitionSpec())
    sums = place(sums, jax.tree.map(lambda _: everywhere, sums)).replace(
        gradients=jax.tree.map(
            lambda g, p: Shape(g.shape, g.dtype, sharding=p.sharding), sums.gradients, state.params
        )
    )
    weights, gradients = device_bytes(state.params), device_bytes(sums.gradients)
    moments = device_bytes(state.opt_state)
    micro = {"batch": [batch] * config.accumulate}
    given, held = plan.trained | micro, {"gradients": sums.gradients}
    parts = [
        Part(f"{prefix}first micro-batch", step.start, (state, batch), plan.mesh, given,
             weights + gradients, waiting=waiting, results="gradients"),
    ]  # fmt: skip
    if config.accumulate > 1:
        parts.append(
            Part(f"{prefix}further micro-batch", step.add, (state, sums, batch), plan.mesh,
                 given | held, weights + 2 * gradients, waiting=waiting, results="gradients",
                 times=config.accumulate - 1)
        )  # fmt: skip
    parts.append(
        Part(f"{prefix}optimizer", step.apply, (state, sums), plan.mesh, given | held,
             2 * (weights + moments) + gradients, waiting=waiting, results="masters")
    )  # fmt: skip
    return parts


def _ask_part(plan: Plan, parts: list[Part]) -> Any:
    """Adds the online teacher's program; gives the batch that it makes."""
    settings = TeacherSettings(**plan.config.teacher.to_dict())
    moved = place_batch(plan.batch, plan.verifier_mesh)
    arguments = (plan.verifier, settings, plan.verifier_params, moved)
    parts.append(Part(
        "KD: the verifier's laws", ask_verifier, arguments, plan.verifier_mesh,
        {"parameters": plan.verifier_params, "batch": [moved] * plan.config.accumulate},
        device_bytes(plan.verifier_params), waiting=plan.trained, times=plan.config.accumulate,
    ))  # fmt: skip
    asked = jax.eval_shape(lambda *rest: ask_verifier(plan.verifier, settings, *rest),
                           plan.verifier_params, moved)  # fmt: skip
    return place_batch(asked, plan.mesh)
