"""Sharding rules: complete, strict both ways, and honest about dimensions that do not divide."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tiger_jax.models.interface import build_model
from tiger_jax.models.llava_next import RULES as LLAVA_NEXT_RULES
from tiger_jax.sharding import rules
from tiger_jax.sharding.mesh import make_mesh
from tiger_jax.testing.tiny import tiny_config


@pytest.fixture(scope="module")
def params():
    return build_model(tiny_config()).abstract_params()


def test_every_parameter_has_a_rule(params):
    axes = rules.logical_axes(params, LLAVA_NEXT_RULES)
    assert axes["language_model/layers_1/mlp/down/kernel"] == ("mlp", "embed")
    assert axes["language_model/layers_0/input_norm/scale"] == (None,)
    assert axes["vision_tower/layers_2/norm1/bias"] == (None,)
    assert axes["language_model/lm_head/kernel"] == ("embed", "vocab")


def test_a_parameter_without_a_rule_is_named(params):
    with pytest.raises(ValueError, match="extra/kernel: no sharding rule matches"):
        rules.logical_axes(params | {"extra": {"kernel": jnp.ones(2)}}, LLAVA_NEXT_RULES)


def test_an_idle_rule_is_named(params):
    idle = (*LLAVA_NEXT_RULES, rules.ParamRule("router/kernel", (None, None)))
    with pytest.raises(ValueError, match="rule 'router/kernel' matches no parameter"):
        rules.logical_axes(params, idle)


def test_a_tied_model_may_lack_the_head(params):
    text = {k: v for k, v in params["language_model"].items() if k != "lm_head"}
    rules.logical_axes(params | {"language_model": text}, LLAVA_NEXT_RULES)


def test_a_rule_of_the_wrong_rank_is_named():
    with pytest.raises(ValueError, match=r"a: rule 'a' has 2 axes, the shape is \(3,\)"):
        rules.logical_axes({"a": jnp.ones(3)}, (rules.ParamRule("a", (None, None)),))


def test_all_faults_come_at_once():
    with pytest.raises(ValueError, match=r"a: no sharding.*b: no sharding.*'c' matches no"):
        rules.logical_axes({"a": 1, "b": 2}, (rules.ParamRule("c", ()),))


def test_dimensions_that_do_not_divide_are_replicated():
    mesh = make_mesh({"data": 1, "fsdp": 2, "tensor": 4})
    assert rules.spec_for((6, 8), ("embed", "heads"), mesh) == P("fsdp", "tensor")
    assert rules.spec_for((6, 6), ("embed", "heads"), mesh) == P("fsdp", None)
    assert rules.spec_for((7, 8), ("embed", "heads"), mesh) == P(None, "tensor")
    assert rules.spec_for((7,), (None,), mesh) == P(None)


def test_states_follow_their_parameters():
    mesh = make_mesh({"data": 1, "fsdp": 8, "tensor": 1})
    axes = {"a/kernel": ("embed", None)}
    state = ({"count": jnp.zeros(())}, {"mu": {"a": {"kernel": jnp.zeros((8, 2))}}})
    shardings = rules.tree_shardings(state, axes, mesh)
    assert shardings[0]["count"].spec == P()
    assert shardings[1]["mu"]["a"]["kernel"].spec == P("fsdp", None)


def test_constrain_needs_no_mesh_and_obeys_one():
    x = jnp.ones((8, 2))
    assert rules.constrain(x, "batch", None) is x
    mesh = make_mesh({"data": 8})
    with jax.set_mesh(mesh):
        y = jax.jit(lambda x: rules.constrain(x, "batch", None))(x)
    wanted = NamedSharding(mesh, P(("data", "fsdp"), None))
    assert y.sharding.is_equivalent_to(wanted, 2)
    assert rules.batch_parts(mesh) == 8
