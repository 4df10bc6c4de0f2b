"""Answers to scenes: counting, and two pictures end to end."""

import json

import ml_collections
import numpy as np
import pytest

from tests.assets import TINY_LLAVA
from tiger_jax import embedded, evaluate
from tiger_jax.data.images import load_image
from tiger_jax.data.records import Request
from tiger_jax.decoding.costs import Costs
from tiger_jax.decoding.engine import Options, Output
from tiger_jax.evaluation import scene_prompts, scene_report, scene_run
from tiger_jax.evaluation.scene_run import Cell, CellKey, Judged
from tiger_jax.pipeline import Pipeline


def _output(text: str, tokens: list[int], accepted: list[int]) -> Output:
    return Output(
        text=text, tokens=tokens, logprobs=[], finish_reason="stop", rounds=len(accepted),
        drafted=0, accepted_lengths=accepted,
    )  # fmt: skip


def _cell(kind: str, *judged: Judged) -> Cell:
    return Cell(CellKey(0.0, "easy", kind), list(judged), seconds=2.0, plain_seconds=3.0)


def test_questions_are_held_out_and_of_the_asked_kinds():
    found = list(scene_prompts.questions(2, 0, ("read", "describe"), "hard"))
    assert [q.id for q in found] == [
        "hard 1000000 read", "hard 1000000 describe", "hard 1000001 read", "hard 1000001 describe",
    ]  # fmt: skip


def test_judging_compares_facts_and_tokens():
    (question,) = scene_prompts.questions(1, 0, ("count",))
    right = _output(question.qa.answer, [5, 6, 2], [1])
    wrong = _output("13 of them.", [5, 2], [0])
    judged = scene_run.judge(question, right, right, wrong, greedy=True)
    assert (judged.correct, judged.drafter_correct, judged.identical) == (True, False, True)
    judged = scene_run.judge(question, wrong, right, None, greedy=True)
    assert (judged.correct, judged.drafter_correct, judged.identical) == (False, None, False)
    assert scene_run.judge(question, wrong, right, None, greedy=False).identical is None


def test_a_row_counts_answers_and_rounds():
    a = Judged("a", True, 7, (1, 2), False, True)
    b = Judged("b", False, 6, (3,), True, True)
    cells = [_cell("read", a, b), _cell("count", Judged("b", True, 6, (5,), True, True))]
    cost = Costs(plain_step=1.0, draft=0.5, round=1.6, draft_length=5)
    row = scene_report.summarise(cells, cost, 5)
    assert (row["prompts"], row["rounds"], row["tokens"]) == (3, 4, 19)
    assert row["verifier_exact"] == pytest.approx(2 / 3)
    assert row["drafter_exact"] == pytest.approx(2 / 3)
    # m = 11/4, sums of residuals a: -2.5, b: 2.5 (see test_standard_error)
    assert (row["A"], row["A_error"]) == (2.75, 1.25)
    assert (row["p_ge_2"], row["p_ge_4"], row["p_ge_8"]) == (0.75, 0.25, None)  # g = 5
    assert scene_report.summarise(cells, None, 8)["p_ge_8"] == 0.0
    assert row["measured_speedup"] == pytest.approx(6 / 4)
    assert row["predicted_speedup"] == pytest.approx(3.75 / (5 * 0.1 + 1.1))
    assert row["identical_to_plain"] is True


def test_one_different_answer_shows():
    cells = [_cell("read", Judged("a", True, 7, (1,), True, True)),
             _cell("count", Judged("a", True, 7, (1,), True, False))]  # fmt: skip
    report = scene_report.build(cells, {}, {"scenes": 1, "batch_size": 1, "draft_length": 5}, "cpu")
    assert [row["identical_to_plain"] for row in report["rows"]] == [True, False, False]
    lines = scene_report.text(report).splitlines()
    assert [line.split("|")[-2].strip() for line in lines[2:5]] == ["yes", "NO", "NO"]


def test_a_scene_prompt_equals_that_of_a_picture_file(pair, tmp_path):
    from PIL import Image

    pipeline = Pipeline.load(pair[0])
    (question,) = scene_prompts.questions(1, 0, ("describe",))
    path = tmp_path / "scene.png"
    Image.fromarray(question.scene.image).save(path)
    assert np.array_equal(np.asarray(load_image(path)), question.scene.image)
    request = Request("1", question.qa.question, images=(str(path),))
    theirs = pipeline.prepare(request, Options()).inputs
    ours = scene_prompts.prepare(pipeline, question, Options()).inputs
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)


def _run(tmp_path, verifier, drafter, *more: str) -> dict:
    path = tmp_path / "report.json"
    code = evaluate.main([
        "--config", "configs/eval/scenes.py", f"--config.verifier={verifier}",
        f"--config.drafter={drafter}", "--config.scenes=2", "--config.batch_size=2",
        "--config.max_new_tokens=8", "--config.draft_length=3", f"--config.report={path}", *more,
    ])  # fmt: skip
    assert code == 0
    return json.loads(path.read_text())


def test_two_scenes_end_to_end(pair, tmp_path, capsys):
    report = _run(tmp_path, *pair, "--config.difficulties=('easy',)",
                  "--config.kinds=('read', 'describe')")  # fmt: skip
    assert [row["kind"] for row in report["rows"]] == ["read", "describe", "all"]
    total = report["rows"][-1]
    assert (total["prompts"], total["tokens"]) == (4, 4 * 8)  # this pair never ends an answer
    assert total["identical_to_plain"] is True
    # tau * rounds = tokens behind the first of each answer
    assert (total["A"] + 1) * total["rounds"] == pytest.approx(4 * 7)
    assert report["costs"][0]["draft_length"] == 3
    out, err = capsys.readouterr()
    assert out.startswith("| scenes |   T | question | prompts |")
    assert "4/4 prompts" in err


def test_a_drafter_that_routes_never_answers_alone():
    """Its weights saw all visual tokens in no step of training."""
    for drafter, speculative, alone in (
        (embedded.drafter(kind="vlm"), True, False), (embedded.drafter("full"), True, True),
        ("none", False, False),
    ):  # fmt: skip
        fields = {"verifier": str(TINY_LLAVA / "verifier"), "drafter": str(drafter), "dtype": ""}
        config = ml_collections.ConfigDict(fields | {"draft_length": 5, "draft_confidence": 0.0})
        decoders = scene_run.Decoders.load(config)
        assert (decoders.speculative, decoders.drafter is not None) == (speculative, alone)


def test_the_verifier_as_its_own_drafter_accepts_everything(pair, tmp_path):
    report = _run(tmp_path, pair[0], pair[0], "--config.difficulties=('hard',)",
                  "--config.kinds=('count',)")  # fmt: skip
    # 7 tokens behind the first: rounds of 3 + 1, then 3 (cut at the limit)
    assert report["rows"][-1]["rounds"] == 2 * 2
    assert report["rows"][-1]["A"] == 3


def test_without_a_drafter_only_answers_are_judged(pair, tmp_path):
    report = _run(tmp_path, pair[0], "none", "--config.kinds=('read',)",
                  "--config.difficulties=('easy',)")  # fmt: skip
    row = report["rows"][-1]
    assert (row["prompts"], row["rounds"], row["A"], row["drafter_exact"]) == (2, 0, None, None)
    assert row["verifier_exact"] == 0
    assert report["costs"] == []
