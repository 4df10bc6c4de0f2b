"""Checkpoints of a training run: state and data position together, written whole or not at all.

With weights/orbax_io.py this is the only file that imports orbax. A save copies the state to the
host before it returns and is written while the run goes on. Its folder gets its final name only
after everything is in it, so a run that was killed while it saved goes on from the one before; what
such a save leaves behind is deleted at the next start. Nothing is stored between the micro-batches
of a step: a run that dies inside a step repeats it, from the data position before it.

With several processes all of them call every method together; the folder is one they share.
"""

import json
import logging
import math
import os
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from absl import logging as absl_logging
from orbax.checkpoint import v1 as ocp

from tiger_jax.errors import UserError

CHECKPOINTS = "checkpoints"


class RunCheckpoints:
    """The numbered checkpoints of one run folder: the newest `keep`, and the best one."""

    def __init__(
        self, run_dir: str | Path, *, keep: int = 2, keep_best: str = "", reference: str = ""
    ):
        """Open `run_dir`/checkpoints.

        Args:
            keep: newest ones that stay.
            keep_best: held-out metric; the checkpoint where it is highest stays too. "" = none.
            reference: identity of the frozen q_ref of this run (its fingerprint); "" = none.

        Raises:
            UserError: the folder cannot be written.
        """
        self.folder = Path(run_dir).absolute() / CHECKPOINTS
        check_writable(run_dir)
        # What orbax logs as an error it also raises, and we say it in one line.
        absl_logging.set_verbosity(absl_logging.FATAL)
        logging.getLogger("absl").setLevel(logging.CRITICAL)
        self._keep, self._keep_best, self._reference = keep, keep_best, reference
        policies = ocp.training.preservation_policies
        rules = [policies.LatestN(keep)]
        if keep_best:
            rules.append(policies.BestN(
                get_metric_fn=self._score, n=1, keep_checkpoints_without_metrics=False
            ))  # fmt: skip
        self._checkpointer = ocp.training.Checkpointer(
            self.folder, preservation_policy=policies.AnyPreservationPolicy(rules),
            cleanup_tmp_directories=True,
        )  # fmt: skip
        self._whole = self.latest_step()
        self._saving: int | None = None

    def latest_step(self) -> int | None:
        """The newest complete step, or the one on its way to the disk; None in a fresh folder."""
        latest = self._checkpointer.latest
        return None if latest is None else latest.step

    def best(self) -> tuple[int, float] | None:
        """(step, value of the `keep_best` metric) of the best checkpoint, None without one."""
        scored = [(self._score(saved.metrics), saved.step) for saved in self._checkpoints()]
        scored = [(value, step) for value, step in scored if value > -math.inf]
        return max(scored)[::-1] if scored else None

    def is_best(self, scores: Mapping[str, float] | None) -> bool:
        """Whether a state with these held-out scores is better than all that are saved."""
        if not self._keep_best or not scores:
            return False
        best = self.best()
        return self._score(scores) > (-math.inf if best is None else best[1])

    def save(
        self, step: int, state: Any, data_state: dict, scores: Mapping[str, float] | None = None
    ) -> None:
        """Start to write the state after `step` updates, and where the data stands.

        Waits for the save before. On return `state` may be donated; `wait` says when it is on disk.
        A step that is there already is left alone.

        Args:
            data_state: JSON that the input's get_state gave after the last batch of that step.
            scores: held-out metrics of exactly this state, if it was evaluated.

        Raises:
            UserError: the save before failed, or this one at its start; or `keep_best` names a
                metric that `scores` lacks (the state is saved then).
        """
        self.wait()
        if self.latest_step() == step:
            return
        about = {"data": json.dumps(data_state), "reference": self._reference}
        known = scores if self._keep_best in (scores or {}) else None
        metrics = {self._keep_best: float(known[self._keep_best])} if known else None
        self._saving = step
        try:
            self._checkpointer.save_async(
                step, state, force=True, metrics=metrics, custom_metadata=about
            )
        except Exception as error:  # orbax and tensorstore raise many kinds
            raise self._failed(error) from error
        if self._keep_best and scores and not known:
            self.wait()
            have = ", ".join(sorted(scores))
            raise UserError(f"keep_best: expected one of {have}, got {self._keep_best!r}")

    def wait(self) -> None:
        """Return once everything is on disk. Raises UserError, once, if it could not be written."""
        if self._saving is None:
            return
        try:
            self._checkpointer.wait()
        except Exception as error:  # orbax and tensorstore raise many kinds
            raise self._failed(error) from error
        self._whole, self._saving = self._saving, None

    def restore(self, target: Any, step: int | None = None) -> tuple[Any, dict]:
        """The state and data position of `step` (default: the newest).

        `target` has the structure of the state with jax.ShapeDtypeStruct leaves; each array goes
        straight into its target sharding, whatever mesh it was saved on.

        Raises:
            UserError: no such step; another q_ref; a state of another structure or shape; a
                damaged folder. A damaged one is named and not skipped: only a person can know
                whether the steps since the one before may be given up.
        """
        self.wait()
        step = self.latest_step() if step is None else step
        if step is None:
            raise UserError(f"{self.folder}: expected a checkpoint, found none")
        try:
            about = self._checkpointer.metadata(step).custom_metadata
            position, saved = json.loads(about["data"]), about.get("reference", "")
            if saved != self._reference:
                raise UserError(
                    f"{self.folder}/{step}: q_ref: expected {saved or 'none'} as in the run so "
                    f"far, got {self._reference or 'none'}"
                )
            return self._checkpointer.load(step, target), position
        except UserError:
            raise
        except Exception as error:  # what orbax raises for a damaged folder depends on the file
            raise UserError(self._unreadable(step, error)) from error

    def check_room(self, state: Any) -> None:
        """UserError unless the disk holds what the run will write.

        `state` may be abstract. While a checkpoint is written, those that it replaces are there.
        """
        slots = self._keep + 1 + bool(self._keep_best)
        missing = max(slots - len(self._checkpoints()), 1)
        check_room(self.folder.parent, missing * state_bytes(state))

    def close(self) -> None:
        """Wait for what is still being written or deleted. Raises as `wait`."""
        self.wait()
        self._checkpointer.close()

    def _checkpoints(self) -> list:
        return list(self._checkpointer.checkpoints)

    def _score(self, metrics: Mapping[str, float] | None) -> float:
        """What BestN sorts by; no number is worse than any."""
        value = (metrics or {}).get(self._keep_best, math.nan)
        return -math.inf if math.isnan(value) else value

    def _failed(self, error: Exception) -> UserError:
        step, self._saving = self._saving, None
        whole = "none is whole" if self._whole is None else f"the newest whole one is {self._whole}"
        return UserError(f"{self.folder}/{step}: could not be written ({_reason(error)}); {whole}")

    def _unreadable(self, step: int, error: Exception) -> str:
        older = [saved.step for saved in self._checkpoints() if saved.step < step]
        way = f"; delete it to go on from step {older[-1]}" if older else ""
        return f"{self.folder}/{step}: does not fit this run or is damaged ({_reason(error)}){way}"


def check_writable(run_dir: str | Path) -> None:
    """Make the folder and a file in it. Raises UserError if that fails, before the run starts."""
    folder = Path(run_dir)
    probe = folder / f".write_test_{socket.gethostname()}_{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        raise UserError(
            f"{folder}: expected a writable run folder, got {error.strerror or error}"
        ) from None


def check_room(run_dir: str | Path, needed: int) -> None:
    """UserError unless `needed` bytes are free where `run_dir` lies; it may not exist yet."""
    folder = Path(run_dir).absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise UserError(
            f"{run_dir}: expected {needed / 1e9:.1f} GB of free disk for checkpoints, "
            f"got {free / 1e9:.1f} GB"
        )


def state_bytes(state: Any) -> int:
    """Bytes of all arrays of a state, abstract or not, each counted once."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))


def _reason(error: BaseException) -> str:
    """The first cause of an orbax error in one line: what lies above it names handlers."""
    while cause := error.__cause__ or error.__context__:
        error = cause
    text = " ".join(str(error).split()).partition(" [tensorstore_spec")[0]
    return text[:300] or type(error).__name__
