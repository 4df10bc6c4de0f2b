"""`--config FILE --config.FIELD=VALUE ...` -> a locked ConfigDict, or one clear line."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_collections
from absl import flags
from ml_collections import config_flags

from tiger_jax.errors import UserError

HELP = ("-h", "--help")


def wants_help(argv: Sequence[str]) -> bool:
    """Whether help was asked for."""
    return any(argument in HELP for argument in argv)


def help_text(argv: Sequence[str], doc: str) -> str:
    """`doc`, and the fields of the config file if the line names one."""
    rest = [argument for argument in argv if argument not in HELP]
    if not rest:
        return doc.strip()
    fields = parse(rest).to_dict()
    lines = [f"  --config.{name}={value!r}" for name, value in _flat(fields)]
    return "\n".join([doc.strip(), "", "fields:", *lines])


def _flat(fields: Mapping[str, Any], group: str = "") -> Iterator[tuple[str, Any]]:
    """("align.objective", "grpo"): fields of groups by their whole names."""
    for name, value in fields.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{group}{name}.")
        else:
            yield f"{group}{name}", value


def parse(argv: Sequence[str]) -> ml_collections.ConfigDict:
    """The config of a command line.

    Raises:
        UserError: no config file, one that cannot be read, an unknown field, a value that does not
            fit its field, or an argument that is none of these.
    """
    argv = _with_pair(argv)
    line = ["tiger_jax", *argv]
    values = flags.FlagValues()
    holder = config_flags.DEFINE_config_file(
        "config", None, "", flag_values=values, lock_config=True, sys_argv=line
    )
    _, path, _ = _config_place(argv)
    try:
        rest = values(line)
    except (AttributeError, KeyError) as error:
        raise UserError(f"{path}: unknown field {_one_line(error)}") from error
    except Exception as error:  # the file is a program, and the flag library raises many kinds
        if ":" in path and "get_config() takes 0 positional" in str(error):
            raise UserError(f"{path}: expected the file alone, it is the same for all") from error
        raise UserError(f"{path}: {_one_line(error)}") from error
    if rest[1:]:
        raise UserError(f"unexpected argument {rest[1]!r}")
    return holder.value


def check_at_least(config: ml_collections.ConfigDict, low: int, *names: str) -> None:
    """UserError for the first field below `low`."""
    for name in names:
        if config[name] < low:
            raise UserError(f"{name}: expected at least {low}, got {config[name]}")


def check_subset(config: ml_collections.ConfigDict, name: str, allowed: Collection[str]) -> None:
    """UserError unless the field is a non-empty selection of `allowed`."""
    wrong = [value for value in config[name] if value not in allowed]
    if wrong or not config[name]:
        got = repr(wrong[0]) if wrong else "none"
        raise UserError(f"{name}: expected some of {', '.join(allowed)}, got {got}")


def _with_pair(argv: Sequence[str]) -> list[str]:
    """`--config FILE --config.pair=NAME` as `--config FILE:NAME`: a pair decides about most other
    fields, so the file has to know it first."""
    rest, name = list(argv), None
    for position in reversed([i for i, word in enumerate(argv) if _is(word, "config.pair")]):
        value, width = _value(argv, position)
        del rest[position : position + width]
        name = name or value
    place, path, width = _config_place(rest)
    if name is None:
        return rest
    if ":" in path:
        raise UserError(f"--config.pair: expected a file without a pair, got {path}")
    return [*rest[:place], f"--config={path}:{name}", *rest[place + width :]]


def _is(word: str, name: str) -> bool:
    return word.partition("=")[0] in (f"--{name}", f"-{name}")


def _value(argv: Sequence[str], position: int) -> tuple[str, int]:
    """(value of the flag at a position, words that both take)."""
    _, equals, value = argv[position].partition("=")
    return (value, 1) if equals else ("".join(argv[position + 1 : position + 2]), 2)


def _config_place(argv: Sequence[str]) -> tuple[int, str, int]:
    """(position, path, words) of the last --config. Raises UserError."""
    places = [i for i, word in enumerate(argv) if _is(word, "config")]
    path, width = _value(argv, places[-1]) if places else ("", 0)
    if not path:
        raise UserError("--config: expected a Python file such as configs/sft.py, got none")
    if not Path(path.partition(":")[0]).is_file():
        raise UserError(f"{path}: expected a config file, found none there")
    return places[-1], path, width


def _one_line(error: Exception) -> str:
    text = str(error).strip('"').replace("\\n", " ").replace("\\'", "'")
    if "Traceback (most recent call last)" in text:  # of the config file: its last line says what
        text = text.strip().splitlines()[-1].removeprefix("ValueError: ")
    return " ".join(text.split())[:300] or type(error).__name__
