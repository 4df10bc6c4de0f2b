"""The cells of a benchmark: everything that answers depend on, and the batches of one pass.

A pass is a method on a sample at one batch size. Its cells differ in temperature and draft length:
they decode the same prompts, which are read once.
"""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import jax

import tiger_jax
from tiger_jax.data.videos import VideoSampling
from tiger_jax.decoding import costs
from tiger_jax.decoding.engine import BatchOutput, Options
from tiger_jax.errors import UserError
from tiger_jax.evaluation import memory, questions
from tiger_jax.evaluation.benchmark_config import SPEED
from tiger_jax.evaluation.benchmark_methods import Method
from tiger_jax.evaluation.journal import Journal, cell_fingerprint
from tiger_jax.evaluation.run_profile import Profile
from tiger_jax.evaluation.sample import Sample, ahead, asked, windows
from tiger_jax.pipeline import Pipeline, Prepared, batches

WINDOW = 4
"""Batches whose questions are looked through for those of one shape; of videos, which take up to
300 MB each, one batch."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """What the rows of one line of a report share."""

    about: dict
    method: Method
    sample: Sample
    temperature: float
    draft_length: int
    batch_size: int

    @cached_property
    def fingerprint(self) -> str:
        """Its name in the journal."""
        return cell_fingerprint(self.about)

    def costs_name(self, how: str) -> str:
        """Under which the journal has its costs: for "first", those of the method at this batch
        size, on whichever data set came first."""
        own = ("dataset", "label", "split", "ids", "fps", "max_frames") if how == "first" else ()
        about = {name: value for name, value in self.about.items() if name not in own}
        return cell_fingerprint(about | {"costs": True})

    @property
    def speed(self) -> bool:
        """Whether long answers are timed; else short ones are scored."""
        return self.sample.entry["mode"] == SPEED


class Setting(NamedTuple):
    """What all cells of a run share."""

    config: Any
    verifier: Path
    weights: str
    dtype: str
    hardware: str

    def cells(self, method: Method, facts: dict, sample: Sample, batch_size: int) -> list[Cell]:
        """The cells of a pass; `facts` are the method's."""
        config, entry = self.config, sample.entry
        speed = entry["mode"] == SPEED
        lengths = [0] if method.variant is None else list(config.draft_lengths)
        made = []
        for temperature in map(float, config.temperatures):
            for length in lengths if speed else lengths[:1]:
                about = {
                    **facts, "verifier_weights": self.weights,
                    "dataset": sample.source.name, "label": sample.label,
                    "split": sample.source.split, "mode": entry["mode"], "ids": sample.digest,
                    "T": temperature, "g": length, "batch": batch_size, "seed": config.seed,
                    "fps": entry["fps"] or config.fps, "max_frames": config.max_frames,
                    "visual_budget": config.visual_budget, "dtype": self.dtype,
                    "hardware": self.hardware, "versions": versions(),
                }  # fmt: skip
                made.append(Cell(about, method, sample, temperature, length, batch_size))
        return made

    def sampling(self, sample: Sample) -> VideoSampling:
        """Which frames of its videos are read."""
        config = self.config
        return VideoSampling(
            sample.entry["fps"] or config.fps or None, config.max_frames or None
        )  # fmt: skip


def versions() -> dict[str, str]:
    """Of the programs that decode."""
    return {"tiger_jax": tiger_jax.__version__, "jax": jax.__version__}


def hardware() -> str:
    """Kind and number of devices; of CPUs, cores."""
    device = jax.devices()[0]
    if device.platform == "cpu":
        return f"cpu ({os.cpu_count()} cores)"
    return f"{len(jax.devices())} x {device.device_kind}"


class Pass:
    """Decodes what a journal does not have yet of the cells of a pass."""

    def __init__(
        self, setting: Setting, journal: Journal, pipeline: Pipeline, cells: Sequence[Cell],
        profile: Profile,
    ) -> None:  # fmt: skip
        self._setting = setting
        self._journal = journal
        self._pipeline = pipeline
        self._cells = list(cells)
        self._sample = cells[0].sample
        self._size = cells[0].batch_size
        self._profile = profile
        self._numbers = {uid: number for number, uid in enumerate(self._sample.uids)}

    def run(self) -> Iterator[int]:
        """Decode; yields how many answers each step gave. Batches are those of a run that was
        never stopped: whole windows are skipped, others are read again and put together again."""
        with contextlib.closing(ahead(self._read())) as read:
            while window := self._next(read):
                prepared = [item for item in window if isinstance(item, Prepared)]
                failed = dict(item for item in window if not isinstance(item, Prepared))
                for cell in self._cells:
                    yield self._note(cell, failed)
                for group in batches(prepared, self._size):
                    for cell in self._cells:
                        yield self._decode(cell, [prepared[i] for i in group])

    def _next(self, read: Iterator[list[Prepared | tuple[str, str]]]) -> list:
        """The next window; empty at the end."""
        with self._profile.during("reading"):
            return next(read, [])

    def _read(self) -> Iterator[list[Prepared | tuple[str, str]]]:
        """Windows of prompts that are not all answered yet; (uid, why) of one that has none."""
        size = self._size * (1 if self._sample.videos else WINDOW)
        names = windows(self._sample.uids, size)
        wanted = [not self._known(window) for window in names]
        if not any(wanted):
            return
        video = self._setting.sampling(self._sample)
        for window, missing in zip(windows(asked(self._sample), size), wanted, strict=False):
            if missing:
                yield [self._prepared(question, video) for question in window]

    def _known(self, uids: Sequence[str]) -> bool:
        return all(self._journal.cell(cell.fingerprint).has(uids) for cell in self._cells)

    def _prepared(
        self, question: questions.Question, video: VideoSampling
    ) -> Prepared | tuple[str, str]:
        options = Options(
            max_new_tokens=question.max_new_tokens,
            seed=self._setting.config.seed + self._numbers[question.uid],
        )
        try:
            return questions.prepare(self._pipeline, question, options, video)
        except UserError as error:
            return question.uid, str(error)

    def _note(self, cell: Cell, failed: dict[str, str]) -> int:
        """Write down the questions that cannot be asked."""
        log = self._journal.cell(cell.fingerprint)
        new = {uid: why for uid, why in failed.items() if not log.has([uid])}
        if new:
            self._append(cell, {"failed": new})
        return len(new)

    def _decode(self, cell: Cell, group: list[Prepared]) -> int:
        """Answer one batch, unless it is answered."""
        uids = [item.request.id for item in group]
        log = self._journal.cell(cell.fingerprint)
        if log.has(uids):
            return 0
        group = [
            dataclasses.replace(
                item, options=dataclasses.replace(item.options, temperature=cell.temperature)
            )
            for item in group
        ]
        pipeline = self._pipeline
        drafts = cell.method.variant is not None
        if drafts:
            pipeline = pipeline.with_draft_length(cell.draft_length)
        if drafts and cell.speed and not cell.method.alone:
            self._measure(cell, pipeline, group)
        self._append(cell, self._answers(cell, pipeline, group))
        return len(group)

    def _measure(self, cell: Cell, pipeline: Pipeline, group: list[Prepared]) -> None:
        """c, c_route and v on the first batch that they are asked for."""
        how = self._setting.config.costs
        name = cell.costs_name(how)
        if how == "none" or self._journal.cell(name).costs is not None:
            return
        arrays = pipeline.arrays([item.inputs for item in group], self._size)
        with self._profile.during("costs"):
            found = costs.measure(pipeline.engine, arrays, [item.options for item in group])
        self._journal.append(name, {"costs": {
            "c": found.c, "c_route": found.c_route, "v": found.v, "depth": found.draft_length,
            "plain_step": found.plain_step, "on": cell.sample.label,
        }})  # fmt: skip

    def _answers(self, cell: Cell, pipeline: Pipeline, group: list[Prepared]) -> dict:
        """One line of the journal: the answers of a batch, and of long ones how fast they came."""
        drafts, plain = cell.method.variant is not None and not cell.method.alone, None
        if cell.speed and drafts:
            # One after the other, so that drift of the machine hits both alike.
            plain = self._timed(cell, pipeline.plain().run, group)
        output = self._timed(cell, pipeline.run_alone if cell.method.alone else pipeline.run, group)
        line = {"rows": _rows(cell, group, output, plain), "peak_bytes": memory.peak_bytes()}
        if drafts:
            line["depth"] = pipeline.engine.drafter.spec.depth
        if cell.speed:
            line["seconds"] = _seconds(output, "") | (_seconds(plain, "plain_") if plain else {})
        return line

    def _timed(
        self, cell: Cell, run: Callable[[list[Prepared], int], BatchOutput], group: list[Prepared]
    ) -> BatchOutput:  # fmt: skip
        """Decode a batch; long answers, whose time and memory count, without compiling anything."""
        for _ in range(2):
            memory.reset_peak()
            output = run(group, self._size)
            self._profile.ran(output)
            if not (cell.speed and output.compiled):
                break
        return output

    def _append(self, cell: Cell, line: dict) -> None:
        name = cell.fingerprint
        if self._journal.cell(name).about is None:
            self._journal.append(name, {"about": cell.about})
        self._journal.append(name, line)


def _rows(
    cell: Cell, group: Sequence[Prepared], output: BatchOutput, plain: BatchOutput | None
) -> list[dict]:
    rows = []
    for place, (item, said) in enumerate(zip(group, output.outputs, strict=True)):
        row = {
            "uid": item.request.id, "text": said.text, "tokens": said.tokens,
            "finish": said.finish_reason, "prompt_tokens": len(item.inputs.tokens),
        }  # fmt: skip
        if cell.method.variant is not None and not cell.method.alone:
            row["accepted"] = said.accepted_lengths
        if plain is not None:
            row["plain_tokens"] = len(plain.outputs[place].tokens)
        if plain is not None and cell.temperature == 0:
            row["identical"] = plain.outputs[place].tokens == said.tokens
        rows.append(row)
    return rows


def _seconds(output: BatchOutput, name: str) -> dict[str, float]:
    return {f"{name}prefill": output.prefill_seconds, f"{name}decode": output.decode_seconds}
