"""Build a training pool from public data sets.

    python -m tiger_jax.data.build_pool --config configs/data/kd_pool.py \\
        --config.root=DATA --config.out=pools/kd
    python -m tiger_jax.data.build_pool --config configs/data/grpo_pool.py \\
        --config.root=DATA --config.out=pools/grpo
    ... --config.scale=0.001 --config.sources.llava.path=llava_v1_5_mix665k.json

configs/data/
    kd_pool.py    92,500 examples for knowledge distillation
    grpo_pool.py  80,000 for acceptance alignment, filtered and tagged

DATA holds a folder for each data set (llava, textvqa, ...). The same inputs and settings give the
same bytes. A build that was stopped goes on with the source it was at. Training reads the pool with
--config.examples="('pools/kd',)".
"""

import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tiger_jax
from tiger_jax import command_line
from tiger_jax.data import pool_files
from tiger_jax.data.pool_assembly import PART, describe, finish, report, shared_with
from tiger_jax.data.pool_files import FAULTS, FORMAT, MANIFEST, UNFINISHED
from tiger_jax.data.pool_plan import (
    Evaluation,
    check_config,
    inputs_of,
    read_evaluation,
    recipe_of,
    settings_of,
    sources_of,
)
from tiger_jax.data.pool_writing import SUMMARY, write_source
from tiger_jax.errors import UserError, exit_code

PACKAGES = ("array-record", "pillow")
"""What else the bytes of a pool depend on."""


def build(config: Any, watch: "Progress | None" = None) -> dict[str, Any]:
    """Build the pool of a config, or go on with it; returns its manifest.

    Raises:
        UserError: anything in config or data that cannot be, or another pool lies at `out`.
    """
    watch = watch or Progress(sys.stderr)
    check_config(config)
    out = Path(config.out)
    versions = {"tiger_jax": tiger_jax.__version__} | {name: version(name) for name in PACKAGES}
    settings = settings_of(config)
    evaluation = read_evaluation(config, watch)
    sources = sources_of(config, evaluation)
    identity = {
        "pool": config.pool, "format": FORMAT, "settings": settings, "versions": versions,
        "inputs": inputs_of(config, watch),
    }  # fmt: skip
    if done := _finished(out, identity):
        watch.say(f"{out}: holds this pool already, {done['records']} records")
        return done
    stage = _open_stage(out, identity)
    summaries = _write_sources(config, sources, evaluation, stage, watch)
    manifest = identity | describe(config, summaries, evaluation)
    manifest["leaks"]["shared_with_other_pool"] = shared_with(config, stage, summaries)
    if not manifest["records"]:
        found = ", ".join(
            f"{name}: {summary['read']} read, {sum(summary['faults'].values())} faults"
            for name, summary in summaries.items()
        )
        raise UserError(f"{out}: expected records that the pool may hold, found none ({found})")
    return finish(config, out, stage, summaries, manifest, watch)


def _finished(out: Path, identity: Mapping[str, Any]) -> dict[str, Any] | None:
    """The manifest of a pool that is there. Raises UserError if it is another one."""
    if not (out / MANIFEST).is_file():
        return None
    manifest = pool_files.read_manifest(out)
    shutil.rmtree(out / UNFINISHED, ignore_errors=True)  # of a build that was killed at its end
    changed = [name for name, value in identity.items() if manifest.get(name) != value]
    if changed:
        raise UserError(
            f"{out}: holds a pool with other {', '.join(changed)}; delete it, or set another out"
        )
    return manifest


def _open_stage(out: Path, identity: Mapping[str, Any]) -> Path:
    """The folder that a build works in; what another build left in it is deleted."""
    stage, file = out / UNFINISHED, out / UNFINISHED / "identity.json"
    found = pool_files.read_json(file) if file.is_file() else None
    # Sources that were finished when no picture might be missing stand as they are.
    strict = {**identity, "settings": {**identity["settings"], "allow_missing": False}}
    same = found in (identity, strict)
    try:
        if not same:
            shutil.rmtree(stage, ignore_errors=True)
            for left in (*out.glob("pool-*.array_record"), *out.glob("pictures-*.array_record")):
                left.unlink()
            stage.mkdir(parents=True)
        pool_files.write_json(file, identity)
        for half in stage.glob(f"*{PART}"):
            shutil.rmtree(half)
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror})") from None
    return stage


def _write_sources(
    config: Any, sources: Mapping[str, Any], evaluation: Evaluation, stage: Path,
    watch: "Progress",
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """The summaries of all sources by name, in the config's order. The one that tops up comes last,
    as what the others lack is known then."""
    recipe = recipe_of(config, evaluation)
    done, known, lacking = {}, set(), 0
    for name in sorted(sources, key=lambda name: name == config.top_up):
        source, folder = sources[name], stage / name
        if name == config.top_up:
            source = replace(source, count=source.count + lacking)
        if not folder.exists():
            part = stage / f"{name}{PART}"
            part.mkdir()
            try:
                write_source(source, recipe, part, known, watch)
            except UserError:
                shutil.copyfile(part / FAULTS, stage.parent / FAULTS)
                raise
            os.replace(part, folder)
        done[name] = pool_files.read_json(folder / SUMMARY)
        known.update(sha for file in done[name]["pictures"] for sha in file)
        lacking += max(0, source.count - done[name]["written"])
        watch.say(f"{name}: {done[name]['written']} of {source.count} records")
    return {name: done[name] for name in sources}


class Progress:
    """A line on what is done, redrawn on a terminal, now and then in a log."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._redraw = stream, stream.isatty()
        self._every = 0.5 if self._redraw else 30.0
        self._said = self._began = time.monotonic()
        self._text = ""

    def __call__(self, text: str, done: int, total: int) -> None:
        """`done` of `total` (0: not known) of what `text` names."""
        now = time.monotonic()
        if text != self._text:
            self._text, self._began = text, now
        if now - self._said < self._every:
            return
        self._said = now
        rate = done / max(now - self._began, 1e-6)
        parts = [f"{text} {done}" + (f" of {total}" if total else "")] if done else [text]
        if total and rate:
            left = round((total - done) / rate)
            parts.append(f"{rate:.0f}/s, ETA {left // 3600}:{left // 60 % 60:02d}:{left % 60:02d}")
        self._write("  ".join(parts), end="" if self._redraw else "\n")

    def say(self, text: str) -> None:
        """A line that stays."""
        self._write(text, end="\n")

    def _write(self, text: str, end: str) -> None:
        clear = "\r\x1b[2K" if self._redraw else ""
        print(f"{clear}{text}", end=end, file=self._stream, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point: 0 fine, 2 bad input, 130 interrupted."""
    argv = sys.argv[1:] if argv is None else argv
    goes_on = "interrupted; the same command goes on from the last finished source"
    return exit_code(lambda: _run(argv), interrupted=goes_on)


def _run(argv: Sequence[str]) -> int:
    if command_line.wants_help(argv):
        print(command_line.help_text(argv, __doc__))
        return 0
    config = command_line.parse(argv)
    try:
        print(report(build(config)))
    except BrokenPipeError:
        raise
    except OSError as error:  # the disk is full, or went away
        place = error.filename or config.out
        raise UserError(f"{place}: {error.strerror or error}") from error
    return 0


if __name__ == "__main__":
    sys.exit(main())
