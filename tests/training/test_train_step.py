"""Accumulation, keys and frozen weights of one update."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util
from sft_batches import sft_batch

from tiger_jax.models.llava_next import RULES as LLAVA_NEXT_RULES
from tiger_jax.sharding.rules import ParamRule
from tiger_jax.training import sft_step, train_state, train_step
from tiger_jax.training.optimizer import OptimizerSettings, frozen_mask, make_optimizer

LENGTHS = [[3, 4], [20, 3], [5, 5], [3, 30], [6, 6], [4, 9], [12, 3], [3, 3]]
SETTINGS = OptimizerSettings(learning_rate=1e-2, steps=10, clip=0.0)


def one_picture(batch: sft_step.PackedBatch, index: int) -> sft_step.PackedBatch:
    """Picture `index` alone, its image rows pointing into its own table."""
    tiles = len(batch.tiles) // len(batch.tokens)
    rows = batch.prefix_image_rows[index : index + 1]
    newline = rows == rows.max()
    rows = jnp.where(rows < 0, rows, rows - index * tiles * 4)
    rows = jnp.where(newline, tiles * 4, rows)
    cut = jax.tree.map(lambda x: x[index : index + 1], batch)
    return cut.replace(
        prefix_image_rows=rows, tiles=batch.tiles[index * tiles : (index + 1) * tiles]
    )


@pytest.fixture(scope="module")
def both_ways(shallow, one_device):
    """(state, train step, sums of one batch of eight, sums and losses of eight of one)."""
    optimizer = make_optimizer(OptimizerSettings(learning_rate=1e-4, steps=10))
    step = train_step.make_train_step(sft_step.make_sft_loss(shallow), optimizer)
    state = train_state.create_state(
        shallow.init_params, optimizer, 0, one_device, LLAVA_NEXT_RULES
    )
    batch = sft_batch(0, LENGTHS)
    singles = [one_picture(batch, index) for index in range(8)]
    parts = step.start(state, singles[0])
    losses = [float(parts.metrics["loss"][0] / parts.weight)]
    for single in singles[1:]:
        before = parts.metrics["loss"][0], parts.weight
        before = tuple(map(float, before))  # the sums are donated to the next call
        parts = step.add(state, parts, single)
        added = float(parts.metrics["loss"][0]) - before[0]
        losses.append(added / (float(parts.weight) - before[1]))
    return state, step, step.start(state, batch), parts, losses


def test_eight_batches_of_one_are_one_batch_of_eight(both_ways):
    """Gradients to 1e-6; means of means, the usual mistake (B18), would be seen."""
    _, _, whole, parts, losses = both_ways
    assert float(parts.weight) == float(whole.weight)
    assert int(parts.micro) == 8
    scale = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(whole.gradients))
    pairs = zip(jax.tree.leaves(parts.gradients), jax.tree.leaves(whole.gradients), strict=True)
    for got, want in pairs:
        np.testing.assert_allclose(got, want, atol=1e-6 * scale)
    right = float(whole.metrics["loss"][0] / whole.weight)
    assert abs(np.mean(losses) - right) > 1e-3


def test_update_is_the_same_with_and_without_accumulation(both_ways):
    """To a tenth of the step size: Adam's first step is the sign of rounding where g is tiny."""
    state, step, whole, parts, _ = both_ways
    copies = [jax.tree.map(jnp.copy, state) for _ in range(2)]  # a step donates its state
    results = [step.apply(*pair) for pair in zip(copies, (whole, parts), strict=True)]
    assert [int(state.step) for state, _ in results] == [1, 1]
    flat = [traverse_util.flatten_dict(state.params, sep="/") for state, _ in results]
    for path in flat[0]:
        # A key bias shifts all scores of a query alike: its gradient is rounding, and Adam
        # makes a whole step of it.
        if not path.endswith("key/bias"):
            np.testing.assert_allclose(flat[0][path], flat[1][path], atol=1e-5, err_msg=path)
    losses = [float(metrics["loss"][0] / metrics["loss"][1]) for _, metrics in results]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_every_micro_batch_of_every_step_has_its_own_key(one_device):
    seen = []

    def loss(params, batch, key):
        jax.debug.callback(lambda data: seen.append(tuple(np.asarray(data))),
                           jax.random.key_data(key))  # fmt: skip
        return train_step.LossSums(loss=(params["kernel"] * batch).sum(), weight=jnp.ones(()))

    optimizer = make_optimizer(SETTINGS)
    state = train_state.create_state(
        lambda key: {"kernel": jax.random.normal(key, (2,))}, optimizer, 0, one_device,
        (ParamRule("kernel", (None,)),),
    )  # fmt: skip
    step = train_step.make_train_step(loss, optimizer)
    first_key = np.asarray(state.key)
    for _ in range(2):
        state, _ = step(state, [jnp.ones(2), jnp.ones(2)])
    jax.effects_barrier()
    assert len(seen) == len(set(seen)) == 4
    np.testing.assert_array_equal(state.key, first_key)


def test_frozen_weights_get_no_gradient(shallow, one_device):
    optimizer = make_optimizer(SETTINGS)
    state = train_state.create_state(
        shallow.init_params, optimizer, 0, one_device, LLAVA_NEXT_RULES
    )
    frozen = frozen_mask(state.params, ("vision_tower/",))
    step = train_step.make_train_step(sft_step.make_sft_loss(shallow), optimizer, frozen)
    gradients = step.start(state, sft_batch(0, [[4, 5]])).gradients
    assert all((g == 0).all() for g in jax.tree.leaves(gradients["vision_tower"]))
    assert (gradients["projector"]["linear_1"]["kernel"] != 0).any()
