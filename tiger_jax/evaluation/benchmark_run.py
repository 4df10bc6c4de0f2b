"""Runs a benchmark: questions of data sets to every method, with a journal that survives a kill.

Long answers to speed prompts are timed and counted, short ones to score prompts are scored; no
number of one mode is ever taken from the other.
"""

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from tiger_jax import embedded, runtime
from tiger_jax.errors import UserError
from tiger_jax.evaluation import benchmark_config, benchmark_report, sample
from tiger_jax.evaluation.benchmark_cells import Cell, Pass, Setting, hardware
from tiger_jax.evaluation.benchmark_methods import Method, find, weights_name
from tiger_jax.evaluation.journal import RUN, Journal
from tiger_jax.evaluation.progress import Counter
from tiger_jax.evaluation.questions import Source
from tiger_jax.evaluation.run_profile import Profile, line
from tiger_jax.evaluation.sample import Sample
from tiger_jax.evaluation.sources import sources
from tiger_jax.pipeline import Pipeline
from tiger_jax.weights.original_config import read_config

JOURNAL = "journal.jsonl"


def evaluate(config: Any) -> tuple[dict, str]:
    """Run a benchmark config: (report, text to print).

    Ctrl-C ends it early: `interrupted` of the report, which has what was answered until then. The
    same command goes on from there.

    Raises:
        UserError: a config, a variant or a data set that cannot be used, or a run folder that
            cannot be written.
    """
    profile = Profile()
    benchmark_config.check(config)
    verifier_folder = Path(config.verifier or embedded.verifier(config.pair))
    read_config(verifier_folder)  # a wrong folder is told before any data set is read
    methods, left_out = find(config)
    folder = run_folder(config)
    samples, reasons = read_samples(config, folder)
    dtype = config.dtype or runtime.default_dtype()
    setting = Setting(config, verifier_folder, weights_name(verifier_folder), dtype, hardware())
    cells: list[Cell] = []
    for method in methods:
        facts = method.facts(verifier_folder)
        for chosen in samples:
            for size in config.batch_sizes:
                cells += setting.cells(method, facts, chosen, size)
    with Journal.open(folder / JOURNAL) as journal:
        interrupted = _interrupted(setting, journal, cells, profile)
        report = benchmark_report.build(
            config, cells, journal, left_out + reasons, interrupted
        )  # fmt: skip
    if report["run"]:
        print(line(report["run"]), file=sys.stderr)
    text = benchmark_report.text(report)
    benchmark_report.write(folder, report, text, cells, journal)
    return report, text


def run_folder(config: Any) -> Path:
    """Where the journal and the reports of a run lie. Raises UserError."""
    folder = Path(config.out or Path(config.runs) / "benchmark" / config.table)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"out: expected a folder, got {folder} ({error.strerror})") from None
    return folder


def read_samples(config: Any, folder: Path) -> tuple[list[Sample], list[str]]:
    """The questions of every data set, and one line for each that is left out.

    Raises:
        UserError: a data set that cannot be used, unless `skip_missing`; or none that can.
    """
    found, reasons = [], []
    for entry in benchmark_config.entries(config):
        why = []
        for open_source in sources(config, entry):
            try:
                found.append(_sample(open_source(), entry, config.seed, folder))
                break
            except UserError as error:
                if not config.skip_missing:
                    raise
                why.append(str(error))
        else:
            reasons.append(f"{entry['label']} ({entry['mode']}): {'; '.join(why)}")
    if not found:
        raise UserError(f"datasets: expected at least one that can be read; {reasons[0]}")
    return found, reasons


def _sample(source: Source, entry: dict, seed: int, folder: Path) -> Sample:
    """The questions of one source. Raises UserError if none can be asked."""
    chosen = sample.take(source, entry, seed, folder)
    if not chosen.questions:
        faults = ", ".join(f"{count} x {kind}" for kind, count in chosen.faults.items())
        raise UserError(f"no usable question (faults: {faults or 'none'})")
    return chosen


def _interrupted(
    setting: Setting, journal: Journal, cells: Sequence[Cell], profile: Profile
) -> bool:
    """Answer what the journal does not have; whether ctrl-C stopped it."""
    left = sum(
        not journal.cell(cell.fingerprint).has([uid])
        for cell in cells
        for uid in cell.sample.uids
    )  # fmt: skip
    if not left:
        return False
    counter = Counter(left, "answers")
    profile.expect(left)
    budget = setting.config.visual_budget or None
    interrupted = False
    try:
        with profile.during("loading"):
            verifier = Pipeline.load(setting.verifier, dtype=setting.dtype, visual_budget=budget)
        for method in dict.fromkeys(cell.method.name for cell in cells):
            own = [cell for cell in cells if cell.method.name == method]
            _run_method(setting, journal, verifier, own, counter, profile)
    except KeyboardInterrupt:
        interrupted = True
    journal.append(RUN, {"run": profile.summary()})
    return interrupted


def _run_method(
    setting: Setting, journal: Journal, verifier: Pipeline, cells: Sequence[Cell],
    counter: Counter, profile: Profile,
) -> None:  # fmt: skip
    """All passes of one method; its drafter is loaded only if something is left to answer."""
    method: Method = cells[0].method
    passes: dict[tuple[int, int], list[Cell]] = {}
    for cell in cells:
        if not journal.cell(cell.fingerprint).has(cell.sample.uids):
            passes.setdefault((id(cell.sample), cell.batch_size), []).append(cell)
    if not passes:
        return
    with profile.during("loading"):
        pipeline = method.load(verifier, max(setting.config.draft_lengths))
    for group in passes.values():
        work = Pass(setting, journal, pipeline, group, profile)
        with contextlib.closing(work.run()) as steps:
            for answered in steps:
                counter.add(answered)
                profile.answered(answered)
    # A drafter's programs are of no use to the next method, and would stay; what methods share
    # comes back from the compilation cache on disk.
    jax.clear_caches()
