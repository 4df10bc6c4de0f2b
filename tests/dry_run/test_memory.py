"""Bytes of a device by hand: sharded weights, waiting arrays, and what decides whether it fits."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax import ShapeDtypeStruct as Shape
from jax.sharding import NamedSharding, PartitionSpec

from configs import kd
from tiger_jax.dry_run import report
from tiger_jax.dry_run.cards import CARDS, find_card
from tiger_jax.dry_run.compiler import Compiler
from tiger_jax.dry_run.measure import Measured, measure
from tiger_jax.dry_run.parts import KINDS, Part, device_bytes, join, sum_kinds
from tiger_jax.dry_run.program_costs import Traffic
from tiger_jax.dry_run.training_plan import Plan
from tiger_jax.errors import UserError

A40 = CARDS["a40"]


@pytest.fixture
def compiler(on_cpu):
    return Compiler.choose(A40, 8)


@pytest.fixture
def mesh(compiler):
    return compiler.mesh({"data": 1, "fsdp": 4, "tensor": 2})


def put(mesh, shape, *axes, dtype=jnp.float32):
    return Shape(shape, dtype, sharding=NamedSharding(mesh, PartitionSpec(*axes)))


def test_a_device_holds_its_part_of_each_array(mesh):
    split, half, whole = (
        put(mesh, (16, 6), "fsdp", "tensor"),
        put(mesh, (10, 6), None, "tensor", dtype=jnp.bfloat16),
        put(mesh, (5,)),
    )
    assert device_bytes(split) == 4 * 4 * 3
    assert device_bytes((half, whole)) == 2 * 10 * 3 + 4 * 5
    assert device_bytes(Shape((), jax.random.key(0).dtype)) == 8
    kinds = sum_kinds({"masters": split, "batch": whole}, join({"batch": half}, {"batch": whole}))
    assert kinds["masters"] == 48
    assert kinds["batch"] == 20 + 60 + 20
    assert kinds["caches"] == 0


def test_masters_of_the_embedded_drafter_by_hand(compiler):
    config = kd.get_config()
    with config.unlocked():
        config.mesh = {"data": 1, "fsdp": 4, "tensor": 2}
    plan = Plan(config, compiler)
    text = plan.drafter.model.config.text
    width, inner, vocabulary = text.hidden_size, text.intermediate_size, text.vocab_size
    language = plan.state.params["language_model"]
    # norms lie whole on every device; matrices of a layer, in float32, are cut into eight
    assert device_bytes(language["layers_0"]["mlp"]) == 3 * 4 * width * inner / 8
    assert device_bytes(language["layers_0"]["input_norm"]) == 4 * width
    assert device_bytes(language["embed_tokens"]) == 4 * vocabulary * width / 8
    # two moments and a counter for each of what is trained; the tower is frozen
    rest = {name: part for name, part in plan.state.params.items() if name != "vision_tower"}
    moments = device_bytes(plan.state.opt_state)
    assert 2 * device_bytes(rest) <= moments <= 2 * device_bytes(rest) + 64
    # the verifier in the compute dtype of this config, float32; the reference like the masters
    assert device_bytes(plan.reference_params) == device_bytes(plan.state.params)


def test_what_waits_and_what_is_made_counts_in_the_peak(compiler, mesh):
    weight, rows = put(mesh, (64, 64), None, "tensor"), put(mesh, (8, 64), "fsdp")
    part = Part(
        "product", jax.jit(lambda w, x: x @ w), (weight, rows), mesh,
        {"parameters": weight, "batch": rows}, least_bytes=1.0,
        waiting={"moments": put(mesh, (1000,)), "masters": put(mesh, (16, 16), "fsdp")},
    )  # fmt: skip
    row = measure(part, compiler)
    assert row.kinds["parameters"] == 4 * 64 * 32
    assert row.kinds["batch"] == 4 * 2 * 64
    assert row.waiting == 4 * 1000 + 4 * 4 * 16
    assert row.peak == sum(row.kinds.values()) + row.results + row.temporaries
    assert row.peak >= 4 * (64 * 32 + 2 * 64 + 1000 + 64)
    # whatever way the products are cut, a device does an eighth of them
    assert row.flops == 2 * 8 * 64 * 64 / 8


def test_the_verdict_names_what_is_largest_and_how_much_is_spare():
    small, large = (measured(name, size) for name, size in (("small", 10e9), ("large", 44e9)))
    said, fits = report.verdict([large, small], A40)
    assert fits
    assert "the largest is large with 44.0 GB, 8% to spare; less than 15% to spare" in said
    said, fits = report.verdict([small], A40)
    assert fits
    assert "79% to spare" in said
    assert "less than" not in said
    said, fits = report.verdict([small, measured("huge", 60e9)], A40)
    assert not fits
    assert said.startswith("does not fit A40 (47.8 GB): the largest is huge")


def test_a_roofline_takes_the_slower_of_two_and_adds_the_link():
    row = measured("step", 1e9)
    row = dataclasses.replace(
        row, flops=150e12, moved=348e9, traffic={"all-reduce": Traffic(1, 10, 50e9)}
    )
    assert row.seconds == pytest.approx(1.0 + 2.0)  # 0.5 s of memory hide behind the products
    assert dataclasses.replace(row, moved=1392e9).seconds == pytest.approx(2.0 + 2.0)


def test_the_table_shows_every_column():
    row = dataclasses.replace(
        measured("step", 60e9), traffic={"all-gather": Traffic(3, 10**9, 2e9)}, flops=2e12,
        moved=3e9, least=2e9,
    )  # fmt: skip
    text = report.tables([row])
    memory, work = (line for line in text.splitlines() if line.startswith("| step"))
    assert "60.00" in memory
    assert "NO" in memory
    cells = [cell.strip() for cell in work.split("|")]
    assert cells[2:7] == ["2", "3.00", "2.00", "1.50", "7"]
    assert cells[7] == "3 all-gather 1.00 GB"


def test_an_unknown_card_is_refused():
    with pytest.raises(UserError, match="card: expected one of a40, h200, got 'b9'"):
        find_card("b9")


def measured(name, size):
    kinds = dict.fromkeys(KINDS, 0) | {"parameters": int(size)}
    return Measured(
        name=name, card=A40, kinds=kinds, waiting=0, results=0, temporaries=0,
        flops=0.0, moved=0.0, least=0.0, traffic={}, kernels=7, times=1,
    )  # fmt: skip
