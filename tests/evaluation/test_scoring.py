"""Scores of a sample's answers, their parse, and the paper's tables made of rows."""

import shutil

import pytest

from tiger_jax.evaluation import benchmark_report, benchmark_tables, scoring
from tiger_jax.evaluation.benchmark_config import ENTRY
from tiger_jax.evaluation.questions import Question, ScenePlace
from tiger_jax.evaluation.sample import Sample
from tiger_jax.metrics.item import Item


class _Named:
    split = "test"

    def __init__(self, name):
        self.name = name

    def __iter__(self):
        return iter(())


def _sample(name, *golds, sizes=None) -> Sample:
    questions = tuple(
        Question(gold.uid if isinstance(gold, Item) else f"{name}/{i}", "g", "Q?", 8, gold=gold)
        for i, gold in enumerate(golds)
    )
    entry = ENTRY | {"label": name}
    return Sample(entry, _Named(name), questions, len(golds), {}, (), sizes or {})


def _scored(sample, *texts):
    answers = dict(zip(sample.uids, texts, strict=False))
    return scoring.score(sample, answers), [one["parse"] for one in scoring.raw(sample, answers)]


def test_textvqa_is_scored_by_vqa_accuracy():
    golds = ("nous les gosses", *["dakota"] * 5, "clos culombu", *["dakota digital"] * 3)
    sample = _sample("textvqa", *(Item(uid, None, golds) for uid in "abc"))
    found, parses = _scored(sample, "The Dakota.", "dakota digital", "a car")
    assert found.headline == "vqa_accuracy"
    assert found.value == pytest.approx((1.0 + 0.9 + 0.0) / 3)  # data.md 3.2
    assert parses == ["dakota", "dakota digital", "car"]


def test_a_question_without_an_answer_is_left_out():
    sample = _sample("docvqa", *(Item(uid, None, ("itc limited",)) for uid in "ab"))
    found, _ = _scored(sample, "itc ltd")
    assert (found.headline, found.metrics["n"]) == ("anls", 1)
    assert found.value == pytest.approx(0.6364, abs=1e-4)  # data.md 3.4
    nothing = scoring.score(sample, {})
    assert (nothing.value, nothing.reason) == (None, "nothing was answered")


def test_letters_are_parsed_and_a_failed_parse_shows():
    sample = _sample("scienceqa", *(
        Item(uid, None, (), "B", ("a fern", "a mushroom"), {}, 1) for uid in "abc"
    ))  # fmt: skip
    found, parses = _scored(sample, "B. mushroom", "The answer is B.", "mushroom it is")
    assert found.value == pytest.approx(2 / 3)
    assert found.metrics["unparsed"] == 1
    assert parses == ["B", "B", None]
    assert scoring.raw(sample, {"a": "B"})[0]["gold"] == "B"


def test_hidden_golds_are_a_reason_and_no_number():
    sample = _sample("docvqa", Item("a", None, ()))
    found, _ = _scored(sample, "1987")
    assert found.value is None
    assert found.reason


def test_consistency_needs_whole_groups():
    def items(*identifiers):
        return [
            Item(name, None, (), "True", None, {"identifier": name, "group": "dev-850-0"})
            for name in identifiers
        ]

    sizes = {"dev-850-0": 2}
    whole = _sample("nlvr2", *items("dev-850-0-0", "dev-850-1-0"), sizes=sizes)
    found, parses = _scored(whole, "True", "true.")
    assert found.metrics["consistency"] == 1.0
    assert parses == ["True", "True"]
    part = _sample("nlvr2", *items("dev-850-0-0"), sizes=sizes)
    found, _ = _scored(part, "True")
    assert (found.value, found.metrics["consistency"]) == (1.0, None)


def test_captions_without_java_are_one_clear_line(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    gold = Item("a", None, ("a dog runs", "a dog"), None, None, {"image_id": 1})
    found, _ = _scored(_sample("coco_captions", gold), "a dog runs")
    assert found.value is None
    assert "JRE" in found.reason
    assert found.metrics["n"] == 1


def test_scenes_and_examples_are_exact_matches():
    place = ScenePlace(0, 1_000_001, "count", hard=False)
    asked = place.asked
    question = Question("scenes/held_out/1000001/count", "g", asked.qa.question, 8, gold=place)
    scenes = Sample(ENTRY | {"label": "s"}, _Named("scenes"), (question,), 1, {}, (), {})
    found, parses = _scored(scenes, asked.qa.answer)
    assert (found.value, found.metrics["exact_match_count"], parses) == (1.0, 1.0, ["right"])
    assert scoring.raw(scenes, {question.uid: "13 of them."})[0]["parse"] == "wrong"
    examples = _sample("examples", ("red", "dark red"), ("two",))
    found, parses = _scored(examples, "Dark  red.", "three")
    assert (found.headline, found.value) == ("exact_match", 0.5)
    assert parses == ["dark red", "three"]


def test_answers_for_judges_are_named_as_they_want_them():
    golds = [Item(name, None, ("x",), "x", None, {"id": name[2:]}) for name in ("m/v1_0", "m/v1_1")]
    assert scoring.for_judges(_sample("mm_vet", *golds), {"m/v1_1": "five"}) == {"v1_1": "five"}
    page = _sample("docvqa", Item("docvqa/test/57349/0", None))
    assert scoring.for_judges(page, {"docvqa/test/57349/0": "1987"}) == [
        {"questionId": "57349", "answer": "1987"}
    ]
    photo = _sample("coco_captions", Item("c", None, ("x",), None, None, {"image_id": 9}))
    assert scoring.for_judges(photo, {"c": "a dog"}) == [{"image_id": 9, "caption": "a dog"}]
    assert scoring.for_judges(_sample("textvqa", Item("t", None, ("x",))), {"t": "x"}) is None


def _row(variant, mode, label="COCO", **more):
    drafts = variant != "plain"
    row = {
        "variant": variant, "drafter": "d" if drafts else None, "alone": False, "label": label,
        "mode": mode, "T": 0.0, "batch": 1, "g": 5 if drafts else 0, "k": 8 if drafts else None,
        "trained_k": 8 if drafts else None, "selector": "tiger" if drafts else None,
        "metric": None, "value": None, "peak_bytes": 2_000_000_000,
    }  # fmt: skip
    return row | more


def _cells(text, start):
    line = next(line for line in text.splitlines() if line.startswith(f"| {start}"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_table_joins_speed_score_and_the_drafter_alone():
    speed = {"A": 3.371, "measured_speedup": 1.25, "rounds": 10, "rounds_a_response": 2.5}
    rows = [
        _row("plain", "score", value=0.75, metric="CIDEr"),
        _row("TIGER", "speed", **speed),
        _row("TIGER", "score", value=0.75, metric="CIDEr"),
        _row("TIGER, alone", "score", alone=True, value=0.5, metric="CIDEr"),
    ]
    text = benchmark_tables.text({"table": "adapter_pruning", "rows": rows})
    assert _cells(text, "TIGER ") == ["TIGER", "3.37", "1.25x", "0.800", "0.750", "0.500"]
    assert "| TIGER, alone" not in text
    text = benchmark_tables.text({"table": "ablation", "rows": rows})
    assert _cells(text, "TIGER ") == ["TIGER", "3.37", "1.25x", "2.5", "0.800"]
    text = benchmark_tables.text({"table": "capability", "rows": rows})
    assert _cells(text, "COCO ") == [
        "COCO", "TIGER", "CIDEr", "0.750", "0.750", "0.500", "3.37", "1.25x",
    ]  # fmt: skip


def test_latencies_of_batches_are_over_plain_decoding_at_the_smallest():
    rows = [
        row
        for batch, plain, own in ((1, 2.0, 1.0), (8, 0.5, 0.4))
        for row in (
            _row("plain", "speed", batch=batch, seconds_a_sample=plain),
            _row("TIGER", "speed", batch=batch, seconds_a_sample=own, measured_speedup=plain / own,
                 peak_bytes=3_000_000_000),
        )
    ]  # fmt: skip
    text = benchmark_tables.text({"table": "batch_size", "rows": rows})
    lines = [line for line in text.splitlines() if line.startswith("| COCO")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells == [
        ["COCO", "TIGER", "1", "1.000", "0.500", "2.00x", "2.00", "3.00", "-"],
        ["COCO", "TIGER", "8", "0.250", "0.200", "1.25x", "2.00", "3.00", "-"],
    ]


def test_visual_interfaces_are_drafters_alone_beside_the_full_one():
    rows = [
        _row(name, mode, alone=True, selector=selector, k=k, seconds_a_token=seconds, value=value,
             drafter=name, metric="CIDEr")
        for name, selector, k, seconds, value in (
            ("Full visual tokens", "full", None, 0.02, 0.4),
            ("TIGER routing", "tiger", 8, 0.015, 0.6),
        )
        for mode in ("score", "speed")
    ]  # fmt: skip
    text = benchmark_tables.text({"table": "visual_interface", "rows": rows})
    assert _cells(text, "Full")[-2:] == ["0.400", "1.000"]
    assert _cells(text, "TIGER")[-2:] == ["0.600", "0.750"]


def test_a_histogram_is_drawn_in_text():
    row = _row("TIGER", "speed", histogram=[1, 0, 4], rounds=5)
    (text,) = benchmark_tables.histograms([row, _row("plain", "speed")])
    bars = [line for line in text.splitlines() if line.startswith("A =")]
    assert [bar.count("#") for bar in bars] == [10, 0, 40]
    assert bars[2].endswith("4   80.0%")


def test_one_other_token_is_not_identical():
    rows = {"a": {"tokens": [1, 2]}, "b": {"tokens": [3]}}
    assert benchmark_report._identical(rows, {"a": {"tokens": [1, 2]}}) is True
    assert benchmark_report._identical(rows, rows | {"b": {"tokens": [4]}}) is False
    assert benchmark_report._identical(rows, None) is None
    assert benchmark_report._identical(rows, {"c": {"tokens": [1]}}) is None
