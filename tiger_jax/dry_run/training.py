"""python -m tiger_jax.train --dry_run: whether a run fits its cards, and what a step would cost."""

import sys
from collections.abc import Sequence
from typing import Any

from tiger_jax.dry_run import report
from tiger_jax.dry_run.cards import find_card
from tiger_jax.dry_run.compiler import Compiler
from tiger_jax.dry_run.measure import SPARE, Measured, measure
from tiger_jax.dry_run.parts import Part
from tiger_jax.dry_run.training_parts import answering_parts, training_parts
from tiger_jax.dry_run.training_plan import Plan
from tiger_jax.errors import UserError
from tiger_jax.sharding import rules

OBJECTIVES = ("distill", "align")
MOST_EXAMPLES = 64
"""The search for the largest batch ends here."""


def report_training(config: Any) -> tuple[str, bool]:
    """Compile all programs of a run from abstract parameters: (text, whether they fit).

    Args:
        config: of configs/kd.py or configs/grpo.py.

    Raises:
        UserError: another objective, an unknown card or model, or a mesh of other devices.
    """
    if config.objective not in OBJECTIVES:
        got = config.objective
        raise UserError(f"dry run: expected objective {' or '.join(OBJECTIVES)}, got {got!r}")
    card = find_card(config.dry_run_card)
    compiler = Compiler.choose(card, config.dry_run_devices)
    plan = Plan(config, compiler, config.dry_run_layers)
    rules.check_batch(config.batch, plan.mesh)
    answering = measure_all(answering_parts(plan), compiler)
    step = measure_all(training_parts(plan), compiler)
    said, fits = report.verdict([*answering, *step], card)
    lines = [heading(plan), report.tables([*answering, *step]), report.legend(card)]
    lines += [_prediction(plan, answering, step), said]
    if config.dry_run_search:
        lines.append(_largest(plan, step))
    return "\n\n".join(lines), fits


def measure_all(parts: Sequence[Part], compiler: Compiler) -> list[Measured]:
    """Compile one after the other; each takes seconds to minutes, so each is said when it is
    done."""
    rows = []
    for part in parts:
        rows.append(measure(part, compiler))
        said = f"dry run: {part.name}: {rows[-1].peak / report.GB:.1f} GB"
        print(said, file=sys.stderr, flush=True)
    return rows


def heading(plan: Plan) -> str:
    """What was compiled, by what, and for which sizes."""
    config, longest = plan.config, plan.longest
    meshes = (
        f"drafter on {_axes(plan.mesh)}, verifier on {_axes(plan.verifier_mesh)}, its answers on "
        f"{_axes(plan.answer_mesh)}"
    )
    return (
        f"{plan.compiler.described}\n"
        f"{config.model} drafts for {config.verifier}; {meshes}; micro-batch {config.batch} x "
        f"{config.accumulate}; the longest examples: {longest.visual} visual tokens "
        f"({longest.picture.tiles} tiles), {longest.text} packed text tokens, responses of "
        f"{longest.response}, blocks of {config.draft_length}"
    )


def _axes(mesh: Any) -> str:
    return ", ".join(f"{axis}={size}" for axis, size in mesh.shape.items())


def _prediction(plan: Plan, answering: Sequence[Measured], step: Sequence[Measured]) -> str:
    """Rooflines added up over the run."""
    config = plan.config
    seconds = sum(row.times * row.seconds for row in step)
    examples = config.steps * config.batch * config.accumulate
    prefill, token, reading = answering
    each = (prefill.seconds + plan.longest.response * token.seconds) / config.teacher_batch
    each += reading.seconds / max(1, config.teacher_batch // 4)
    flops = sum(row.times * row.flops for row in step) * len(plan.compiler.devices)
    return (
        f"prediction (rooflines added up, every example the longest): a step {seconds:.2f} s and "
        f"{flops / 1e12:.0f} TFLOP on all devices, {config.steps} steps "
        f"{seconds * config.steps / 3600:.1f} h; the verifier's answers to {examples} prompts "
        f"{each * examples / 3600:.1f} h"
    )


def _largest(plan: Plan, rows: Sequence[Measured]) -> str:
    """The largest micro-batch whose step leaves SPARE of the card.

    Memory grows about in proportion to the batch: two sizes foretell the largest, and the sizes
    around it are compiled.
    """
    unit = rules.batch_parts(plan.mesh)
    peaks = {plan.config.batch: _peak(rows)}
    limit = (1 - SPARE) * plan.compiler.card.memory_bytes

    def fits(batch: int) -> bool:
        if batch not in peaks:
            peaks[batch] = _peak(measure_all(_growing_parts(plan, batch), plan.compiler))
        return peaks[batch] <= limit

    low, high = sorted((plan.config.batch, 2 * plan.config.batch))
    fits(low), fits(high)
    slope = max((peaks[high] - peaks[low]) / (high - low), 1.0)
    guess = int(high + (limit - peaks[high]) / slope) // unit * unit
    best = min(max(guess, 0), MOST_EXAMPLES // unit * unit)
    while best > 0 and not fits(best):
        best -= unit
    while best == guess and best < MOST_EXAMPLES and fits(best + unit):
        best = guess = best + unit
    if not best:
        return f"largest micro-batch with {SPARE:.0%} to spare: none"
    return (
        f"largest micro-batch with {SPARE:.0%} to spare: {best} ({peaks[best] / report.GB:.1f} GB)"
    )


def _growing_parts(plan: Plan, batch: int) -> list[Part]:
    """Programs of a step whose memory depends on its batch."""
    config = plan.config.copy_and_resolve_references()
    with config.unlocked():
        config.batch = batch
    parts = training_parts(Plan(config, plan.compiler, plan.layers))
    return [part for part in parts if not part.name.endswith(("gathered", "optimizer"))]


def _peak(rows: Sequence[Measured]) -> int:
    return max(row.peak for row in rows)
