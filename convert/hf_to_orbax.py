"""Hugging Face folder -> Orbax folder, a faster way back in with the same weights.

    python convert/hf_to_orbax.py llava-v1.6-vicuna-7b-hf llava-7b-orbax
    python convert/hf_to_orbax.py llava-v1.6-vicuna-7b llava-7b-orbax --dtype bfloat16

Reads Qwen3-VL, and every layout of LLaVA-NeXT weights, the original liuhaotian one included; a
drafter's router comes along. Weights stream through the host, a quarter of the largest source file
at a time, and touch no accelerator. Faulty input ends with one line on stderr and exit code 2.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tiger_jax.errors import UserError
from tiger_jax.weights import export, load, orbax_io, original_config, safetensors_io

SMALLEST_GROUP = 16 * 10**6
"""Bytes; what is smaller than that is written in one go."""


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


def group_bytes(source: Path) -> int:
    """Bytes of weights that are in memory at a time: small beside two of the source's files."""
    if orbax_io.is_orbax_folder(source):
        return orbax_io.GROUP_BYTES
    largest = max(file.stat().st_size for file in safetensors_io.weight_files(source))
    return min(max(largest // 4, SMALLEST_GROUP), orbax_io.GROUP_BYTES)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    try:
        config = original_config.read_config(args.source)
        dtype = None if args.dtype == "keep" else args.dtype
        stored = load.open_params(args.source, config, dtype=dtype, vision_tower=args.vision_tower)
        export.write_companions(args.source, args.out)
        export.copy_router(args.source, args.out)
        tensors = ((path, stored.read(path)) for path in stored.leaves)
        orbax_io.save_tensors(tensors, args.out, group_bytes=group_bytes(args.source))
    except UserError as error:
        print(f"hf_to_orbax: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
