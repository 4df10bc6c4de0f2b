"""Decodes held-out scenes with a pair: answers, acceptance, and speed against plain decoding.

A cell is one temperature, difficulty and kind of question. Its prompts are decoded in batches of
their own, so that its speed can be told apart from that of other cells.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from tiger_jax import embedded, runtime
from tiger_jax.command_line import check_at_least, check_subset
from tiger_jax.data.batches import PromptInputs
from tiger_jax.decoding import costs
from tiger_jax.decoding.engine import BatchOutput, Options, Output
from tiger_jax.errors import UserError
from tiger_jax.evaluation import exact_pass, scene_prompts, scene_report
from tiger_jax.evaluation.comparison import Rounds
from tiger_jax.evaluation.exact_acceptance import response_statistics, stack_responses
from tiger_jax.evaluation.progress import Counter
from tiger_jax.evaluation.scene_prompts import SceneQuestion
from tiger_jax.pipeline import Pipeline, Prepared, batches

DIFFICULTIES = ("easy", "hard")


@dataclasses.dataclass(frozen=True)
class CellKey:
    """What the prompts of a cell share."""

    temperature: float
    difficulty: str
    kind: str


@dataclasses.dataclass(frozen=True)
class Judged:
    """One answered question."""

    picture: str
    correct: bool
    tokens: int
    accepted_lengths: tuple[int, ...]
    drafter_correct: bool | None
    identical: bool | None
    """Equal to plain decoding; None at temperatures above 0, where only the law is equal."""


@dataclasses.dataclass
class Cell:
    """Everything counted and timed in a cell; seconds of decoding, prefill left out."""

    key: CellKey
    judged: list[Judged] = dataclasses.field(default_factory=list)
    seconds: float = 0.0
    plain_seconds: float = 0.0
    exact: Rounds | None = None
    """Of each answer what plain decoding's text makes one expect; None where it was not asked."""


@dataclasses.dataclass(frozen=True)
class Decoders:
    """The pair, its verifier alone, and its drafter alone."""

    pair: Pipeline
    plain: Pipeline
    drafter: Pipeline | None
    """None without a drafter, and for one that cannot answer alone: a head, or one that routes."""

    @property
    def speculative(self) -> bool:
        """Whether the pair has a drafter."""
        return self.pair.engine.drafter is not None

    @classmethod
    def load(cls, config: Any) -> "Decoders":
        """Read the folders that a config names. Raises UserError."""
        dtype = config.dtype or runtime.default_dtype()
        verifier = config.verifier or embedded.verifier(config.pair)
        drafter = config.drafter or embedded.drafter(kind=embedded.VLM, pair=config.pair)
        if drafter == "none":
            pair = Pipeline.load(verifier, dtype=dtype)
            return cls(pair, pair, None)
        pair = Pipeline.load(
            verifier, drafter, draft_length=config.draft_length,
            confidence=config.draft_confidence, dtype=dtype,
        )  # fmt: skip
        sees_all = pair.router is not None and not pair.router.routes
        alone = Pipeline.load(drafter, dtype=dtype) if sees_all else None
        return cls(pair, pair.plain(), alone)


def evaluate(config: Any) -> tuple[dict, str]:
    """Run the scenes config: (report, text to print). Raises UserError."""
    check(config)
    decoders = Decoders.load(config)
    cells: list[Cell] = []
    measured: dict[float, costs.Costs] = {}
    keys = list(cell_keys(config))
    counter = Counter(len(keys) * config.scenes, "prompts")
    for key in keys:
        cell, first = _decode_cell(config, key, decoders, counter)
        cells.append(cell)
        if decoders.speculative and key.temperature not in measured:
            arrays = decoders.pair.arrays([p.inputs for p in first], config.batch_size)
            measured[key.temperature] = costs.measure(
                decoders.pair.engine, arrays, [p.options for p in first]
            )
    device = str(jax.devices()[0].device_kind)
    report = scene_report.build(cells, measured, config.to_dict(), device)
    return report, scene_report.text(report)


def check(config: Any) -> None:
    """UserError for the first field that no run can have."""
    check_at_least(config, 1, "scenes", "batch_size", "draft_length", "max_new_tokens")
    check_subset(config, "kinds", scene_prompts.KINDS)
    check_subset(config, "difficulties", DIFFICULTIES)
    if not config.temperatures:
        raise UserError("temperatures: expected at least one, got none")
    for temperature in config.temperatures:
        Options(temperature=temperature)
    if not 0 <= config.draft_confidence < 1:
        raise UserError(f"draft_confidence: expected 0 <= P < 1, got {config.draft_confidence}")
    if config.dtype not in ("", "float32", "bfloat16"):
        raise UserError(f"dtype: expected float32, bfloat16 or nothing, got {config.dtype!r}")


def cell_keys(config: Any) -> Iterator[CellKey]:
    """The cells of a run, in the order of its table."""
    for temperature in config.temperatures:
        for difficulty in config.difficulties:
            for kind in config.kinds:
                yield CellKey(float(temperature), difficulty, kind)


def judge(
    question: SceneQuestion, output: Output, plain: Output, drafter: Output | None, greedy: bool
) -> Judged:
    """Compare one answer with the truth and with plain decoding."""
    return Judged(
        picture=question.picture,
        correct=question.is_correct(output.text),
        tokens=len(output.tokens),
        accepted_lengths=tuple(output.accepted_lengths),
        drafter_correct=None if drafter is None else question.is_correct(drafter.text),
        identical=output.tokens == plain.tokens if greedy else None,
    )


def _decode_cell(
    config: Any, key: CellKey, decoders: Decoders, counter: Counter
) -> tuple[Cell, list[Prepared]]:
    """Decode all prompts of a cell; also its first batch, for measuring costs on it."""
    asked = list(scene_prompts.questions(config.scenes, config.seed, (key.kind,), key.difficulty))
    prepared = [
        scene_prompts.prepare(
            decoders.pair, question,
            Options(
                max_new_tokens=config.max_new_tokens, temperature=key.temperature,
                seed=config.seed + number,
            ),
        )
        for number, question in enumerate(asked)
    ]  # fmt: skip
    cell = Cell(key)
    groups, said = list(batches(prepared, config.batch_size)), []
    for group in groups:
        items = [prepared[i] for i in group]
        plain = _add_batch(cell, [asked[i] for i in group], items, decoders, config.batch_size)
        said += [(p.inputs, out.tokens) for p, out in zip(items, plain.outputs, strict=True)]
        counter.add(len(group))
    # The closed form is that of rounds that draft all g tokens.
    if config.exact and decoders.speculative and config.draft_confidence == 0:
        cell.exact = _exact(config, key.temperature, decoders.pair, said)
    return cell, [prepared[i] for i in groups[0]]


def _exact(
    config: Any, temperature: float, pair: Pipeline, said: Sequence[tuple[PromptInputs, list[int]]]
) -> Rounds:
    """Exact evaluation (method.md 4.4) along the answers of plain decoding."""
    items = exact_pass.with_logprobs(
        pair.engine, [exact_pass.spoken_to(*each) for each in said], temperature, config.batch_size
    )
    chances = exact_pass.draft_chances(
        pair, items, temperature, config.draft_length, config.batch_size, config.seed
    )
    rounds = response_statistics(*stack_responses(chances))
    return Rounds(rounds.expected_accepted, rounds.expected_rounds)


def _add_batch(
    cell: Cell, asked: Sequence[SceneQuestion], group: list[Prepared], decoders: Decoders, size: int
) -> BatchOutput:
    """Decode one batch three ways, add what came out to the cell; what plain decoding gave."""
    plain = timed(decoders.plain, group, size)
    output = timed(decoders.pair, group, size) if decoders.speculative else plain
    alone = decoders.drafter.run(group, size) if decoders.drafter else None
    cell.plain_seconds += plain.decode_seconds
    cell.seconds += output.decode_seconds
    for row, question in enumerate(asked):
        judged = judge(
            question, output.outputs[row], plain.outputs[row],
            alone.outputs[row] if alone else None, greedy=cell.key.temperature == 0,
        )  # fmt: skip
        if not decoders.speculative:  # steps of plain decoding are no rounds
            judged = dataclasses.replace(judged, accepted_lengths=(), identical=None)
        cell.judged.append(judged)
    return plain


def timed(pipeline: Pipeline, group: list[Prepared], size: int) -> BatchOutput:
    """A run in which nothing was compiled."""
    output = pipeline.run(group, size)
    return pipeline.run(group, size) if output.compiled else output
