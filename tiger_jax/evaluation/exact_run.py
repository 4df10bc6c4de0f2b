"""Compares drafters of one verifier on held-out scenes: exact acceptance, and real decoding.

The verifier answers each question once a temperature (kept in a TeacherCache). Along its answers
the acceptance of every drafter follows in closed form (method.md 4.4), so that all of them are
compared on the same text, without sampling noise.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tiger_jax import embedded, runtime
from tiger_jax.command_line import check_at_least, check_subset
from tiger_jax.decoding.engine import Options
from tiger_jax.errors import UserError
from tiger_jax.evaluation import (
    decoded_run,
    exact_pass,
    exact_report,
    scene_prompts,
    tables,
    variants,
)
from tiger_jax.evaluation.exact_acceptance import (
    ExactRounds,
    response_statistics,
    stack_responses,
)
from tiger_jax.evaluation.exact_pass import Spoken
from tiger_jax.evaluation.held_out import HeldOut, ask
from tiger_jax.evaluation.progress import Counter
from tiger_jax.head_loading import parse_tree
from tiger_jax.pipeline import Pipeline


def evaluate(config: Any) -> tuple[dict, str]:
    """Run a drafters config: (report, text to print). Raises UserError."""
    check(config)
    found, missing = variants.find(
        config.variants, config.more, config.runs, config.skip_missing, config.pair
    )  # fmt: skip
    reference = config.reference or found[0].name
    if reference not in [variant.name for variant in found]:
        raise UserError(f"reference: expected the name of a variant, got {reference!r}")
    folder = Path(config.verifier or embedded.verifier(config.pair))
    dtype = config.dtype or runtime.default_dtype()
    verifier = Pipeline.load(folder, dtype=dtype)
    held_out = HeldOut.load(config, verifier.processor)
    answers = {
        float(t): ask(config, folder, dtype, verifier, held_out, t)
        for t in config.temperatures
    }  # fmt: skip
    exact: dict[str, dict[tuple[float, int], ExactRounds]] = {}
    decoded: list[dict] = []
    passes = len(found) * len(answers) * len(held_out.prompts)
    counter = Counter(passes, "prompts")
    for variant in found:
        pair = variant.load(folder, max(config.draft_lengths), dtype)
        exact[variant.name] = exact_rounds(config, pair, answers, counter, variant.oracle)
        if config.decode and not variant.oracle:
            rows = decoded_run.decode(config, pair, held_out, exact[variant.name])
            decoded += [exact_report.identity(variant, folder) | row for row in rows]
    report = exact_report.build(
        config, found, missing, reference, folder, exact, decoded,
        exact_report.Prompts(held_out.prompts, _lengths(answers)),
        str(jax.devices()[0].device_kind),
    )  # fmt: skip
    return report, exact_report.text(report)


def check(config: Any) -> None:
    """UserError for the first field that no run can have; looks at no folder."""
    check_at_least(
        config, 1, "scenes", "batch_size", "max_new_tokens", "teacher_batch", "decode_scenes"
    )
    check_at_least(config, 0, "first_scene", "clips")
    check_subset(config, "kinds", scene_prompts.KINDS)
    variants.check(config.variants)
    for name in ("temperatures", "draft_lengths", "decode_batches"):
        if not config[name]:
            raise UserError(f"{name}: expected at least one, got none")
    for temperature in config.temperatures:
        Options(temperature=temperature)
    for tree in config.decode_trees:
        parse_tree(tree)
    for name in ("draft_lengths", "decode_batches"):
        if min(config[name]) < 1:
            raise UserError(f"{name}: expected at least 1, got {min(config[name])}")
    if wrong := set(config.decode_draft_lengths) - set(config.draft_lengths):
        raise UserError(
            f"decode_draft_lengths: expected some of {config.draft_lengths}, got {min(wrong)}"
        )
    if not 0 <= config.hard_share <= 1:
        raise UserError(f"hard_share: expected 0..1, got {config.hard_share}")
    if config.dtype not in ("", "float32", "bfloat16"):
        raise UserError(f"dtype: expected float32, bfloat16 or nothing, got {config.dtype!r}")
    tables.check_report(config.plot, "plot")


def exact_rounds(
    config: Any,
    pair: Pipeline,
    answers: Mapping[float, Sequence[Spoken]],
    counter: Counter,
    oracle: bool = False,
) -> dict[tuple[float, int], ExactRounds]:
    """(temperature, g) -> expectations of every prompt. One pass serves all g: a shorter block is
    the beginning of a longer one."""
    found = {}
    for temperature, items in answers.items():
        chances = exact_pass.draft_chances(
            pair, items, temperature, max(config.draft_lengths), config.batch_size, config.seed,
            counter.add, oracle,
        )  # fmt: skip
        accept, lengths = stack_responses(chances)
        for g in config.draft_lengths:
            found[temperature, g] = response_statistics(accept[:, :, :g], lengths)
    return found


def _lengths(answers: Mapping[float, Sequence[Spoken]]) -> dict[float, np.ndarray]:
    """Tokens of each response."""
    return {t: np.concatenate([s.record.lengths for s in items]) for t, items in answers.items()}
