"""Steps of distillation as a run makes them: accumulated, and at the paper's learning rate."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from draft_cases import drafter_parts, make_case, make_items

from tiger_jax.models.llava_next import RULES as LLAVA_NEXT_RULES
from tiger_jax.routing.router import RouterConfig
from tiger_jax.sharding.rules import ROUTER_RULES, place_params
from tiger_jax.training import train_step
from tiger_jax.training.distill_step import make_distill_loss
from tiger_jax.training.draft_blocks import BlockDrafter
from tiger_jax.training.optimizer import OptimizerSettings, make_optimizer
from tiger_jax.training.train_state import start_state

ROUTER = RouterConfig("tiger", routed_tokens=3)
RULES = (*LLAVA_NEXT_RULES, *ROUTER_RULES)
PAPER = OptimizerSettings(learning_rate=5e-6, steps=1000, warmup=100)
G = 3


@pytest.fixture(scope="module")
def parts():
    """(config, loss, host parameters)."""
    model, params = drafter_parts(hidden=16, layers=1)
    loss = make_distill_loss(BlockDrafter(model, ROUTER), 0.3)
    return model.config, loss, jax.device_get(params)


def start(parts, mesh):
    params = place_params(jax.tree.map(jnp.array, parts[2]), RULES, mesh)
    return start_state(params, make_optimizer(PAPER), 0, mesh, RULES)


def test_eight_times_one_is_one_times_eight(parts, one_device):
    """Gradients are sums over tokens, divided once."""
    config, loss, _ = parts
    items = make_items(config, (((0,), (4,), (6,)),) * 8, g=G)
    step = train_step.make_train_step(loss, make_optimizer(PAPER), rules=RULES)
    with jax.set_mesh(one_device):
        state = start(parts, one_device)
        whole = step.start(state, make_case(config, ROUTER, items, g=G).batch)
        batches = [make_case(config, ROUTER, [item], g=G).batch for item in items]
        parted = step.start(state, batches[0])
        for batch in batches[1:]:
            parted = step.add(state, parted, batch)
    assert float(parted.weight) == float(whole.weight) > 8
    for name, pair in whole.metrics.items():
        np.testing.assert_allclose(parted.metrics[name], pair, rtol=1e-5, err_msg=name)
    for path, expected in jax.tree_util.tree_leaves_with_path(whole.gradients):
        got = parted.gradients
        for entry in path:
            got = got[entry.key]
        got, expected = (np.asarray(g) / float(whole.weight) for g in (got, expected))
        np.testing.assert_allclose(got, expected, atol=1e-6, err_msg=str(path))


def test_small_steps_move_the_weights(parts, one_device):
    """Masters are float32: in bfloat16 a step of 5e-6 would be lost on weights above .002."""
    config, loss, before = parts
    step = train_step.make_train_step(loss, make_optimizer(PAPER), rules=RULES)
    batches = [make_case(config, ROUTER, make_items(config, seed=s, g=G)).batch for s in range(2)]
    with jax.set_mesh(one_device):
        state = start(parts, one_device)
        taught = [step.start(state, batch).gradients for batch in batches]
        for number in range(50):
            state, _ = step(state, [batches[number % 2]])
    moved = met = 0
    for path, old in jax.tree_util.tree_leaves_with_path(before):
        new, gradients = state.params, taught
        for entry in path:
            new, gradients = new[entry.key], [g[entry.key] for g in gradients]
        has = sum(np.abs(np.asarray(g)) for g in gradients) > 0  # rows of other words have none
        changed = (np.asarray(new) != np.asarray(old)) & has
        moved, met = moved + changed.sum(), met + has.sum()
        if has.any() and "norm" in str(path):
            assert changed.sum() > 0.99 * has.sum(), path
    assert moved > 0.99 * met
    assert met > 0.5 * sum(leaf.size for leaf in jax.tree.leaves(before))
