"""Orbax folder -> Hugging Face folder that `transformers` opens unchanged.

    python convert/orbax_to_hf.py llava-7b-orbax llava-7b-hf
    python convert/orbax_to_hf.py llava-7b-orbax llava-7b-original --layout original

Every weight keeps its stored dtype, so Hugging Face -> Orbax -> Hugging Face gives the same bytes;
a drafter's router comes along. Weights stream through the host one by one and touch no accelerator.
Faulty input ends with one line on stderr and exit code 2.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tiger_jax.errors import UserError
from tiger_jax.weights import export, load, original_config


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, help="Orbax folder to read (a Hugging Face one works)")
    parser.add_argument("out", type=Path, help="Hugging Face folder to make")
    parser.add_argument(
        "--layout",
        choices=("A", "C", "D", "E", "original"),
        default="A",
        help="spelling of the weights' names: A as on the hub (default; Qwen3-VL has no other), "
        "original as liuhaotian's",
    )
    parser.add_argument(
        "--max-shard-gb", type=float, default=5.0, help="size limit of one file (default: 5)"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    try:
        if not args.max_shard_gb > 0:
            raise UserError(f"--max-shard-gb: expected more than 0, got {args.max_shard_gb}")
        stored = load.open_params(args.source, original_config.read_config(args.source))
        export.write_hf_folder(
            stored.leaves, stored.read, args.source, args.out, layout=args.layout,
            max_shard_bytes=int(args.max_shard_gb * 1e9),
        )  # fmt: skip
        export.copy_router(args.source, args.out)
    except UserError as error:
        print(f"orbax_to_hf: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
