"""A pair of random weights that is large enough to be bound by memory, written as two folders.

Its towers, prompts and special tokens are those of the embedded pair; the text models and the
vocabulary are larger. A random drafter is never right, so such a pair measures costs, no speedup.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from tiger_jax.data import scene_folder
from tiger_jax.models.config_reader import read_config
from tiger_jax.models.interface import Params, build_model
from tiger_jax.weights.export import save_hf_folder

ROLES = ("verifier", "drafter")
SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
)  # fmt: skip
"""Fields of a text model that a config chooses."""


def write_pair(folder: Path, sizes: Mapping[str, Mapping[str, int]], seed: int = 0) -> list[Path]:
    """Write verifier and drafter below `folder`, where they are not there already.

    Args:
        sizes: role -> the SIZES of its text model.
    """
    return [write_model(folder / role, role, sizes[role], seed + i) for i, role in enumerate(ROLES)]


def count_params(folder: Path) -> int:
    """Parameters of a folder's model, tower included."""
    shapes = build_model(read_config(folder)).abstract_params()
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


def write_model(folder: Path, role: str, sizes: Mapping[str, int], seed: int) -> Path:
    """One of the two, where it is not there already; `sizes` are the SIZES, perhaps with
    max_position_embeddings."""
    if any(folder.glob("*.safetensors")):
        return folder
    source = scene_folder.write_tiny_folder(folder / "source", role)
    _resize_config(source / "config.json", sizes)
    _fill_vocabulary(source / "tokenizer.json", sizes["vocab_size"])
    config = read_config(source)
    params = _draw(build_model(config).abstract_params(), np.random.default_rng(seed))
    save_hf_folder(_never_special(params), source, folder)
    return folder


def _resize_config(path: Path, sizes: Mapping[str, int]) -> None:
    config = json.loads(path.read_text(encoding="utf-8"))
    heads = sizes["num_attention_heads"]
    config["text_config"] |= dict(sizes) | {
        "num_key_value_heads": heads,
        "head_dim": sizes["hidden_size"] // heads,
    }
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _fill_vocabulary(path: Path, rows: int) -> None:
    """Give every row a text: ids without one are masked here and drawn by transformers."""
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    vocab = tokenizer["model"]["vocab"]
    vocab.update({f"filler{i}": i for i in range(len(vocab), rows)})
    path.write_text(json.dumps(tokenizer, ensure_ascii=False) + "\n", encoding="utf-8")


def _draw(shapes: Params, rng: np.random.Generator) -> Params:
    """Matrices normal / sqrt(fan in), norms 1, biases 0; by numpy, which has nothing to compile."""

    def draw(path: tuple, shape: jax.ShapeDtypeStruct) -> np.ndarray:
        name = path[-1].key
        if name in ("scale", "bias"):
            return np.full(shape.shape, name == "scale", jnp.bfloat16)
        fan_in = shape.shape[0] if name == "kernel" else 1
        noise = rng.standard_normal(shape.shape, np.float32)
        return (noise * fan_in**-0.5).astype(jnp.bfloat16)

    return jax.tree_util.tree_map_with_path(draw, shapes)


def _never_special(params: Params) -> Params:
    """Score 0 for the special tokens, far below the best of a large vocabulary.

    So no answer ends early, and none holds <image> or padding, which only we refuse to draw.
    """
    text = params["language_model"]
    special = len(scene_folder.SPECIAL_TOKENS)
    head = {"kernel": text["lm_head"]["kernel"].copy()}
    head["kernel"][:, :special] = 0
    return params | {"language_model": text | {"lm_head": head}}
