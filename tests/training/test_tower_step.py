"""Cell classification: pooling, sums by hand, and the tower's own sharding rules."""

import jax
import jax.numpy as jnp
import numpy as np

from tiger_jax.models.interface import build_model
from tiger_jax.sharding.rules import logical_axes
from tiger_jax.testing.tiny import tiny_config
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
    optimizer = make_optimizer(OptimizerSettings(learning_rate=1e-2, steps=100))
    state = train_state.create_state(
        lambda key: tower_step.init_tower_params(
            model, key, {"content": 3, "color": 2, "place": 4}
        ), optimizer, 0, one_device, tower_step.TOWER_RULES,
    )  # fmt: skip
    assert set(state.params) == {"vision_tower", "heads"}
    assert logical_axes(state.params, tower_step.TOWER_RULES)
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
