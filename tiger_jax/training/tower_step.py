"""Pre-training of a vision tower: what stands in each cell of a picture, and in which colour.

B: pictures, S: side in pixels, C: cells of a picture, E: tower width, n: patches along a side,
c: cells along a side, K: classes.

Two linear heads read the mean of each cell's patch rows (28-pixel cells of 14-pixel patches: 2 x 2
rows). They exist only here and are thrown away; the tower's weights go on into supervised training.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Float, Int

from tiger_jax.models.interface import VisionLanguageModel
from tiger_jax.sharding.rules import VISION_RULES, ParamRule
from tiger_jax.training.train_step import LossSums

TOWER_RULES = (*VISION_RULES, ParamRule(r"heads/(content|color)/kernel", (None, None)),
               ParamRule(r"heads/(content|color)/bias", (None,)))  # fmt: skip


@struct.dataclass
class CellBatch:
    """Pictures and the classes of their cells, row by row; class 0 of both is the empty cell."""

    tiles: Any
    """float32 [B, S, S, 3]."""
    content: Any
    """int32 [B, C]."""
    color: Any
    """int32 [B, C]."""


def init_tower_params(
    model: VisionLanguageModel, key: Array, content_classes: int, color_classes: int
) -> dict[str, Any]:
    """{"vision_tower": .., "heads": ..}: the tower of a whole model, and the two heads."""
    tower_key, *head_keys = jax.random.split(key, 3)
    width = model.config.vision.hidden_size
    heads = {
        name: {
            "kernel": jax.random.normal(head_key, (width, classes)) * width**-0.5,
            "bias": jnp.zeros((classes,)),
        }
        for name, classes, head_key in zip(
            ("content", "color"), (content_classes, color_classes), head_keys, strict=True
        )
    }
    return {"vision_tower": model.init_params(tower_key)["vision_tower"], "heads": heads}


def make_tower_loss(
    model: VisionLanguageModel, cells: int
) -> Callable[[Any, CellBatch, Array], LossSums]:
    """The loss function of `make_train_step`; pictures are one tile of cells x cells cells."""

    # The model declares it beside the tower; the tower does not read it.
    newline = jnp.zeros((model.config.text.hidden_size,))

    def loss(params: Any, batch: CellBatch, key: Array) -> LossSums:
        del key
        rows = model.vision_features(params | {"image_newline": newline}, batch.tiles)
        features = cell_features(rows, cells).astype(jnp.float32)
        return cell_sums(
            _linear(params["heads"]["content"], features),
            _linear(params["heads"]["color"], features), batch.content, batch.color,
        )  # fmt: skip

    return loss


def cell_features(rows: Float[Array, "B nn E"], cells: int) -> Float[Array, "B C E"]:
    """Mean of the patch rows inside each cell, cells row by row."""
    batch, count, width = rows.shape
    side = round(count**0.5)
    inside = side // cells
    blocks = rows.reshape(batch, cells, inside, cells, inside, width)
    return blocks.mean(axis=(2, 4)).reshape(batch, cells * cells, width)


def cell_sums(
    content_logits: Float[Array, "B C K"], color_logits: Float[Array, "B C L"],
    content: Int[Array, "B C"], color: Int[Array, "B C"],
) -> LossSums:  # fmt: skip
    """Both cross entropies summed over cells; accuracies over cells that are not empty."""
    cross_entropy = optax.losses.softmax_cross_entropy_with_integer_labels
    losses = cross_entropy(content_logits, content) + cross_entropy(color_logits, color)
    filled = (content > 0).astype(jnp.float32)

    def right(logits: Array, labels: Array) -> tuple[Array, Array]:
        hits = (jnp.argmax(logits, axis=-1) == labels).astype(jnp.float32)
        return (hits * filled).sum(), filled.sum()

    return LossSums(
        loss=losses.sum(), weight=jnp.asarray(float(content.size)),
        metrics={"content_accuracy": right(content_logits, content),
                 "color_accuracy": right(color_logits, color)},
    )  # fmt: skip


def _linear(head: dict[str, Array], x: Float[Array, "B C E"]) -> Float[Array, "B C K"]:
    return x @ head["kernel"] + head["bias"].reshape(1, 1, -1)
