"""Pre-training of a vision tower: what stands in each cell of a picture, and in which colour.

B: pictures, S: side in pixels, C: cells of a picture, E: width of a tower row, n: rows along a
side, c: cells along a side, K: classes.

Two linear heads, content and colour, read the mean of each cell's tower rows (28-pixel cells of
14-pixel rows: 2 x 2). A third one reads from every patch row the cell that it lies in. It
looks idle but is not: without it the tower forgets where an item stands (a linear probe finds its
row at the rate of chance), and answers about places fail. The heads are thrown away afterwards;
the tower's weights go on into supervised training.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jaxtyping import Array, Float, Int

from tiger_jax.models.interface import VisionLanguageModel
from tiger_jax.sharding.rules import ParamRule
from tiger_jax.training.train_step import LossSums

HEAD_RULES = (
    ParamRule(r"heads/(content|color|place)/kernel", (None, None)),
    ParamRule(r"heads/(content|color|place)/bias", (None,)),
)
"""Beside those of the model's tower."""


@struct.dataclass
class CellBatch:
    """Pictures and the classes of their cells, row by row; class 0 of both is the empty cell."""

    tiles: Any
    """float32 [B, S, S, 3] or Frames of one size."""
    content: Any
    """int32 [B, C]."""
    color: Any
    """int32 [B, C]."""


def init_tower_params(
    model: VisionLanguageModel, key: Array, classes: dict[str, int]
) -> dict[str, Any]:
    """{"vision_tower": .., "heads": ..}: the tower of a whole model, and a head for each of
    `classes` (content, color and place, with their numbers of classes).
    """
    tower_key, *head_keys = jax.random.split(key, 1 + len(classes))
    width = model.module.feature_width
    heads = {
        name: {
            "kernel": jax.random.normal(head_key, (width, count)) * width**-0.5,
            "bias": jnp.zeros((count,)),
        }
        for (name, count), head_key in zip(classes.items(), head_keys, strict=True)
    }
    return {"vision_tower": model.init_params(tower_key)["vision_tower"], "heads": heads}


def make_tower_loss(
    model: VisionLanguageModel, cells: int
) -> Callable[[Any, CellBatch, Array], LossSums]:
    """The loss function of `make_train_step`; pictures are one tile of cells x cells cells."""

    # The module declares all of its weights; the tower reads its own.
    abstract = model.abstract_params()

    def loss(params: Any, batch: CellBatch, key: Array) -> LossSums:
        del key
        unread = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), abstract)
        tower = {"vision_tower": params["vision_tower"]}
        rows = model.vision_features(unread | tower, batch.tiles).astype(jnp.float32)
        heads = params["heads"]
        features = cell_features(rows, cells)
        scores = {name: _linear(heads[name], features) for name in ("content", "color")}
        sums = cell_sums(scores, {"content": batch.content, "color": batch.color})
        places = cell_of_rows(rows.shape[1], cells)
        loss, right = place_sums(_linear(heads["place"], rows), places)
        return sums.replace(loss=sums.loss + loss, metrics=sums.metrics | {"place_accuracy": right})

    return loss


def cell_features(rows: Float[Array, "B nn E"], cells: int) -> Float[Array, "B C E"]:
    """Mean of the patch rows inside each cell, cells row by row."""
    batch, count, width = rows.shape
    side = round(count**0.5)
    inside = side // cells
    blocks = rows.reshape(batch, cells, inside, cells, inside, width)
    return blocks.mean(axis=(2, 4)).reshape(batch, cells * cells, width)


def cell_sums(
    scores: dict[str, Float[Array, "B C _"]], labels: dict[str, Int[Array, "B C"]]
) -> LossSums:
    """Cross entropies of all heads summed over cells; accuracies over the cells with content."""
    cross_entropy = optax.losses.softmax_cross_entropy_with_integer_labels
    losses = sum(cross_entropy(scores[name], labels[name]).sum() for name in scores)
    filled = (labels["content"] > 0).astype(jnp.float32)

    def right(name: str) -> tuple[Array, Array]:
        hits = (jnp.argmax(scores[name], axis=-1) == labels[name]).astype(jnp.float32)
        return (hits * filled).sum(), filled.sum()

    return LossSums(
        loss=losses, weight=jnp.asarray(float(filled.size)),
        metrics={f"{name}_accuracy": right(name) for name in scores},
    )  # fmt: skip


def cell_of_rows(rows: int, cells: int) -> Int[np.ndarray, " rows"]:
    """The cell that each patch row of a picture lies in."""
    side = round(rows**0.5)
    inside = side // cells
    line = np.arange(side) // inside
    return (line[:, None] * cells + line[None]).ravel()


def place_sums(
    scores: Float[Array, "B R K"], places: Int[np.ndarray, " R"]
) -> tuple[Array, tuple[Array, Array]]:
    """Cross entropy of every patch row's cell, scaled to the number of cells; (right, count)."""
    labels = jnp.broadcast_to(jnp.asarray(places)[None], scores.shape[:2])
    losses = optax.losses.softmax_cross_entropy_with_integer_labels(scores, labels)
    hits = (jnp.argmax(scores, axis=-1) == labels).astype(jnp.float32)
    scale = scores.shape[2] / scores.shape[1]
    return losses.sum() * scale, (hits.sum(), jnp.asarray(float(hits.size)))


def _linear(head: dict[str, Array], x: Float[Array, "B C E"]) -> Float[Array, "B C K"]:
    return x @ head["kernel"] + head["bias"].reshape(1, 1, -1)
