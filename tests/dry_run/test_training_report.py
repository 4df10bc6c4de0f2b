"""Dry runs of the embedded pair on virtual CPU devices: every program of a run, and the verdict."""

import dataclasses
import json

import pytest

from configs import grpo, kd
from tiger_jax.dry_run import cards, training
from tiger_jax.dry_run.compiler import Compiler
from tiger_jax.dry_run.decoding import report_decoding
from tiger_jax.dry_run.parts import device_bytes, sum_kinds
from tiger_jax.dry_run.training import report_training
from tiger_jax.dry_run.training_parts import answering_parts, training_parts
from tiger_jax.dry_run.training_plan import Plan
from tiger_jax.errors import UserError
from tiger_jax.testing.qwen3_vl_configs import tiny_config_json


def small(module, **fields):
    """A short run on a mesh of (4 x 2) whose models have one layer."""
    config = module.get_config()
    with config.unlocked():
        config.update({
            "mesh": {"data": 1, "fsdp": 4, "tensor": 2}, "verifier_mesh": {"tensor": 8},
            "answer_mesh": {"tensor": 8}, "batch": 4, "accumulate": 2, "max_length": 32,
            "draft_length": 4, "teacher_batch": 4, "remat": True, "dry_run_layers": 1, **fields,
        })  # fmt: skip
        config.teacher.max_new_tokens = 8
    return config


@pytest.fixture
def tiny_card(monkeypatch):
    """A card with 5 MB."""
    card = dataclasses.replace(cards.CARDS["a40"], name="tiny", memory_bytes=5e6)
    monkeypatch.setitem(cards.CARDS, "tiny", card)


def test_every_program_of_alignment_traces_and_counts_what_waits(on_cpu):
    config = small(grpo)
    config.align.objective = "grpo"
    plan = Plan(config, Compiler.choose(cards.CARDS["a40"], 8), config.dry_run_layers)
    parts = {part.name: part for part in training_parts(plan)}
    assert list(parts) == [
        "alignment: weights gathered", "alignment: rollout", "alignment: verifier",
        "alignment: scoring", "alignment: first micro-batch", "alignment: further micro-batch",
        "alignment: optimizer",
    ]  # fmt: skip
    verifier, reference = map(device_bytes, (plan.verifier_params, plan.reference_params))
    state = device_bytes(plan.state.params) + device_bytes(plan.state.opt_state)
    gathered = device_bytes(parts["alignment: rollout"].given["parameters"])
    # The verifier lies on eight devices in eighths; the gathered drafter is cut in two instead.
    assert gathered > 2 * reference
    models = {"rollout": gathered, "verifier": gathered, "scoring": gathered}
    for name, part in parts.items():
        kinds = sum_kinds(part.given, part.waiting)
        own = models.get(name.removeprefix("alignment: "), 0)
        assert kinds["parameters"] == verifier + reference + own, name
        assert kinds["masters"] + kinds["moments"] == state, name
    assert sum_kinds(parts["alignment: optimizer"].given)["gradients"] == device_bytes(
        plan.state.params
    )
    for part in parts.values():
        assert "stablehlo" in part.lower().as_text()[:10_000]


DEPTH = 3


@pytest.fixture
def qwen_pair(tmp_path):
    """Fields of a run with a small Qwen3-VL pair of which only config.json is there."""
    for role, tied in (("verifier", False), ("model", True)):
        raw = tiny_config_json(tied=tied, layers=4, depth=DEPTH)
        raw["text_config"]["max_position_embeddings"] = 512
        (tmp_path / role).mkdir()
        (tmp_path / role / "config.json").write_text(json.dumps(raw))
    return {role: str(tmp_path / role) for role in ("verifier", "model")}


@pytest.mark.parametrize("module", [kd, grpo])
def test_every_program_of_a_qwen_pair_traces(on_cpu, qwen_pair, module):
    config = small(module, **qwen_pair)
    if module is grpo:
        config.align.objective = "grpo"
    plan = Plan(config, Compiler.choose(cards.CARDS["a40"], 8), config.dry_run_layers)
    assert plan.batch.prefix_positions.shape == (4, plan.longest.prefix, 3)
    answering = answering_parts(plan) if module is kd else []
    for part in (*answering, *training_parts(plan)):
        assert "stablehlo" in part.lower().as_text()[:10_000], part.name


def test_a_frozen_tower_has_no_backward_pass(on_cpu, qwen_pair):
    products = []
    for freeze in (("vision_tower/",), ()):
        config = small(kd, **qwen_pair, freeze=freeze)
        plan = Plan(config, Compiler.choose(cards.CARDS["a40"], 8), config.dry_run_layers)
        text = training_parts(plan)[0].lower().as_text()
        products.append(text.count("stablehlo.dot_general"))
    # Two more for each of the six of a block; its attention's are computed anew besides.
    assert products[1] - products[0] >= 2 * 6 * DEPTH


def test_a_run_that_does_not_fit_says_so(on_cpu, tiny_card):
    text, fits = report_training(small(kd, accumulate=1, dry_run_card="tiny"))
    assert not fits
    assert "XLA's CPU compiler" in text
    assert "upper bounds" in text
    assert "verifier on data=1, fsdp=1, tensor=8" in text
    for program in (
        "answers: prefill", "answers: plain step", "answers: laws and attention",
        "KD: first micro-batch", "KD: optimizer",
    ):  # fmt: skip
        assert sum(f"| {program} " in line for line in text.splitlines()) == 2, program
    assert "prediction (rooflines added up" in text
    assert "does not fit tiny (0.0 GB)" in text
    assert "KD: further" not in text  # a step has one micro-batch
    assert "NO" in text


@pytest.mark.parametrize(
    ("first", "each", "found"),
    # 40.63 GB are to be filled: 10 + 2.5 n up to n = 12, 60 + n never, 40 + 0.001 n to the end
    [(10e9, 2.5e9, "12 (40.0 GB)"), (60e9, 1e9, "none"), (40e9, 1e6, "64 (40.1 GB)")],
)
def test_the_largest_micro_batch_is_found_from_two_sizes(on_cpu, monkeypatch, first, each, found):
    asked = []

    def growing(plan, batch):
        asked.append(batch)
        return batch

    monkeypatch.setattr(training, "_growing_parts", growing)
    monkeypatch.setattr(training, "measure_all", lambda batch, _: batch)
    monkeypatch.setattr(training, "_peak", lambda batch: first + each * batch)
    plan = Plan(small(kd), Compiler.choose(cards.CARDS["a40"], 8))
    said = training._largest(plan, plan.config.batch)
    assert said == f"largest micro-batch with 15% to spare: {found}"
    assert len(asked) <= 4


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dry_run_card": "b9"}, "card: expected one of a40, h200, got 'b9'"),
        ({"objective": "sft"}, "dry run: expected objective distill or align, got 'sft'"),
        ({"batch": 3}, r"batch: expected a multiple of data \* fsdp = 4, got 3"),
        ({"mesh": {"data": 3}}, "mesh: data=3, fsdp=1, tensor=1 is 3 devices, got 8"),
        ({"model": "no/such"}, "dry run: expected a Hugging Face folder or one of"),
    ],
)
def test_bad_input_is_refused(on_cpu, fields, message):
    config = small(kd)
    with config.unlocked():
        for name, value in fields.items():
            config[name] = value
    with pytest.raises(UserError, match=message):
        report_training(config)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pair": "other"}, "--pair: expected one of llava_next, qwen3_vl, got 'other'"),
        ({"card": "b9"}, "card: expected one of a40, h200, got 'b9'"),
        ({"batch": 0}, "--batch: expected at least 1, got 0"),
        ({"draft_length": 0}, "--draft-length: expected at least 1, got 0"),
        ({"mesh": {"tensor": -1}}, "--mesh: expected the size of each axis"),
    ],
)
def test_bad_decoding_is_refused(on_cpu, fields, message):
    with pytest.raises(UserError, match=message):
        report_decoding(**fields)
