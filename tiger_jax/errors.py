"""The one exception that a person's input can cause, and how entry points end."""

import os
import sys
from collections.abc import Callable


class UserError(ValueError):
    """Bad input: one clear line that names the thing, what was expected and what came.

    Entry points print the line on stderr and exit with code 2; libraries may catch it as
    ValueError.
    """


def exit_code(run: Callable[[], int], interrupted: str = "interrupted") -> int:
    """Runs an entry point: its own exit code, 2 after the line of a UserError, 130 after ctrl-C.

    Args:
        interrupted: the line of ctrl-C.
    """
    try:
        return run()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output went away (`| head`): leave quietly, also at Python's last flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
