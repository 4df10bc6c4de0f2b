"""Checkpoints of a training run: state and data position together, written whole or not at all.

With weights/orbax_io.py this is the only file that imports orbax. A step's folder gets its final
name only after everything is in it, so a run that was killed while it saved goes on from the one
before. Nothing is stored between the micro-batches of a step: a run that dies inside a step
repeats it.
"""

import json
import logging
import os
from pathlib import Path
from typing import Any

from absl import logging as absl_logging
from orbax.checkpoint import v1 as ocp

from tiger_jax.errors import UserError

CHECKPOINTS = "checkpoints"


class RunCheckpoints:
    """The numbered checkpoints of one run folder."""

    def __init__(self, run_dir: str | Path, *, keep: int = 2):
        """Open `run_dir`/checkpoints, keeping the newest `keep`. Raises UserError: not writable."""
        self.folder = Path(run_dir).absolute() / CHECKPOINTS
        check_writable(run_dir)
        absl_logging.set_verbosity(absl_logging.WARNING)
        logging.getLogger("absl").setLevel(logging.WARNING)
        self._checkpointer = ocp.training.Checkpointer(
            self.folder,
            preservation_policy=ocp.training.preservation_policies.LatestN(keep),
            cleanup_tmp_directories=True,
        )

    def latest_step(self) -> int | None:
        """The newest complete step, None in a fresh folder."""
        latest = self._checkpointer.latest
        return None if latest is None else latest.step

    def save(self, step: int, state: Any, data_state: dict) -> None:
        """Write the state after `step` updates and where the data stands; returns when it is safe.

        `data_state` is the JSON that the input iterator's get_state gave after the last batch of
        that step. A step that is there already is left alone.
        """
        if self.latest_step() == step:
            return
        self._checkpointer.save(
            step, state, force=True, custom_metadata={"data": json.dumps(data_state)}
        )

    def restore(self, target: Any, step: int | None = None) -> tuple[Any, dict]:
        """The state and data position of `step` (default: the newest).

        `target` has the structure of the state with jax.ShapeDtypeStruct leaves; each array goes
        straight into its target sharding, whatever mesh it was saved on.

        Raises:
            UserError: no such step, or a state of another structure or shape.
        """
        step = self.latest_step() if step is None else step
        if step is None:
            raise UserError(f"{self.folder}: expected a checkpoint, found none")
        try:
            metadata = self._checkpointer.metadata(step)
            state = self._checkpointer.load(step, target)
        except (ValueError, KeyError, OSError) as error:
            reason = " ".join(str(error).split())[:300]
            raise UserError(f"{self.folder}/{step}: does not fit this run ({reason})") from None
        return state, json.loads(metadata.custom_metadata["data"])

    def close(self) -> None:
        """Wait for what is still being written or deleted."""
        self._checkpointer.close()


def check_writable(run_dir: str | Path) -> None:
    """Make the folder and a file in it. Raises UserError if that fails, before the run starts."""
    folder = Path(run_dir)
    probe = folder / f".write_test_{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        raise UserError(
            f"{folder}: expected a writable run folder, got {error.strerror or error}"
        ) from None
