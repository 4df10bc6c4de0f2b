"""Hugging Face folder -> Orbax folder, a faster way back in with the same weights.

    python convert/hf_to_orbax.py llava-v1.6-vicuna-7b-hf llava-7b-orbax
    python convert/hf_to_orbax.py llava-v1.6-vicuna-7b llava-7b-orbax --dtype bfloat16

Reads every layout of LLaVA-NeXT weights, the original liuhaotian one included. All weights lie on
the default device in between; on a machine whose accelerator is too small put JAX_PLATFORMS=cpu in
front. Faulty input ends with one line on stderr and exit code 2.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tiger_jax.errors import UserError
from tiger_jax.weights import export, load, orbax_io, original_config


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, help="Hugging Face folder to read")
    parser.add_argument("out", type=Path, help="Orbax folder to make")
    parser.add_argument(
        "--dtype",
        choices=("keep", "float32", "float16", "bfloat16"),
        default="keep",
        help="store every weight in this dtype (default: as it is, the only lossless choice)",
    )
    parser.add_argument(
        "--vision-tower",
        type=Path,
        help="CLIPVisionModel file or folder, for original-format weights without their tower",
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    try:
        config = original_config.read_config(args.source)
        dtype = None if args.dtype == "keep" else args.dtype
        params = load.load_params(args.source, config, dtype=dtype, vision_tower=args.vision_tower)
        export.write_companions(args.source, args.out)
        orbax_io.save_params(params, args.out)
    except UserError as error:
        print(f"hf_to_orbax: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
