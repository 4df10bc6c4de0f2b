"""Compares this package's logits with those of transformers + torch on the same folder.

    python convert/check_parity.py llava-v1.6-vicuna-7b-hf --image photo.jpg chart.png
    python convert/check_parity.py llava-v1.6-vicuna-7b-hf --dtype bfloat16 --tolerance 2.5e-2

Each side prepares the prompt with its own processor, runs its own model in the given dtype, and the
logits of all positions are compared, those of text and of image tokens apart: a fault in the tower
or in the packing of tiles can hide behind text positions that look right. Without --image a drawn
picture is used. Needs torch (the `test` extra) and host memory for one model at a time.

Exit code 0: equal within the tolerance; 1: not; 2: faulty input, one line on stderr.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from tiger_jax.data.batches import TEXT, PromptInputs, batch_prompts, make_prompt
from tiger_jax.data.images import load_image
from tiger_jax.data.processor import Processor
from tiger_jax.data.prompts import build_prompt
from tiger_jax.decoding.drafters.protocol import prompt_arrays
from tiger_jax.errors import UserError
from tiger_jax.models.config import LlavaNextConfig, ModelConfig
from tiger_jax.models.config_reader import read_config
from tiger_jax.models.frames import Frames, Tiles
from tiger_jax.models.interface import build_model
from tiger_jax.weights.load import load_params


class SideResult(NamedTuple):
    """One side's view of the prompt."""

    tokens: np.ndarray  # int [S], image placeholders expanded
    tiles: np.ndarray  # float32 [n, H, W, 3], or patches [N, V]
    logits: np.ndarray  # float32 [S, V]


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="Hugging Face folder with its processor files")
    parser.add_argument(
        "--image", type=Path, nargs="+", default=[], help="pictures of the prompt, in order"
    )
    parser.add_argument("--prompt", default="Describe the image.", help="the user's question")
    parser.add_argument(
        "--tolerance",
        type=float,
        default=5e-6,
        help="largest relative L2 difference of the logits (default 5e-6, for float32)",
    )
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), default="float32")
    return parser.parse_args(argv)


def drawn_picture(side: int) -> Image.Image:
    """A picture without symmetries, so that exchanged rows, columns, tiles or colours show."""
    height, width = int(1.3 * side), int(1.9 * side)
    y, x = np.mgrid[:height, :width]
    red, green = 255 * x / width, 255 * y / height
    blue = 127 + 127 * np.sin(x / 9.0 + (y / 31.0) ** 2)
    return Image.fromarray(np.stack([red, green, blue], axis=-1).astype(np.uint8))


def run_torch(folder: Path, inputs: dict, dtype: str) -> SideResult:
    """transformers' model on the CPU, on what its own processor made of the prompt."""
    import torch
    import transformers

    pixels = _reference_pixels(inputs)
    model, info = transformers.AutoModelForImageTextToText.from_pretrained(
        folder, dtype=getattr(torch, dtype), output_loading_info=True
    )
    if faults := {kind: sorted(names) for kind, names in info.items() if names}:
        raise UserError(f"{folder}: transformers reports {faults}")
    inputs["pixel_values"] = inputs["pixel_values"].to(model.dtype)
    with torch.no_grad():
        logits = model.eval()(**inputs).logits
    return SideResult(inputs["input_ids"][0].numpy(), pixels, logits[0].float().numpy())


def _reference_pixels(inputs: dict) -> np.ndarray:
    """Tiles [n, H, W, 3] without those that only fill up a smaller picture's row, or patches."""
    pixels = inputs["pixel_values"]
    if pixels.ndim == 2:
        return pixels.numpy()
    tiles = pixels.flatten(0, 1).numpy().transpose(0, 2, 3, 1)
    return tiles[tiles.any(axis=(1, 2, 3))]


def run_jax(folder: Path, config: ModelConfig, prompt: PromptInputs, dtype: str) -> SideResult:
    """This package's model, at the prompt's exact length."""
    model = build_model(config, jnp.dtype(dtype))
    params = load_params(folder, config, dtype=dtype)
    length = len(prompt.tokens)
    batch = batch_prompts([prompt], config, seq_bucket=length, tile_bucket=len(prompt.tiles))

    @jax.jit
    def logits(params, arrays):
        table = model.encode_images(params, arrays.tiles)
        embeds = model.embed(params, arrays.tokens, arrays.image_rows, table)
        cache = model.init_cache(1, length)
        hidden, *_ = model.prefill(params, embeds, cache, positions=arrays.positions)
        return model.logits(params, hidden)[0]

    with jax.default_matmul_precision("highest"):
        scores = logits(params, prompt_arrays(batch, model.dtype))
    return SideResult(prompt.tokens, _pixels(prompt.tiles), np.asarray(scores, np.float32))


def _pixels(tiles: Tiles) -> np.ndarray:
    """Tiles as the reference has them: no padding of frames."""
    if not isinstance(tiles, Frames):
        return tiles
    return np.concatenate([tiles.patches[n, :count] for n, count in enumerate(tiles.counts)])


def compare(ours: SideResult, reference: SideResult, is_image: np.ndarray) -> list[float]:
    """Prints the table; returns the relative L2 difference of each kind of position."""
    print(f"{'positions':<12}{'count':>7}{'max |diff|':>13}{'rel. L2':>11}{'same argmax':>13}")
    relative = []
    for kind, chosen in (("text", ~is_image), ("image", is_image), ("all", np.ones_like(is_image))):
        got, wanted = ours.logits[chosen], reference.logits[chosen]
        difference = got - wanted
        relative.append(float(np.linalg.norm(difference) / np.linalg.norm(wanted)))
        same = float((got.argmax(-1) == wanted.argmax(-1)).mean())
        print(
            f"{kind:<12}{len(got):>7}{np.abs(difference).max():>13.2e}"
            f"{relative[-1]:>11.2e}{same:>12.1%}"
        )
    pixels = np.abs(ours.tiles - reference.tiles).max()
    print(f"{'tile pixels':<12}{len(ours.tiles):>7}{pixels:>13.2e}")
    return relative


def check(args: argparse.Namespace) -> bool:
    """True if both sides agree. Raises UserError for faulty input."""
    config = read_config(args.folder)
    processor = Processor.from_folder(args.folder, config)
    images = [load_image(path) for path in args.image] or [drawn_picture(_side(config))]
    text = build_prompt(processor, args.prompt, len(images))
    prompt = make_prompt(processor, config, text, images)
    from tiger_jax.export.torch_tiger import torch_inputs  # needs torch, and says so

    inputs = torch_inputs(args.folder, config, text, images)
    reference = run_torch(args.folder, inputs, args.dtype)
    if not np.array_equal(prompt.tokens, reference.tokens):
        print(f"token ids differ: {prompt.tokens.tolist()} and {reference.tokens.tolist()}")
        return False
    shape = _pixels(prompt.tiles).shape
    if shape != reference.tiles.shape:
        print(f"tiles differ in shape: {shape} and {reference.tiles.shape}")
        return False
    ours = run_jax(args.folder, config, prompt, args.dtype)
    worst = max(compare(ours, reference, prompt.image_rows != TEXT))
    agrees = worst <= args.tolerance  # False for NaN too
    print(f"{'equal' if agrees else 'NOT equal'} within {args.tolerance:g} (rel. L2 {worst:.2e})")
    return agrees


def _side(config: ModelConfig) -> int:
    """Of a picture that needs several tiles, or several rows of tokens."""
    if isinstance(config, LlavaNextConfig):
        return config.vision.image_size
    return 8 * config.vision.token_side


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    try:
        return 0 if check(args) else 1
    except UserError as error:
        print(f"check_parity: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
