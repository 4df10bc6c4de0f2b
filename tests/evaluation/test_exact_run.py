"""Exact evaluation of drafters against the decoding loop, its report, and what is refused."""

import dataclasses
import importlib.util
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.assets import TINY_LLAVA
from tiger_jax import evaluate
from tiger_jax.data.batches import make_prompt
from tiger_jax.data.prompts import build_prompt
from tiger_jax.data.scenes import HELD_OUT, make_scene
from tiger_jax.decoding.costs import Costs
from tiger_jax.errors import UserError
from tiger_jax.evaluation import decoded_run, exact_pass, exact_report, exact_run, variants
from tiger_jax.evaluation.exact_acceptance import response_statistics, stack_responses
from tiger_jax.evaluation.exact_config import drafters_config
from tiger_jax.pipeline import Pipeline
from tiger_jax.routing.router import RouterConfig, init_router
from tiger_jax.weights.router_io import write_router

CONFIGS = sorted(
    path for folder in ("eval", "exact") for path in Path("configs", folder).glob("*.py")
)
WIDTH = 128
COSTS = Costs(plain_step=1.0, draft=0.5, round=1.6, draft_length=5)


@pytest.fixture(scope="module")
def routed(tmp_path_factory) -> Path:
    """The embedded drafter with a random router."""
    folder = tmp_path_factory.mktemp("routed") / "drafter"
    shutil.copytree(TINY_LLAVA / "drafter", folder)
    found = RouterConfig("tiger", routed_tokens=4, pooled_tokens=4)
    write_router(folder, found, init_router(jax.random.key(0), WIDTH))
    return folder


@pytest.fixture(scope="module")
def report(routed, tmp_path_factory) -> dict:
    """Two pictures, greedy, a full and a routed drafter, exactly and decoded for real."""
    config = drafters_config(
        ({"name": "full", "drafter": "embedded:full"}, {"name": "routed", "drafter": str(routed)}),
        scenes=2, temperatures=(0.0,), draft_lengths=(5, 8), batch_size=2, max_new_tokens=24,
        cache_dir=str(tmp_path_factory.mktemp("teacher")), teacher_batch=8, decode=True,
        decode_scenes=2, decode_draft_lengths=(5,), decode_batches=(4,),
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoded_run.costs, "measure", lambda *_: COSTS)
        found, text = exact_run.evaluate(config)
    return found | {"text": text}


def row_of(rows, **wanted):
    (row,) = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
    return row


@pytest.mark.parametrize("name", ["full", "routed"])
def test_exact_is_what_the_loop_counts_when_greedy(report, name):
    """At g = 5, out of one pass over blocks of 8."""
    exact = row_of(report["rows"], variant=name, g=5, kind="all")
    loop = row_of(report["decoded"], variant=name, g=5)
    assert loop["identical_to_plain"] is True
    assert (exact["rounds"], exact["tokens"]) == (loop["rounds"], loop["tokens"])
    assert exact["A"] == loop["A"] > 0
    assert (exact["p_ge_2"], exact["p_ge_4"]) == (loop["p_ge_2"], loop["p_ge_4"])
    assert (exact["p_ge_8"], loop["p_ge_8"]) == (None, None)  # not asked of rounds of 5 drafts
    assert row_of(report["rows"], variant=name, g=8, kind="all")["p_ge_8"] is not None
    assert (loop["exact_difference"], loop["agrees"]) == (0, True)


def test_the_two_drafters_differ(report):
    """Else the equality above would show nothing of routing."""
    rounds = [
        row_of(report["rows"], variant=name, g=5, kind="all")["rounds"]
        for name in ("full", "routed")
    ]
    assert rounds[1] > rounds[0] + 5


def test_rows_carry_what_a_table_needs(report, routed):
    assert len(report["rows"]) == 2 * 2 * 5
    total = row_of(report["rows"], variant="routed", g=5, kind="all")
    assert (total["drafter"], total["selector"], total["k"]) == (str(routed), "tiger", 4)
    assert (total["pooled"], total["trained_k"], total["prompts"]) == (4, 4, 8)
    assert row_of(report["rows"], variant="full", g=5, kind="all")["k"] is None
    kinds = [row for row in report["rows"] if row["variant"] == "routed" and row["g"] == 5]
    assert [row["kind"] for row in kinds] == ["read", "count", "attribute", "describe", "all"]
    for name in ("rounds", "tokens", "prompts"):
        assert sum(row[name] for row in kinds[:-1]) == total[name]
    decoded = row_of(report["decoded"], variant="routed", g=5)
    assert decoded["measured_speedup"] > 0
    assert decoded["predicted_speedup"] == pytest.approx(decoded["tau"] / (0.5 + 1.1))
    assert {"c", "c_route", "v", "hardware", "seed"} <= set(decoded)
    json.dumps(report)


def test_the_text_has_both_tables(report):
    lines = report["text"].splitlines()
    assert lines[0].startswith("| variant | selector |")
    assert [line.split("|")[1].strip() for line in lines[2:6]] == ["full"] * 2 + ["routed"] * 2
    assert '"full", paired by prompt' in report["text"]
    assert "identical to plain" in report["text"]
    assert "on 2 pictures, from number 1000 of those held out" in report["text"]
    with_clips = report | {"settings": report["settings"] | {"clips": 3}}
    assert "on 2 pictures and 3 clips, from number" in exact_report.text(with_clips)


def test_the_difference_is_own_minus_reference(report):
    full = row_of(report["rows"], variant="full", g=5, kind="all")
    own = row_of(report["rows"], variant="routed", g=5, kind="all")
    assert full["difference"] is None
    assert own["difference"] == pytest.approx(own["A"] - full["A"])
    assert own["difference"] < 0
    assert own["difference_error"] > 0


def test_points_of_the_figure(report):
    points = exact_report.k_points(report)
    assert [(p.routed_tokens, p.draft_length) for p in points] == [
        (None, 5), (None, 8), (4, 5), (4, 8)
    ]  # fmt: skip


def test_the_dashed_line_is_the_variant_named_full():
    row = {"kind": "all", "T": 0.0, "g": 5, "A_error": 0.1, "drafter": "d"}
    names = ("tiger", "full, supervised only", "full")
    rows = [
        row | {"variant": name, "selector": "tiger", "k": 8, "A": float(a)} if name == "tiger"
        else row | {"variant": name, "selector": "full", "k": None, "A": float(a)}
        for a, name in enumerate(names)
    ]  # fmt: skip
    for count, want in ((3, [0, 2]), (2, [0, 1])):
        assert [p.value for p in exact_report.k_points({"rows": rows[:count]})] == want


def test_the_first_pictures_are_not_reported_on(sampled):
    """They were looked at while the recipe was found; number 1000 of those held out is first."""
    pair, _, prompts, _ = sampled
    for number, same in ((0, False), (1000, True)):
        picture = make_scene(0, HELD_OUT + number).image
        text = build_prompt(pair.processor, "What is there?", 1)
        tiles = make_prompt(pair.processor, pair.config, text, [picture]).tiles
        assert np.array_equal(tiles, prompts[0].tiles) is same


@pytest.mark.parametrize(
    ("difference", "error", "greedy", "agrees"),
    [(0.01, 0.01, True, False), (0.0, None, True, True), (0.029, 0.01, False, True),
     (0.031, 0.01, False, False), (0.0, None, False, None), (None, None, True, None)],
)  # fmt: skip
def test_counted_and_exact_agree(difference, error, greedy, agrees):
    """Exactly when greedy: a hundredth of a draft within one standard error is a fault there."""
    assert decoded_run._agrees(difference, error, greedy) is agrees


@pytest.fixture(scope="module")
def sampled(routed):
    """A routed pair, and the verifier's answers to one picture at T = 0.7."""
    pair = Pipeline.load(TINY_LLAVA / "verifier", routed, draft_length=3)
    config = drafters_config(({"name": "a", "drafter": "b"},), scenes=1)
    held_out = exact_run.HeldOut.load(config, pair.processor)
    rng = np.random.default_rng(0)
    answers = [[*rng.integers(60, 300, n).tolist(), 2] for n in (3, 6, 0, 9)]
    prompts = [held_out.examples[0].prompt(q) for q in range(4)]
    return pair, held_out.examples[0], prompts, answers


def test_packed_questions_are_those_alone(sampled):
    """Four questions in one row, each in a row of its own: equal chances, not all 0 or 1."""
    pair, example, prompts, answers = sampled
    lengths, tokens = [len(a) for a in answers], np.concatenate(answers).astype(np.int32)
    empty = exact_pass.spoken_to(prompts[0], answers[0]).record
    together = exact_pass.spoken(
        example,
        empty._replace(
            lengths=np.array(lengths, np.int32),
            tokens=tokens,
            route_ids=np.zeros((len(tokens), 0), np.int32),
            route_weights=np.zeros((len(tokens), 0), np.float32),
        ),
    )
    alone = [exact_pass.spoken_to(*each) for each in zip(prompts, answers, strict=True)]
    found = []
    for items in ([together], alone):
        items = exact_pass.with_logprobs(pair.engine, items, 0.7, len(items))
        found.append(exact_pass.draft_chances(pair, items, 0.7, 3, len(items)))
    for one, other, length in zip(*found, lengths, strict=True):
        assert one.shape == other.shape == (length, 3)
        counted = np.arange(1, length + 1)[:, None] + np.arange(1, 4) <= length
        np.testing.assert_allclose(one * counted, other * counted, atol=1e-5)
    chances = np.concatenate([chance[:-1, 0] for chance in found[0]])
    assert ((chances > 1e-6) & (chances < 1 - 1e-6)).any()


def test_a_verifier_always_accepts_itself(sampled):
    pair, _, prompts, answers = sampled
    itself = Pipeline.load(TINY_LLAVA / "verifier", TINY_LLAVA / "verifier")
    items = [exact_pass.spoken_to(*each) for each in zip(prompts, answers, strict=True)]
    items = exact_pass.with_logprobs(itself.engine, items, 1.0, 4)
    accept, lengths = stack_responses(exact_pass.draft_chances(itself, items, 1.0, 3, 4))
    rounds = response_statistics(accept, lengths)
    np.testing.assert_allclose(rounds.expected_rounds, [1, 2, 0, 3], atol=1e-3)
    assert pair.router.routes


def test_the_verifiers_law_is_that_of_decoding(sampled):
    """log p_1 of the packed pass equals the log-probabilities that decoding reports."""
    pair, _, prompts, _ = sampled
    plain = pair.plain()
    options = exact_run.Options(max_new_tokens=8, temperature=1.0, seed=3)
    output = plain.engine.run(plain.arrays(prompts), [options] * 4)
    items = [
        exact_pass.spoken_to(p, o.tokens) for p, o in zip(prompts, output.outputs, strict=True)
    ]
    for item, said in zip(
        exact_pass.with_logprobs(pair.engine, items, 1.0, 4), output.outputs, strict=True
    ):
        np.testing.assert_allclose(item.record.logprobs, said.logprobs, atol=1e-4)


def test_a_missing_folder_is_one_line_before_any_work(tmp_path, capsys):
    line = ["--config", "configs/exact/objectives.py", f"--config.runs={tmp_path}",
            f"--config.cache_dir={tmp_path / 'teacher'}"]  # fmt: skip
    assert evaluate.main(line) == 2
    err = capsys.readouterr().err
    assert err == (
        "error: variant control: more KD: expected a drafter's folder, "
        f"got {tmp_path}/kd_more/export\n"
    )
    assert not (tmp_path / "teacher").exists()


def test_heads_that_a_pair_has_not_may_be_left_out(routed, tmp_path):
    wanted = ({"name": "a", "drafter": "embedded:eagle2"}, {"name": "b", "drafter": str(routed)})
    asked = ((), str(tmp_path))
    found, missing = variants.find(wanted, *asked, skip_missing=True, pair="tiny_qwen3_vl")
    assert ([v.name for v in found], missing) == (["b"], ["a"])
    with pytest.raises(UserError, match="drafter kind: expected one of vlm for tiny_qwen3_vl"):
        variants.find(wanted, *asked, pair="tiny_qwen3_vl")


def test_missing_folders_may_be_left_out(routed, tmp_path):
    wanted = ({"name": "a", "drafter": "run:a"}, {"name": "b", "drafter": str(routed)})
    found, missing = variants.find(wanted, (), str(tmp_path), skip_missing=True)
    assert ([v.name for v in found], missing) == (["b"], ["a"])
    with pytest.raises(UserError, match="expected at least one with a folder, got a"):
        variants.find(wanted[:1], (), str(tmp_path), skip_missing=True)
    with pytest.raises(UserError, match="variant typo: expected a drafter's folder"):
        variants.find(wanted, ("run:typo",), str(tmp_path), skip_missing=True)


def test_variants_are_run_as_asked(routed):
    wanted = (
        {"name": "own", "drafter": str(routed)},
        {"name": "k", "drafter": str(routed), "routed_tokens": 8},
        {"name": "random", "drafter": str(routed), "selector": "random"},
    )
    own, k, random, more = variants.find(wanted, (str(routed),), "runs")[0]
    assert own.router == own.trained == more.router
    assert more.name == "drafter"
    assert k.router == dataclasses.replace(own.router, routed_tokens=8)
    assert random.router.selector == "random"
    assert variants.folder("run:kd", "there") == Path("there/kd/export")


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ((), "variants: expected at least one"),
        (({"name": "a"},), "variants: expected a drafter in each"),
        (({"name": "a", "drafter": "b", "k": 3},), "expected only the fields .*, got k"),
        (({"name": "a", "drafter": "b"},) * 2, "expected different names, got a twice"),
        (({"name": "a", "drafter": "embedded:full", "selector": "tiger"},), "variant a: selector"),
    ],
)
def test_wrong_variants(wanted, message):
    with pytest.raises(UserError, match=message):
        variants.find(wanted, (), "runs")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_config_is_one_that_can_run(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = module.get_config()
    task = importlib.import_module(f"tiger_jax.evaluation.{evaluate.TASKS[config.task]}")
    getattr(task, "check", lambda config: None)(config)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("temperatures", (), "temperatures: expected at least one"),
        ("draft_lengths", (0,), "draft_lengths: expected at least 1, got 0"),
        ("decode_draft_lengths", (3,), r"decode_draft_lengths: expected some of \(5, 8\), got 3"),
        ("hard_share", 1.5, "hard_share: expected 0..1"),
        ("first_scene", -1, "first_scene: expected at least 0, got -1"),
        ("dtype", "int8", "dtype: expected"),
        ("plot", "none/at/all.png", "plot: expected a file in a writable folder"),
        ("kinds", ("smell",), "kinds: expected some of"),
    ],
)
def test_wrong_fields(field, value, message):
    config = drafters_config(({"name": "a", "drafter": "b"},), **{field: value})
    with pytest.raises(UserError, match=message):
        exact_run.check(config)
