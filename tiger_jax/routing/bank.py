"""The visual bank of a prompt, and the prefix stream in which pooled tokens stand for its pictures.

B: batch, L: stream length, R: bank rows, U: regions (pooled tokens), Rt: rows of the flat visual
table, D: width, W: width of a visual row (models/interface.py), A: axes of a position.

    prompt    <s> USER: v0 v1 v2 v3 \\n What ...      positions 0 1 2 3 4 5 6 7 ...
    stream    <s> USER: g0          \\n What ...      positions 0 1 4       6 7 ...
    bank                v0 v1 v2 v3                   positions     2 3 4 5

The stream depends on no route, so its keys and values stay valid for the whole request; the bank is
what routes choose from (method: Eq. aug-visual-bank). Which token belongs where is decided on the
host (data/visual_stream.py).
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from tiger_jax.models.interface import Params, VisionLanguageModel

Anywhere = Array | np.ndarray
"""Made on the host, then placed on a mesh."""


@struct.dataclass
class BankLayout:
    """Where the visual tokens of each prompt come from."""

    rows: Int[Anywhere, "B R"]
    """Row of the batch's flat visual table; -1 is padding."""
    sources: Int[Anywhere, "B R"]
    """Which token of the full prompt it is."""
    positions: Int[Anywhere, "B R *A"]
    """Rotary position there."""
    images: Int[Anywhere, "B R"]
    """Which picture of the prompt; -1 is padding."""
    regions: Int[Anywhere, "B R"]
    """The pooled token that averages this one; -1 is padding."""
    region_sizes: Float[Anywhere, "B U"]
    """Tokens in each region."""

    def picture_ends(self, count: int) -> Int[Array, "B I"]:
        """The last prompt token of each of `count` pictures; -1 where there is none."""
        inside = self.images[:, None] == jnp.arange(count)[None, :, None]
        return jnp.where(inside, self.sources[:, None], -1).max(axis=-1)


@struct.dataclass
class Stream:
    """Prompts as a drafter reads them, padded on the right."""

    tokens: Int[Anywhere, "B L"]
    lengths: Int[Anywhere, "B"]
    sources: Int[Anywhere, "B L"]
    """Which token of the full prompt each is; of a pooled one, where its picture begins."""
    positions: Int[Anywhere, "B L *A"]
    """Rotary positions in the full prompt."""
    visual: Int[Anywhere, "B L"]
    """-1: a text token; i >= 0: bank token i; -2 - u: pooled token u."""
    bank: BankLayout


def make_stream(fields: Mapping[str, Any]) -> Stream:
    """A stream from the fields of data.visual_stream.StreamBatch."""
    fields = dict(fields)
    names = ("rows", "sources", "positions", "images", "regions")
    bank = {name: fields.pop(f"bank_{name}") for name in names}
    layout = BankLayout(**bank, region_sizes=fields.pop("region_sizes"))
    return Stream(**fields, bank=layout)


@struct.dataclass
class Bank:
    """The visual tokens that may be routed."""

    tokens: Float[Array, "B R W"]
    keys: Float[Array, "B R E"]
    """W_v v, float32: computed once, read in every round."""
    sources: Int[Array, "B R"]
    """Which token of the full prompt each is."""
    positions: Int[Array, "B R *A"]
    valid: Bool[Array, "B R"]
    saliency: Float[Array, "B R"] | None = None
    """Scores of a selector that looks once, before the first round."""
    looks: tuple[tuple[Float[Array, "B R H d"], Float[Array, "B R H d"]], ...] = ()
    """Keys and values of the looks that the query takes at the bank before it routes."""


def gather_rows(table: Float[Array, "Rt W"], layout: BankLayout) -> Float[Array, "B R W"]:
    """The bank's tokens; padding holds zeros."""
    tokens = jnp.take(table, jnp.maximum(layout.rows, 0), axis=0, mode="clip")
    return jnp.where((layout.rows >= 0)[..., None], tokens, 0)


def pool_regions(tokens: Float[Array, "B R W"], layout: BankLayout) -> Float[Array, "B U W"]:
    """Mean token of each region (v_g); zeros for a region without members."""
    count = layout.region_sizes.shape[1]
    members = jax.nn.one_hot(layout.regions, count, dtype=tokens.dtype)  # -1 belongs to none
    sums = jnp.einsum("bru,brd->bud", members, tokens, preferred_element_type=jnp.float32)
    means = sums / jnp.maximum(layout.region_sizes, 1.0)[..., None]
    return means.astype(tokens.dtype)


def embed_stream(
    model: VisionLanguageModel, params: Params, stream: Stream, tokens: Float[Array, "B R W"]
) -> Float[Array, "B L W"]:
    """Embeddings of the stream: text, pooled tokens, and bank tokens where it names them."""
    words = model.widen(model.embed(params, stream.tokens))
    pooled = pool_regions(tokens, stream.bank)
    pictures = jnp.concatenate([tokens, pooled], axis=1).astype(words.dtype)
    visual = stream.visual
    place = jnp.where(visual <= -2, tokens.shape[1] - 2 - visual, jnp.maximum(visual, 0))
    picked = jnp.take_along_axis(pictures, place[..., None], axis=1, mode="clip")
    return jnp.where((visual == -1)[..., None], words, picked)
