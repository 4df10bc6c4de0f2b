"""Prompts with random pictures for tests of drafters, without a tokenizer."""

import jax.numpy as jnp
import numpy as np

from tiger_jax.data.batches import PromptInputs, batch_prompts
from tiger_jax.data.visual_stream import batch_streams
from tiger_jax.decoding.drafters import protocol
from tiger_jax.models.image_geometry import NEWLINE, image_token_places, image_token_rows
from tiger_jax.routing.bank import Stream, make_stream

SIZES = ((28, 28), (28, 56), (56, 28), (56, 56))


def pictured_prompt(config, pictures, text=(3, 4, 5, 6, 7), seed=0):
    """`text` with `pictures` (indices of SIZES) behind its first token."""
    rng = np.random.default_rng(seed)
    side, per_tile = config.vision.image_size, config.rows_per_tile
    geometry = [
        (image_token_rows(*SIZES[i], config), image_token_places(*SIZES[i], config))
        for i in pictures
    ]
    counts = [int(rows.max()) // per_tile + 1 for rows, _ in geometry]
    firsts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]) * per_tile
    tokens, image_rows = [text[:1]], [[-1]]
    places, image_ids = [np.full((1, 2), -1)], [[-1]]
    for image, (rows, where) in enumerate(geometry):
        tokens.append([config.image_token_id] * len(rows))
        image_rows.append(np.where(rows == NEWLINE, firsts[-1], rows + firsts[image]))
        places.append(where)
        image_ids.append([image] * len(rows))
    rest = text[1:]
    tokens.append(rest)
    image_rows.append([-1] * len(rest))
    places.append(np.full((len(rest), 2), -1))
    image_ids.append([-1] * len(rest))
    return PromptInputs(
        tokens=np.concatenate(tokens).astype(np.int32),
        image_rows=np.concatenate(image_rows).astype(np.int32),
        tiles=rng.normal(size=(sum(counts), side, side, 3)).astype(np.float32),
        places=np.concatenate(places).astype(np.float32),
        image_ids=np.concatenate(image_ids).astype(np.int32),
        positions=np.arange(sum(map(len, tokens)), dtype=np.int32),
        tile_rows=per_tile,
    )


def mixed_prompts(config, seed=0):
    """Four prompts: two pictures, none, one with a column of tiles, one of a single tile."""
    rng = np.random.default_rng(seed)
    return [
        pictured_prompt(config, pictures, rng.integers(3, 90, length).tolist(), seed + row)
        for row, (pictures, length) in enumerate((((0, 1), 9), ((), 6), ((2,), 12), ((0,), 4)))
    ]


def prompt_arrays(config, prompts, pooled_tokens=1, query="visual", tile_bucket=None, width=128):
    """What the programs read, streams included."""
    batch = batch_prompts(prompts, config, seq_bucket=width, tile_bucket=tile_bucket)
    stream = batch_streams(prompts, config, pooled_tokens, query, tile_bucket)
    return protocol.prompt_arrays(batch, jnp.float32, device_stream(stream))


def device_stream(stream) -> Stream:
    """A StreamBatch as the programs see it."""
    return make_stream({name: jnp.asarray(value) for name, value in stream._asdict().items()})
