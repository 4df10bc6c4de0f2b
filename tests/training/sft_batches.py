"""Synthetic batches for the tiny model: pictures of noise, questions of random tokens."""

import jax
import jax.numpy as jnp
import numpy as np

from tiger_jax.training import sft_step

PREFIX, TILES, ROWS = 9, 2, 4  # prefix tokens, tiles a picture, rows a tile


def raw_batch(seed: int, lengths: list[list[int]]) -> dict[str, np.ndarray]:
    """Arguments of pack_batch for pictures whose questions have these numbers of tokens."""
    rng = np.random.default_rng(seed)
    lengths = np.asarray(lengths, np.int32)
    pictures, questions = lengths.shape
    rows = np.full((pictures, PREFIX), -1, np.int32)
    table = TILES * pictures * ROWS
    for b in range(pictures):
        rows[b, 2:7] = [*(b * TILES * ROWS + rng.integers(0, TILES * ROWS, 4)), table]
    longest = int(lengths.max())
    sizes = rng.integers(7, PREFIX + 1, pictures).astype(np.int32)
    places = np.arange(longest)[None, None]
    return {
        "prefix_tokens": rng.integers(3, 90, (pictures, PREFIX)).astype(np.int32),
        "prefix_image_rows": rows,
        "prefix_lengths": sizes,
        "prefix_positions": np.tile(np.arange(PREFIX, dtype=np.int32), (pictures, 1)),
        "text_starts": sizes,
        "tiles": rng.normal(size=(TILES * pictures, 28, 28, 3)).astype(np.float32),
        "branch_tokens": rng.integers(3, 90, (pictures, questions, longest)).astype(np.int32),
        "loss_mask": (places >= 2) & (places < lengths[..., None]),
        "branch_lengths": lengths,
    }


def sft_batch(seed: int, lengths: list[list[int]]) -> sft_step.PackedBatch:
    """A packed batch of the tiny model, on the device."""
    return jax.tree.map(jnp.asarray, sft_step.pack_batch(**raw_batch(seed, lengths)))
