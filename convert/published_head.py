"""A published draft head (EAGLE-1/2, EAGLE-3, ViSpec, Medusa) -> a head folder of this package.

    python convert/published_head.py EAGLE-Vicuna-13B-v1.3 eagle2-13b --verifier llava-13b-hf
    python -m tiger_jax.decode --verifier llava-13b-hf --drafter eagle2-13b

Reads safetensors files; names and shapes: tiger_jax/weights/published_heads.py. Faulty input ends
with one line on stderr and exit code 2.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tiger_jax.errors import UserError
from tiger_jax.weights.head_io import DTYPES, write_head
from tiger_jax.weights.original_config import read_config
from tiger_jax.weights.published_heads import read_published


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, help="folder of the published head")
    parser.add_argument("out", type=Path, help="folder to make")
    parser.add_argument("--verifier", type=Path, required=True, help="folder of its verifier")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="default bfloat16")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    try:
        head = read_published(args.source, read_config(args.verifier).text)
        write_head(args.out, head, args.dtype)
    except UserError as error:
        print(f"published_head: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
