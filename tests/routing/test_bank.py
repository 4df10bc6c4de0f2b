"""The bank and the stream's embeddings, on tables small enough to read."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from tests.pictured import device_stream, pictured_prompt
from tiger_jax.data.visual_stream import batch_streams
from tiger_jax.models.interface import VisionLanguageModel
from tiger_jax.routing.bank import BankLayout, Stream, embed_stream, gather_rows, pool_regions
from tiger_jax.testing.tiny import tiny_config

TABLE = jnp.asarray([[1.0, 0.0], [3.0, 0.0], [0.0, 8.0], [7.0, 7.0]])
LAYOUT = BankLayout(
    rows=jnp.asarray([[0, 1, 2, -1], [3, -1, -1, -1]]),
    sources=jnp.asarray([[2, 3, 4, 0], [1, 0, 0, 0]]),
    positions=jnp.asarray([[2, 3, 4, 0], [1, 0, 0, 0]]),
    images=jnp.asarray([[0, 0, 1, -1], [0, -1, -1, -1]]),
    regions=jnp.asarray([[0, 0, 1, -1], [1, -1, -1, -1]]),
    region_sizes=jnp.asarray([[2.0, 1.0], [0.0, 1.0]]),
)


@dataclasses.dataclass(frozen=True)
class Words(VisionLanguageModel):
    """Token t is (100 t, 100 t)."""

    config: object = None
    module: object = None

    @property
    def row_width(self):
        return 2

    def embed(self, params, tokens, image_rows=None, table=None):
        return jnp.stack([tokens, tokens], axis=-1) * 100.0


def test_rows_of_the_table():
    tokens = gather_rows(TABLE, LAYOUT)
    np.testing.assert_array_equal(tokens[0], [[1, 0], [3, 0], [0, 8], [0, 0]])
    np.testing.assert_array_equal(tokens[1], [[7, 7], [0, 0], [0, 0], [0, 0]])


def test_regions_are_means():
    """Not sums, not means over the bank; a region without members is zero, not NaN."""
    pooled = pool_regions(gather_rows(TABLE, LAYOUT), LAYOUT)
    np.testing.assert_allclose(pooled, [[[2, 0], [0, 8]], [[0, 0], [7, 7]]])


def stream_of(visual):
    tokens = jnp.arange(1, 7).reshape(2, 3)
    return Stream(
        tokens=tokens, lengths=jnp.asarray([3, 2]), sources=tokens, positions=tokens,
        visual=jnp.asarray(visual), bank=LAYOUT,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("visual", "want"),
    [
        ([[-1, -3, -2], [-3, -1, -1]], [[100, 0, 2], [7, 500, 600]]),
        ([[-1, -1, -1], [-1, -1, -1]], [[100, 200, 300], [400, 500, 600]]),
        ([[2, -1, 0], [-1, 0, -1]], [[0, 200, 1], [400, 7, 600]]),
    ],
    ids=["visual", "text_only", "full"],
)
def test_embeddings_of_the_stream(visual, want):
    """First components; token 0 of the full form is bank token 2, (0, 8)."""
    x = embed_stream(Words(), {}, stream_of(visual), gather_rows(TABLE, LAYOUT))
    np.testing.assert_allclose(x[..., 0], want)
    second = x[0, 1, 1] if visual[0][1] == -3 else x[0, 0, 1]
    assert float(second) == {-3: 8, -1: 100, 2: 8}[visual[0][1 if visual[0][1] == -3 else 0]]


@pytest.mark.parametrize("pooled", [1, 4])
def test_host_layout_fits(pooled):
    """What the host writes: the pooled tokens of a real picture are the means of its tokens."""
    config = tiny_config()
    prompts = [pictured_prompt(config, (0, 1)), pictured_prompt(config, ())]
    batch = batch_streams(prompts, config, pooled, "visual")
    stream = device_stream(batch)
    table = jnp.asarray(np.random.default_rng(0).normal(size=(100, 2)), jnp.float32)
    tokens = gather_rows(table, stream.bank)
    x = np.asarray(embed_stream(Words(), {}, stream, tokens))
    for region in range(2 * pooled):
        place = batch.visual[0].tolist().index(-2 - region)
        members = np.asarray(tokens[0])[batch.bank_regions[0] == region]
        assert len(members) == batch.region_sizes[0, region] > 0
        np.testing.assert_allclose(x[0, place], members.mean(axis=0), atol=1e-5)
    text = batch.visual[1] == -1
    np.testing.assert_array_equal(x[1][text][:, 0], 100.0 * batch.tokens[1][text])
