"""KD, alignment and the verifier on other meshes: the same numbers as on one device.

B: examples, M: prefixes, K: sampled blocks, g: draft length.
"""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from draft_cases import drafter_parts, make_case, make_items
from flax import traverse_util

from tiger_jax.decoding.engine import Engine
from tiger_jax.routing.router import RouterConfig
from tiger_jax.sharding import rules
from tiger_jax.sharding.mesh import AXES, make_mesh
from tiger_jax.testing.tiny import tiny_model
from tiger_jax.training import align_step, distill_step, rollout, train_step
from tiger_jax.training.draft_batch import DraftBatch
from tiger_jax.training.draft_blocks import BlockDrafter
from tiger_jax.training.teacher_pass import TeacherSettings
from tiger_jax.training.train_state import create_params, start_state

ROUTER = RouterConfig("tiger", routed_tokens=3)
SETTINGS = align_step.AlignSettings(samples=2, reward="expected_prefix")
G, END = 3, (2,)
OPTIMIZER = optax.sgd(0.1, momentum=0.9)
"""Adam makes whole steps of gradients that are nothing but rounding."""
EIGHT = (
    ((0,), (4,), (5,)), ((1,), (3,), (6,)), ((), (5,), (6,)), ((0, 1), (2,), (5,)),
    ((1, 0), (4,), (7,)), ((0,), (6,), (5,)), ((1,), (3,), (6,)), ((0,), (5,), (4,)),
)  # fmt: skip
SHAPES = [(8, 1, 1), (1, 8, 1), (2, 2, 2), (1, 1, 8)]
CASES = [
    *[("llava_next", name, shape) for name in ("distill", "align") for shape in SHAPES],
    ("qwen3_vl", "distill", (2, 2, 2)),
]


@pytest.fixture(scope="module", params=["llava_next"])
def parts(request):
    """(drafter with scanned layers, its parameters, batch, verifier, its parameters). The drafter
    of Qwen3-VL has one table for words and logits, its batch has pictures and videos."""
    sizes = {"tied": True} if request.param == "qwen3_vl" else {}
    model, params = drafter_parts(hidden=16, layers=2, family=request.param, **sizes)
    batch = make_case(model.config, ROUTER, make_items(model.config, EIGHT, g=G)).batch
    scanned = BlockDrafter(type(model)(model.config, model.module.clone(remat=True)), ROUTER)
    verifier = tiny_model(0, request.param, layers=2 if sizes else 1)
    return scanned, jax.device_get(params), jax.device_get(batch), *verifier


def engine_on(parts, mesh):
    model, params = parts[3:]
    placed = rules.place_params(params, model.rules, mesh)
    drawable = np.arange(model.config.text.vocab_size) < 95
    return Engine(model, placed, drawable, str, mesh=mesh)


def distillation(parts, mesh, verifier_mesh):
    loss = distill_step.make_distill_loss(parts[0], 0.3)
    return train_step.make_train_step(loss, OPTIMIZER, rules=parts[0].rules)


def online_teacher(parts, mesh, verifier_mesh):
    update = distillation(parts, mesh, verifier_mesh)
    return distill_step.OnlineTeacher(update, engine_on(parts, verifier_mesh), TeacherSettings())


def alignment(parts, mesh, verifier_mesh):
    update = train_step.make_train_step(
        align_step.make_grpo_loss(parts[0], SETTINGS, END), OPTIMIZER, rules=parts[0].rules
    )
    return align_step.AlignmentStep(
        parts[0], SETTINGS, engine_on(parts, verifier_mesh), END,
        rules.place_params(parts[1], parts[0].rules, mesh), update,
        partial(rollout.gather_weights, rules=parts[0].rules, dtype=jnp.float32),
    )  # fmt: skip


def train(parts, make_step, mesh, verifier_mesh=None, micro=1):
    """(state, metrics) after a step on a mesh."""
    own = parts[0].rules
    with jax.set_mesh(mesh):
        params = rules.place_params(jax.tree.map(jnp.array, parts[1]), own, mesh)
        state = start_state(params, OPTIMIZER, 0, mesh, own)
        step = make_step(parts, mesh, verifier_mesh or mesh)
        state, metrics = step(state, [rules.place_batch(parts[2], mesh)] * micro)
        return state, jax.device_get(metrics)


STEPS = {"distill": distillation, "teacher": online_teacher, "align": alignment}


@pytest.fixture(scope="module")
def alone(parts, one_device):
    """Name of a step -> its numbers on one device."""

    @cache
    def numbers(name):
        state, metrics = train(parts, STEPS[name], one_device)
        return traverse_util.flatten_dict(jax.device_get(state.params), sep="/"), metrics

    return numbers


def mesh_of(shape):
    return make_mesh(dict(zip(AXES, shape, strict=True)))


def assert_same(state, metrics, expected):
    params, numbers = expected
    for name, (total, count) in numbers.items():
        np.testing.assert_allclose(
            metrics[name], (total, count), rtol=2e-5, atol=1e-5, err_msg=name
        )
    for path, leaf in traverse_util.flatten_dict(state.params, sep="/").items():
        np.testing.assert_allclose(leaf, params[path], atol=1e-5, err_msg=path)


@pytest.mark.parametrize(("parts", "name", "shape"), CASES, indirect=["parts"])
def test_a_mesh_changes_nothing_but_the_place(parts, alone, name, shape):
    mesh = mesh_of(shape)
    state, metrics = train(parts, STEPS[name], mesh)
    assert_same(state, metrics, alone(name))
    kernel = state.params["language_model"]["layers_1"]["mlp"]["down"]["kernel"]
    wanted = rules.spec_for(kernel.shape, ("mlp", "embed"), mesh)
    assert kernel.sharding.is_equivalent_to(jax.sharding.NamedSharding(mesh, wanted), 2)


@pytest.mark.parametrize(
    ("name", "module", "program"),
    [("teacher", distill_step, "ask_verifier"), ("align", align_step, "verify_blocks")],
)
def test_the_verifier_may_have_its_own_mesh(parts, alone, monkeypatch, name, module, program):
    """It runs there, on a batch that was moved there; what comes of it is back in the update."""
    original, met = getattr(module, program), []

    def watched(*arguments):
        batch = next(x for x in arguments if isinstance(x, DraftBatch))
        met.append(
            (jax.sharding.get_mesh().devices.shape, batch.tokens.sharding.mesh.devices.shape)
        )
        return original(*arguments)

    monkeypatch.setattr(module, program, watched)
    state, metrics = train(parts, STEPS[name], mesh_of((1, 8, 1)), mesh_of((1, 2, 4)))
    assert met == [((1, 2, 4), (1, 2, 4))]
    assert_same(state, metrics, alone(name))


def test_gradients_are_split_like_their_parameters(parts):
    """Also where the loss alone would leave them whole on every device."""
    mesh, own = mesh_of((1, 8, 1)), parts[0].rules
    with jax.set_mesh(mesh):
        params = rules.place_params(jax.tree.map(jnp.array, parts[1]), own, mesh)
        state = start_state(params, OPTIMIZER, 0, mesh, own)
        update = distillation(parts, mesh, mesh)
        sums = update.start(state, rules.place_batch(parts[2], mesh))
    same = jax.tree.map(
        lambda g, p: g.sharding.is_equivalent_to(p.sharding, p.ndim), sums.gradients, state.params
    )
    assert all(jax.tree.leaves(same))


def test_gathered_weights_are_whole_over_fsdp(parts):
    mesh = mesh_of((1, 4, 2))
    with jax.set_mesh(mesh):
        params = rules.place_params(parts[1], parts[0].rules, mesh)
        gathered = rollout.gather_weights(params, parts[0].rules, jnp.bfloat16)
    up = gathered["language_model"]["layers_0"]["mlp"]["up"]["kernel"]
    assert up.dtype == jnp.bfloat16
    assert up.addressable_shards[0].data.shape == (up.shape[0], up.shape[1] // 2)
    assert gathered["router"]["query"]["kernel"].dtype == jnp.float32
    assert gathered["language_model"]["final_norm"]["scale"].dtype == jnp.float32


def test_frozen_weights_are_rounded_as_gathered_ones(parts, one_device):
    """q_ref in bfloat16 routes and norms as the drafter that it was does."""

    def init(key):
        del key
        return jax.tree.map(jnp.asarray, parts[1])

    own = parts[0].rules
    frozen = create_params(init, 0, one_device, own, jnp.bfloat16)
    with jax.set_mesh(one_device):
        gathered = rollout.gather_weights(parts[1], own, jnp.bfloat16)
    for path, leaf in traverse_util.flatten_dict(gathered, sep="/").items():
        other = traverse_util.flatten_dict(frozen, sep="/")[path]
        assert other.dtype == leaf.dtype, path
        np.testing.assert_array_equal(other, leaf, err_msg=path)
    assert frozen["router"]["query"]["kernel"].dtype == jnp.float32
