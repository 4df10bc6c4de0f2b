"""The same training on one device and on eight, however the mesh cuts it."""

import jax
import numpy as np
import pytest
from flax import traverse_util
from jax.sharding import PartitionSpec as P
from sft_batches import sft_batch

from tiger_jax.models.llava_next import RULES as LLAVA_NEXT_RULES
from tiger_jax.sharding import rules
from tiger_jax.sharding.mesh import make_mesh
from tiger_jax.training import sft_step, train_state, train_step
from tiger_jax.training.optimizer import OptimizerSettings, make_optimizer

STEPS = 3
LENGTHS = [[3, 4], [9, 3], [5, 5], [3, 8], [6, 6], [4, 9], [7, 3], [3, 3]]


def train(model, mesh):
    """Parameters and losses after a few steps on a mesh."""
    optimizer = make_optimizer(OptimizerSettings(learning_rate=1e-3, steps=10, warmup=1))
    with jax.set_mesh(mesh):
        state = train_state.create_state(model.init_params, optimizer, 0, mesh, LLAVA_NEXT_RULES)
        step = train_step.make_train_step(sft_step.make_sft_loss(model), optimizer)
        losses = []
        for number in range(STEPS):
            batch = rules.place_batch(sft_batch(number, LENGTHS), mesh)
            state, metrics = step(state, [batch])
            losses.append(float(metrics["loss"][0] / metrics["loss"][1]))
    return state, losses


@pytest.fixture(scope="module")
def alone(shallow, one_device):
    state, losses = train(shallow, one_device)
    return traverse_util.flatten_dict(jax.device_get(state.params), sep="/"), losses


@pytest.mark.parametrize("shape", [(8, 1, 1), (1, 8, 1), (2, 2, 2)])
def test_a_mesh_changes_nothing_but_the_place(shallow, alone, shape):
    mesh = make_mesh(dict(zip(("data", "fsdp", "tensor"), shape, strict=True)))
    state, losses = train(shallow, mesh)
    params, expected = alone
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    for path, leaf in traverse_util.flatten_dict(state.params, sep="/").items():
        # A key bias has no gradient but rounding, of which Adam makes whole steps.
        if not path.endswith("key/bias"):
            np.testing.assert_allclose(leaf, params[path], atol=1e-5, err_msg=path)
    kernel = state.params["language_model"]["layers_0"]["mlp"]["down"]["kernel"]
    wanted = rules.spec_for(kernel.shape, ("mlp", "embed"), mesh)
    assert kernel.sharding.is_equivalent_to(jax.sharding.NamedSharding(mesh, wanted), 2)
    assert wanted == P(*("tensor" if shape[2] > 1 else None, "fsdp" if shape[1] > 1 else None))
    moments = [x for x in jax.tree.leaves(state.opt_state) if x.shape == kernel.shape]
    assert moments
    assert any(x.sharding.is_equivalent_to(kernel.sharding, 2) for x in moments)
