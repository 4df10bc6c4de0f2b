"""Measure a pair.

    python -m tiger_jax.evaluate --config configs/eval/scenes.py
    python -m tiger_jax.evaluate --config configs/eval/scenes.py --config.scenes=50 \\
        --config.verifier=DIR --config.drafter=DIR --config.report=scenes.json
    python -m tiger_jax.evaluate --config configs/eval/peer_transformers.py

The config file says what is measured; each of its fields can be set on the command line as
--config.FIELD=VALUE. Tables go to stdout, progress to stderr, everything to --config.report=FILE.
"""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from tiger_jax import command_line
from tiger_jax.errors import UserError
from tiger_jax.evaluation import tables

TASKS = ("scenes", "peer_transformers")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point: 0 fine, 2 bad input, 130 interrupted."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        if command_line.wants_help(argv):
            print(command_line.help_text(argv, __doc__))
            return 0
        return _run(command_line.parse(argv))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output went away (`| head`): leave quietly, also at Python's last flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(config: Any) -> int:
    task = config.get("task")
    if task not in TASKS:
        raise UserError(f"task: expected one of {', '.join(TASKS)}, got {task!r}")
    tables.check_report(config.report)
    from tiger_jax import runtime

    runtime.configure()
    report, text = _task(task)(config)
    print(text)
    tables.write_report(config.report, report)
    return 0


def _task(name: str) -> Callable[[Any], tuple[dict, str]]:
    """The function behind a task; imported here so that only its own needs are asked for."""
    if name == "scenes":
        from tiger_jax.evaluation import scene_run

        return scene_run.evaluate
    from tiger_jax.evaluation import peer_run

    return peer_run.evaluate


if __name__ == "__main__":
    sys.exit(main())
