"""Look into a public data set: counts, fields, faults, first records.

    python -m tiger_jax.data.inspect textvqa DOWNLOADS/textvqa --split train
    python -m tiger_jax.data.inspect docvqa lmms-lab/DocVQA --split val --limit 500
    python -m tiger_jax.data.inspect llava llava_v1_5_mix665k.json --no-pictures --json mix.json
    python -m tiger_jax.data.inspect llava llava_instruct_150k.json --option images=coco/train2017

Every picture is opened, because that is how damaged ones are found; --no-pictures reads the records
alone. Faults are counted and the first of each kind named: they do not change the exit code.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tiger_jax.data.public.record import PublicRecord
from tiger_jax.data.public.registry import READERS, open_dataset
from tiger_jax.data.public.survey import NAMED_FAULTS, Survey, plain_record, survey
from tiger_jax.errors import UserError, exit_code

_WIDTH = 160
"""Characters of a value that are shown."""
_WORDS = {"true": True, "false": False}


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; `--help` shows examples."""
    about, examples, notes = __doc__.strip().split("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m tiger_jax.data.inspect", description=about,
        epilog=f"examples:\n{examples}\n\n{notes}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("dataset", metavar="DATASET", help=", ".join(READERS))
    parser.add_argument("path", metavar="PATH",
                        help="its files, as downloaded or in the Hugging Face layout")  # fmt: skip
    parser.add_argument("--split", help="default: the one that is usually evaluated")
    parser.add_argument("--limit", type=_count, metavar="N", help="read only the first N")
    parser.add_argument("--first", type=_count, default=3, metavar="N",
                        help="records to show (default 3)")  # fmt: skip
    parser.add_argument("--no-pictures", action="store_true", help="open no pictures")
    parser.add_argument("--compat", choices=("lmms",),
                        help="decode pictures as lmms-eval does: no EXIF, no white below "
                             "transparency")  # fmt: skip
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE",
                        help="an option of the reader, such as turns=all for llava")  # fmt: skip
    parser.add_argument("--json", metavar="FILE", help="write everything that was counted")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point: 0 fine (also with faults), 2 bad input, 130 interrupted."""
    args = parse_arguments(argv)
    return exit_code(lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    options = dict(map(_option, args.option))
    if args.json:
        _check_place(Path(args.json))
    dataset = open_dataset(args.dataset, args.path, args.split, **options)
    found = survey(
        dataset, args.limit, args.first, not args.no_pictures, args.compat, _progress()
    )  # fmt: skip
    head = {"dataset": args.dataset, "split": dataset.split, "path": args.path}
    for line in report(head, found):
        print(_printable(line))
    if args.json:
        _write(Path(args.json), head | found.as_json())
    return 0


def report(head: dict[str, str], found: Survey) -> Iterator[str]:
    """The lines that are printed."""
    yield f"{head['dataset']}, split {head['split']}: {head['path']}"
    yield ""
    yield f"records    {found.records:,}"
    yield f"  pictures   {found.with_pictures:,} records with {found.pictures:,} pictures"
    yield f"  videos     {found.with_video:,}"
    yield f"  text only  {found.text_only:,}"
    yield f"  answers hidden in {found.hidden_answers:,}"
    yield ""
    yield from _faults(found)
    yield ""
    width = max(map(len, found.fields), default=0)
    yield "fields (records, of these empty)"
    for name, count in sorted(found.fields.items()):
        yield f"  {name:<{width}}  {count.seen:>9,}  {count.empty:>9,}"
    for record in found.first:
        yield ""
        yield from _shown(record)


def _faults(found: Survey) -> Iterator[str]:
    unopened = "" if found.opened else " (no picture was opened)"
    yield f"faults     {found.faults.total():,}{unopened}"
    for kind, count in found.faults.most_common():
        yield f"  {kind}: {count:,}"
        for fault in found.named[kind]:
            yield f"    {fault.uid}: {_cut(fault.message)}"
        if count > NAMED_FAULTS:
            yield f"    ... and {count - NAMED_FAULTS:,} more"


def _shown(record: PublicRecord) -> Iterator[str]:
    values = plain_record(record)
    meta = values.pop("meta")
    yield values.pop("uid")
    values = {name: value for name, value in values.items() if name not in ("source", "split")}
    values |= {f"meta.{name}": value for name, value in meta.items()}
    for name, value in values.items():
        if value not in (None, "", (), []):
            yield f"  {name:<13} {_cut(value)}"


def _cut(value: Any) -> str:
    text = " ".join((value if isinstance(value, str) else repr(value)).split())
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 3]}..."


def _printable(line: str) -> str:
    """What the terminal's encoding has no sign for, as an escape."""
    encoding = sys.stdout.encoding or "utf-8"
    return line.encode(encoding, "backslashreplace").decode(encoding)


def _progress() -> Callable[[int], None]:
    """Shows the count while a person watches: a large set takes minutes."""
    if not sys.stderr.isatty():
        return lambda count: None

    def show(count: int) -> None:
        if count % 500 == 0:
            print(f"\r{count:,} records", end="\r", file=sys.stderr, flush=True)

    return show


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise UserError(f"--option: expected NAME=VALUE, got {text!r}")
    return name, _WORDS.get(value, value)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number from 0, got {text!r}")
    return int(text)


def _check_place(path: Path) -> None:
    """UserError where no file can be written, told before minutes of reading."""
    if os.path.isdir(path) or not os.path.isdir(path.parent):
        found = "a folder" if os.path.isdir(path) else f"no folder {path.parent}"
        raise UserError(f"--json: expected a place for a file, got {path}: {found}")


def _write(path: Path, content: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(content, indent=1, default=str) + "\n")
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from None


if __name__ == "__main__":
    sys.exit(main())
