"""Selectors that look once, before the first round: saliency of the bank from the prompt alone.

B: batch, N: tiles, r: rows a tile, R: bank rows, S: prompt length, L: stream length, T: raters'
places, D, E: widths of decoder and tower, W: width of a visual row, A: axes of a position.

Both come from pruning methods that drop visual tokens inside a model (baselines.md section 5); here
their scores stand in the router's place and k tokens stay.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Shaped

from tiger_jax.models.interface import DeviceTiles, Params, VisionLanguageModel
from tiger_jax.ops.sampling import NEVER
from tiger_jax.routing.bank import BankLayout, Stream

SPARSE_LAYER = 2
"""The first of the decoder layers at which SparseVLM prunes."""
PRUNED_AT_ONCE = 8
"""Tokens that VisPruner drops in one turn of its diversity step."""


def sparsevlm(
    model: VisionLanguageModel,
    params: Params,
    x: Float[Array, "B S W"],
    stream: Stream,
    positions: Int[Array, "B S *A"],
) -> Float[Array, "B R"]:
    """SparseVLM (arXiv 2410.04417): how much the relevant text looks at each visual token.

    Relevant text (the raters) are the text tokens after the first picture whose share of
    softmax_text(V T^T), averaged over the visual tokens V, reaches the mean. The score is their
    attention at one layer of the drafter, averaged over heads and raters.

    Args:
        x: embeddings of the full prompts, visual tokens in place.
        positions: of the full prompts' tokens.
    """
    layer = min(SPARSE_LAYER, model.config.text.num_layers - 1)
    bank, length = stream.bank, x.shape[1]
    rows, columns = stream.sources, bank.sources
    real = bank.rows >= 0
    first = jnp.min(jnp.where(real, columns, length), axis=1, keepdims=True)
    inside = jnp.arange(rows.shape[1])[None] < stream.lengths[:, None]
    text = inside & (stream.visual == -1) & (rows > first)
    words = x[..., : model.config.text.hidden_size]
    raters = relevant_text(_take(words, rows), _take(words, columns), text, real)

    cache = model.init_cache(x.shape[0], length + 1)
    _, cache, states = model.prefill(params, x, cache, (layer,), positions)
    visible = jnp.arange(length + 1)[None, None] <= rows[..., None]
    looks = model.attention_weights(
        params, layer, _take(states, rows), _take(positions, rows), cache.keys[layer], visible
    )
    weight = raters.astype(jnp.float32)
    scores = jnp.einsum("bt,bts->bs", weight, looks) / jnp.maximum(
        weight.sum(axis=1, keepdims=True), 1.0
    )
    return jnp.take_along_axis(scores, columns, axis=1, mode="clip")


def relevant_text(
    text: Float[Array, "B T D"], visual: Float[Array, "B R D"], is_text: Bool[Array, "B T"],
    is_visual: Bool[Array, "B R"],
) -> Bool[Array, "B T"]:  # fmt: skip
    """The raters: text tokens that the visual tokens find as relevant as the mean, or more."""
    scores = jnp.einsum("brd,btd->brt", visual, text, preferred_element_type=jnp.float32)
    law = jax.nn.softmax(jnp.where(is_text[:, None], scores, NEVER), axis=-1)
    shares = jnp.where(is_visual[..., None], law, 0.0).mean(axis=1)
    count = jnp.maximum(is_text.sum(axis=1, keepdims=True), 1)
    mean = jnp.where(is_text, shares, 0.0).sum(axis=1, keepdims=True) / count
    return is_text & (shares >= mean)


def vispruner(
    model: VisionLanguageModel, params: Params, tiles: DeviceTiles, layout: BankLayout, k: int
) -> Float[Array, "B R"]:  # fmt: skip
    """VisPruner (arXiv 2412.01818): half of the k for their importance, half for their diversity.

    Importance is the tower's [CLS] attention at the feature layer, mean over heads, or that of all
    patches where there is no [CLS]; for an odd k it takes the larger half. The scores are 1 for the
    k tokens, 0 for the others, and NEVER for newlines, which the tower has not seen, and padding.
    """
    importance = model.vision_saliency(params, tiles).reshape(-1).astype(jnp.float32)
    features = model.vision_features(params, tiles).astype(jnp.float32)
    features = features.reshape(importance.shape[0], -1)
    norm = jnp.linalg.norm(features, axis=-1, keepdims=True)
    features = features / jnp.maximum(norm, 1e-12)
    seen = (layout.rows >= 0) & (layout.rows < importance.shape[0])

    def one(rows: Array, seen: Array) -> Array:
        score = jnp.where(seen, importance.at[rows].get(mode="clip"), NEVER)
        important = rank_of(score) < (k + 1) // 2
        rest = jnp.where(important, NEVER, score)
        kept = diverse(features.at[rows].get(mode="clip"), rest, k // 2)
        chosen = (important & seen) | kept
        return jnp.where(seen, chosen.astype(jnp.float32), NEVER)

    return jax.vmap(one)(layout.rows, seen)


def diverse(
    features: Float[Array, "R E"], score: Float[Array, "R"], count: int
) -> Bool[Array, "R"]:
    """The `count` tokens that are left when near duplicates go, a few at a time.

    The tokens stand in line (by falling score at first) and are split into even places a and odd
    places b; the a most similar to some b go; the other a by falling similarity, then the b, are
    the next line.

    Args:
        features: of unit length.
        score: NEVER keeps a token out from the start.
    """
    similar = features @ features.T
    alive = score > NEVER

    def going(carry: tuple[Array, Array]) -> Array:
        return carry[1] > count

    def prune(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        place, left = carry
        live = place < left
        a, b = live & (place % 2 == 0), live & (place % 2 == 1)
        best = jnp.where(b[None], similar, NEVER).max(axis=1)
        order = rank_of(jnp.where(a, best, -jnp.inf))
        count_a = a.sum()
        dropped = jnp.minimum(jnp.minimum(PRUNED_AT_ONCE, left - count), count_a)
        moved = jnp.where(a, order - dropped, count_a - dropped + place // 2)
        gone = ~live | (a & (order < dropped))
        return jnp.where(gone, score.shape[0], moved), left - dropped

    place = jnp.where(alive, rank_of(score), score.shape[0])
    place, left = lax.while_loop(going, prune, (place, alive.sum()))
    return place < left


def rank_of(score: Float[Array, "R"]) -> Array:
    """Place of each entry in falling order, ties to the lower index."""
    return jnp.argsort(jnp.argsort(-score, stable=True), stable=True)


def _take(x: Shaped[Array, "B S *D"], rows: Array) -> Shaped[Array, "B T *D"]:
    rows = rows.reshape(*rows.shape, *[1] * (x.ndim - 2))
    return jnp.take_along_axis(x, rows, axis=1, mode="clip")
