"""The one exception that a person's input can cause."""


class UserError(ValueError):
    """Bad input: one clear line that names the thing, what was expected and what came.

    Entry points print the line on stderr and exit with code 2; libraries may catch it as
    ValueError.
    """
