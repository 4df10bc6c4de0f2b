"""Schedule, decay mask, freezing, and what a small learning rate does to float32 masters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util
from sft_batches import sft_batch

from tiger_jax.errors import UserError
from tiger_jax.models.interface import build_model
from tiger_jax.models.llava_next import RULES as LLAVA_NEXT_RULES
from tiger_jax.testing.tiny import tiny_config
from tiger_jax.training import sft_step, train_state, train_step
from tiger_jax.training.optimizer import (
    OptimizerSettings,
    decay_mask,
    frozen_mask,
    learning_rate_schedule,
    make_optimizer,
)


def test_schedule_warms_up_and_falls_to_the_final_fraction():
    schedule = learning_rate_schedule(
        OptimizerSettings(learning_rate=2.0, steps=110, warmup=10, final_fraction=0.1)
    )
    got = [float(schedule(step)) for step in (0, 5, 10, 60, 110)]
    np.testing.assert_allclose(got, [0.0, 1.0, 2.0, 1.1, 0.2], rtol=1e-6)


def test_schedule_without_warm_up_starts_at_the_peak():
    schedule = learning_rate_schedule(OptimizerSettings(learning_rate=2.0, steps=10))
    assert float(schedule(0)) == 2.0


def test_a_run_no_longer_than_its_warm_up_is_refused():
    with pytest.raises(UserError, match=r"fewer warm-up steps than the 50 steps.*got 50"):
        make_optimizer(OptimizerSettings(learning_rate=1.0, steps=50, warmup=50))


def test_only_kernels_decay(tiny):
    _, params = tiny
    decays = traverse_util.flatten_dict(decay_mask(params), sep="/")
    assert {path for path, yes in decays.items() if yes} == {
        path for path in decays if path.endswith("kernel")
    }


def test_first_update_is_the_learning_rate_against_the_gradients_sign():
    """AdamW's first step is lr * g / |g|, plus lr * decay * weight where weights decay."""
    params = {"a": {"kernel": jnp.full((2,), 3.0), "bias": jnp.full((2,), 3.0)}}
    optimizer = make_optimizer(
        OptimizerSettings(learning_rate=0.1, steps=10, weight_decay=0.5, clip=0.0)
    )
    gradients = jax.tree.map(lambda x: jnp.asarray([4.0, -4.0]), params)
    updates, _ = optimizer.update(gradients, optimizer.init(params), params)
    np.testing.assert_allclose(updates["a"]["bias"], [-0.1, 0.1], rtol=1e-5)
    np.testing.assert_allclose(updates["a"]["kernel"], [-0.25, -0.05], rtol=1e-5)


def test_frozen_weights_neither_move_nor_decay_nor_count_for_the_clip(tiny):
    _, params = tiny
    optimizer = make_optimizer(
        OptimizerSettings(learning_rate=0.1, steps=10, weight_decay=0.5, freeze=("vision_tower/",))
    )
    gradients = jax.tree.map(jnp.ones_like, params)
    updates, _ = optimizer.update(gradients, optimizer.init(params), params)
    moved = traverse_util.flatten_dict(
        jax.tree.map(lambda x: bool(jnp.any(x != 0)), updates), sep="/"
    )
    assert all(yes != path.startswith("vision_tower/") for path, yes in moved.items())


def test_a_freeze_rule_that_matches_nothing_is_refused(tiny):
    _, params = tiny
    with pytest.raises(UserError, match="'vision_twoer' matches no parameter"):
        frozen_mask(params, ("vision_twoer",))


def test_small_updates_survive_bfloat16_compute(one_device):
    """At lr 5e-6 a bfloat16 weight of 1.0 would never move; masters and moments are float32."""
    model = build_model(tiny_config(), jnp.bfloat16)
    optimizer = make_optimizer(OptimizerSettings(learning_rate=5e-6, steps=1000, weight_decay=0.0))
    state = train_state.create_state(model.init_params, optimizer, 0, one_device, LLAVA_NEXT_RULES)
    before = traverse_util.flatten_dict(jax.device_get(state.params), sep="/")
    step = train_step.make_train_step(sft_step.make_sft_loss(model), optimizer)
    batch = sft_batch(0, [[5, 8]] * 8)
    for _ in range(5):
        state, _ = step(state, [batch])
    after = traverse_util.flatten_dict(jax.device_get(state.params), sep="/")
    norms = [path for path in before if path.endswith("norm/scale") and "language" in path]
    assert norms
    for path in norms:
        assert (before[path] != after[path]).mean() > 0.99, path
    assert {leaf.dtype for leaf in after.values()} == {np.dtype("float32")}
    floats = [x for x in jax.tree.leaves(state.opt_state) if jnp.issubdtype(x.dtype, jnp.floating)]
    assert {leaf.dtype for leaf in floats} == {np.dtype("float32")}
