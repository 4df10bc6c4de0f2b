"""Cell classification: pooling, sums by hand, and the tower's own sharding rules."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from tests.pictured import framed_prompt
from tiger_jax.data.processor import Processor
from tiger_jax.data.scene_drawing import CELL
from tiger_jax.data.scene_folder import write_tiny_folder
from tiger_jax.models.interface import build_model
from tiger_jax.models.qwen3_vision import group_squares
from tiger_jax.sharding.rules import logical_axes
from tiger_jax.testing.tiny import tiny_config, tiny_qwen3_vl_config
from tiger_jax.training import tower_step, train_state, train_step
from tiger_jax.training.optimizer import OptimizerSettings, make_optimizer


def test_cell_features_are_means_of_two_by_two_rows():
    """
    rows of a 4 x 4 grid      cells
     0  1 |  2  3            2.5 | 4.5
     4  5 |  6  7
     -----+------
     8  9 | 10 11           10.5 | 12.5
    12 13 | 14 15
    """
    rows = jnp.arange(16.0).reshape(1, 16, 1)
    got = tower_step.cell_features(rows, 2)[0, :, 0]
    np.testing.assert_allclose(got, [2.5, 4.5, 10.5, 12.5])


def test_cell_sums_by_hand():
    """Two cells, the first empty; uniform scores over 4 and 2 classes give ln 4 + ln 2 each."""
    labels = {"content": jnp.array([[0, 3]]), "color": jnp.array([[0, 1]])}
    scores = {"content": jnp.zeros((1, 2, 4)), "color": jnp.zeros((1, 2, 2))}
    sums = tower_step.cell_sums(scores, labels)
    np.testing.assert_allclose(float(sums.loss), 2 * np.log(8), rtol=1e-6)
    assert float(sums.weight) == 2
    assert [float(x) for x in sums.metrics["content_accuracy"]] == [0.0, 1.0]
    scores["content"] = scores["content"].at[0, 1, 3].set(9.0)
    sure = tower_step.cell_sums(scores, labels)
    assert [float(x) for x in sure.metrics["content_accuracy"]] == [1.0, 1.0]


def test_a_tower_learns_cells_and_only_the_tower_is_trained(one_device):
    model = build_model(tiny_config())
    rules = (*model.tower_rules, *tower_step.HEAD_RULES)
    optimizer = make_optimizer(OptimizerSettings(learning_rate=1e-2, steps=100))
    state = train_state.create_state(
        lambda key: tower_step.init_tower_params(
            model, key, {"content": 3, "color": 2, "place": 4}
        ), optimizer, 0, one_device, rules,
    )  # fmt: skip
    assert set(state.params) == {"vision_tower", "heads"}
    assert logical_axes(state.params, rules)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, (8, 4)).astype(np.int32)
    looks = rng.normal(size=(3, 14, 14, 3))
    tiles = np.zeros((8, 28, 28, 3), np.float32)
    for picture, cell in np.ndindex(8, 4):
        row, col = divmod(cell, 2)
        look = looks[labels[picture, cell]]
        tiles[picture, row * 14 : row * 14 + 14, col * 14 : col * 14 + 14] = look
    batch = tower_step.CellBatch(tiles, labels, np.minimum(labels, 1))
    step = train_step.make_train_step(tower_step.make_tower_loss(model, 2), optimizer)
    losses = []
    for _ in range(60):
        state, metrics = step(state, [batch])
        losses.append(float(metrics["loss"][0] / metrics["loss"][1]))
    assert losses[-1] < 0.5 * losses[0]
    right, filled = map(float, metrics["content_accuracy"])
    assert right == filled
    assert jax.tree.structure(state.params["vision_tower"]) == jax.tree.structure(
        model.abstract_params()["vision_tower"]
    )


def test_rows_of_qwen3_vl_lie_in_the_cells_that_are_taught(tmp_path):
    """A row is a square of 2 x 2 patches, so 8 x 8 rows and not 16 x 16 patches are what a picture
    of 112 x 112 pixels is cut into; each of its 16 cells is changed by itself."""
    processor = Processor.from_folder(write_tiny_folder(tmp_path, pair="tiny_qwen3_vl"))
    vision = processor.config.vision
    page = np.full((4 * CELL, 4 * CELL, 3), 255, np.uint8)

    def rows_of(picture):
        frames = processor.base_tile(picture)
        assert frames.counts.tolist() == [256]
        return np.asarray(group_squares(jnp.asarray(frames.patches), vision))[0]

    empty, places = rows_of(page), tower_step.cell_of_rows(64, 4)
    for cell in range(16):
        marked, (row, col) = page.copy(), divmod(cell, 4)
        marked[row * CELL : row * CELL + CELL, col * CELL : col * CELL + CELL] = 0
        changed = (rows_of(marked) != empty).any(axis=1)
        assert np.flatnonzero(changed).tolist() == np.flatnonzero(places == cell).tolist()
        assert changed.sum() == 4
        features = tower_step.cell_features(jnp.asarray(changed[None, :, None], jnp.float32), 4)
        assert np.flatnonzero(features).tolist() == [cell]


def test_a_tower_of_frames_has_gradients_in_all_its_weights():
    """Three pictures of 4 x 4 rows; mergers and decoder have no part in it."""
    config = tiny_qwen3_vl_config()
    model = build_model(config)
    rules = (*model.tower_rules, *tower_step.HEAD_RULES)
    classes = {"content": 3, "color": 2, "place": 4}
    params = jax.jit(lambda key: tower_step.init_tower_params(model, key, classes))(
        jax.random.key(0)
    )
    assert set(params) == {"vision_tower", "heads"}
    assert logical_axes(params, rules)
    labels = np.random.default_rng(0).integers(0, 2, (3, 4)).astype(np.int32)
    frames = jax.tree.map(jnp.asarray, framed_prompt(config, [(4, 4)] * 3).tiles)
    batch = tower_step.CellBatch(frames, jnp.asarray(labels), jnp.asarray(labels))
    loss = tower_step.make_tower_loss(model, 2)
    gradients = jax.jit(jax.grad(lambda p: loss(p, batch, jax.random.key(0)).loss))(params)
    for path, leaf in traverse_util.flatten_dict(gradients["vision_tower"], sep="/").items():
        assert np.isfinite(leaf).all(), path
        assert np.abs(leaf).max() > 0, path
    assert jax.tree.structure(gradients["vision_tower"]) == jax.tree.structure(
        model.abstract_params()["vision_tower"]
    )
