"""Every data set's flat scores on made-up items: by hand, with missing and hidden parts."""

import math

import pytest

from tests.samples import SAMPLES, needs_samples
from tiger_jax.errors import UserError
from tiger_jax.metrics.dataset_scores import HEADLINE, Item, headline, read_answer, score


def items(name, *rows):
    """(prediction, fields...) rows as items with running uids."""
    return [Item(f"{name}/test/{number}/0", **row) for number, row in enumerate(rows)]


def row(prediction, gold=None, answers=(), choices=None, n_images=None, **meta):
    return {"prediction": prediction, "ground_truth": gold, "answers": answers,
            "choices": choices, "n_images": n_images, "meta": meta}  # fmt: skip


def test_textvqa():
    golds = ("red",) * 2 + ("blue",) * 8
    found = score("textvqa", items("textvqa", row("Red.", answers=golds), row(None, answers=golds)))
    assert found == {"vqa_accuracy": pytest.approx(0.3), "n": 2, "missing": 1}


def test_docvqa_and_its_hidden_half():
    seen = [row("0.29", answers=("0.28",)), row("1", answers=("1",))]
    assert score("docvqa", items("docvqa", *seen)) == {"anls": 0.875, "n": 2, "missing": 0}
    with pytest.raises(UserError, match="docvqa/test/2/0: expected answers, got none"):
        score("docvqa", items("docvqa", *seen, row("1")))
    # Hidden golds are refused also where the prediction is missing.
    with pytest.raises(UserError, match="expected answers, got none"):
        score("docvqa", items("docvqa", row(None)))


def test_chartqa():
    rows = [
        row("14.7", "14", part="human"), row("2008", "2010", part="human"),
        row("Yes", "No", part="augmented"), row(None, "5", part="augmented"),
    ]  # fmt: skip
    found = score("chartqa", items("chartqa", *rows))
    assert found["relaxed_accuracy"] == 0.5
    assert found["relaxed_accuracy/part/human"] == 1.0
    assert found["relaxed_accuracy/part/augmented"] == 0.0
    assert (found["n"], found["missing"], found["n/part/human"]) == (4, 1, 2)
    strict = score("chartqa", items("chartqa", *rows), strict_years=True)
    assert strict["relaxed_accuracy"] == 0.25


def test_tallyqa():
    rows = [
        row("4", "4", simple=True), row("none at all", "3", simple=True),
        row("two", "4", simple=False), row("0", "0", simple=None), row(None, "1", simple=True),
    ]  # fmt: skip
    found = score("tallyqa", items("tallyqa", *rows))
    assert found["accuracy"] == pytest.approx(2 / 5)
    assert found["rmse"] == pytest.approx(math.sqrt((0 + 9 + 4 + 0 + 1) / 5))
    assert found["accuracy/simple"] == pytest.approx(1 / 3)
    assert found["rmse/simple"] == pytest.approx(math.sqrt(10 / 3))
    assert (found["accuracy/complex"], found["rmse/complex"]) == (0.0, 2.0)
    assert [found[f"n/{kind}"] for kind in ("simple", "complex", "unknown")] == [3, 1, 1]
    assert (found["n"], found["missing"], found["unparsed"]) == (5, 1, 1)
    assert found["unparsed_rate"] == 0.25
    with pytest.raises(UserError, match=r"tallyqa/test/0/0: expected a count .* got 'many'"):
        score("tallyqa", items("tallyqa", row("1", "many", simple=True)))


def test_scienceqa():
    rows = [
        row("B", "B", choices=("x", "y"), n_images=1),
        row("b", "B", choices=("x", "y"), n_images=0),
        row("A", "B", choices=("x", "y"), n_images=1),
        row(None, "A", choices=("x", "y"), n_images=1),
    ]
    found = score("scienceqa", items("scienceqa", *rows))
    assert (found["accuracy"], found["img_accuracy"]) == (0.25, pytest.approx(1 / 3))
    assert (found["n_img"], found["missing"], found["unparsed"]) == (3, 1, 1)
    assert found["unparsed_rate"] == pytest.approx(1 / 3)
    assert score("scienceqa", items("scienceqa", *rows), style="lmms")["accuracy"] == 0.5


def test_scienceqa_says_why_it_has_no_img_accuracy():
    found = score("scienceqa", items("scienceqa", row("A", "A", choices=("x", "y"))))
    assert found["img_accuracy"] is None
    assert found["img_accuracy_reason"] == "n_images was not told"
    one = row("A", "A", choices=("x", "y"), n_images=0)
    found = score("scienceqa", items("scienceqa", one))
    assert found["img_accuracy"] is None
    assert found["img_accuracy_reason"] == "no question has a picture"


def passes(group, golds, texts, category, choices):
    return [
        row(text, gold, choices=choices, group=group, rotation=number, category=category,
            l2_category="all")
        for number, (gold, text) in enumerate(zip(golds, texts, strict=True))
    ]  # fmt: skip


def test_mmbench():
    four, two = ("cat", "dog", "hen", "cow"), ("yes", "no")
    rows = passes(1, "ADCB", "AAAA", "one", four) + passes(2, "BA", ["B", "yes"], "two", two)
    found = score("mmbench", items("mmbench", *rows))
    assert found["vanilla_accuracy"] == 0.5  # 1 of 4 and 2 of 2 passes
    assert found["circular_accuracy"] == 0.5  # the second question
    assert found["first_pass_accuracy"] == 1.0
    assert found["circular_accuracy/category/one"] == 0.0
    assert found["vanilla_accuracy/category/one"] == 0.25
    assert found["circular_accuracy/category/two"] == 1.0
    assert found["circular_accuracy/l2_category/all"] == 0.5
    assert (found["n"], found["n_questions"], found["n_questions/category/one"]) == (6, 2, 1)
    assert headline("mmbench", found) == ("circular_accuracy", 0.5)


def test_mmbench_without_all_rotations_is_vanilla_and_says_so():
    rows = passes(1, "ADCB", "ADCB", "one", ("cat", "dog", "hen", "cow"))[:1]
    found = score("mmbench", items("mmbench", *rows))
    assert found["circular_accuracy"] is None
    assert found["circular_accuracy_reason"] == "1 of 1 questions lack rotations"
    assert headline("mmbench", found) == ("vanilla_accuracy", 1.0)


def test_mm_vet_scores_the_questions_without_gen():
    rows = [
        row("x = -1", "-1<AND>-5", id="v1_0", capabilities=("ocr", "math")),
        row("a cat", "cat", id="v1_1", capabilities=("ocr",)),
        row("anything", "a long text", id="v1_2", capabilities=("rec", "gen")),
        row(None, "dog", id="v1_3", capabilities=("rec",)),
    ]
    found = score("mm_vet", items("mm_vet", *rows))
    assert found["mmvet_string_match"] == 0.5
    assert (found["n"], found["missing"], found["n_gen_left_out"]) == (3, 1, 1)
    assert found["mmvet_string_match/capability/ocr"] == 0.75
    assert found["mmvet_string_match/capability/math"] == 0.5
    assert found["mmvet_string_match/capability/rec"] == 0.0
    found = score("mm_vet", items("mm_vet", rows[2]))
    assert found["mmvet_string_match"] is None
    assert found["mmvet_string_match_reason"] == "all questions ask for generated text"


def test_coco_captions():
    rows = [row("a b c d", answers=("a b c d",)), row(None, answers=("k l m n",))]
    found = score("coco_captions", items("coco", *rows), tokenize=False, meteor=False)
    assert found["CIDEr"] == pytest.approx(5)  # 10 and 0
    assert found["METEOR"] is None
    assert (found["n"], found["missing"], found["tokenize"]) == (2, 1, False)


def test_video_mme():
    same = {"domain": "Film", "sub_category": "Animation", "task_type": "Counting"}
    rows = [
        row("(D)", "D", duration="short", **same),
        row("I do not know", "A", duration="long", **same),
        row(None, "A", duration="long", **same),
        row("Based on it, C", "C", duration="long", **same),
    ]
    found = score("video_mme", items("video_mme", *rows))
    assert found["accuracy"] == 0.25
    assert found["accuracy_of_answered"] == 0.5  # (D) right, the B of "Based" wrong
    silent = score("video_mme", items("video_mme", *rows[1:3]))
    assert silent["accuracy_of_answered"] is None
    assert silent["accuracy_of_answered_reason"] == "no text holds a letter"
    assert (found["accuracy/duration/short"], found["accuracy/duration/long"]) == (1.0, 0.0)
    assert (found["accuracy/domain/Film"], found["n/task_type/Counting"]) == (0.25, 4)
    assert (found["n"], found["missing"], found["unparsed"]) == (4, 1, 1)
    assert score("video_mme", items("video_mme", *rows), style="lmms")["accuracy"] == 0.5


def test_nlvr2():
    rows = [
        row("True", "True", group="a"), row("Yes", "True", group="a"),
        row("False", "True", group="b"), row("what?", "False", group="b"),
    ]  # fmt: skip
    pairs = items("nlvr2", *rows)
    found = score("nlvr2", pairs, group_sizes={"a": 2, "b": 2, "not asked": 4})
    assert (found["accuracy"], found["consistency"], found["n_groups"]) == (0.5, 0.5, 2)
    assert (found["n"], found["unparsed"], found["unparsed_rate"]) == (4, 1, 0.25)
    found = score("nlvr2", pairs, group_sizes={"a": 2, "b": 4})
    assert found["consistency"] is None
    assert found["consistency_reason"] == "1 of 2 sentences lack pairs"
    found = score("nlvr2", pairs)
    assert found["accuracy"] == 0.5
    assert found["consistency"] is None
    assert "whether its sentences are whole was not told" in found["consistency_reason"]
    with pytest.raises(UserError, match=r"got none for 1, first nlvr2/test/4/0"):
        score("nlvr2", items("nlvr2", *rows, row(None, "True", group="b")))


def test_a_whole_split_of_nlvr2_is_known_by_its_size():
    rows = [row("True", "True", group=str(number % 1995)) for number in range(6967)]
    assert score("nlvr2", items("nlvr2", *rows))["consistency"] == 1.0


def test_muirbench():
    choices = ("1", "2", "0", "None of the choices provided")
    rows = [
        row("(B)", "B", choices=choices, task="Counting"),
        row("b", "A", choices=choices, task="Other"),
        row("B.", "B", choices=choices, task="Other"),
        row(None, "A", choices=choices, task="Other"),
    ]
    found = score("muirbench", items("muirbench", *rows))
    assert found["accuracy"] == 0.5
    assert found["accuracy/task/Counting"] == 1.0
    assert found["accuracy/task/Other"] == pytest.approx(1 / 3)
    assert (found["missing"], found["unparsed"]) == (1, 1)
    # The official guess for "b" is A; it is still counted as unparsed, and the seed is told.
    guessed = score("muirbench", items("muirbench", *rows), compat_seed=42)
    assert (guessed["accuracy"], guessed["unparsed"], guessed["compat_seed"]) == (0.75, 1, 42)
    assert "compat_seed" not in found
    assert score("muirbench", items("muirbench", *rows), style="lmms")["accuracy"] == 0.25


@pytest.mark.parametrize("name", sorted(HEADLINE))
def test_no_data_set_scores_hidden_golds_or_nothing(name):
    with pytest.raises(UserError, match=f"{name}: expected items to score, got none"):
        score(name, [])
    hidden = row(
        "A", choices=("x", "y"), part="human", simple=True, group="a", rotation=0, category="c",
        l2_category="d", capabilities=("ocr",), task="t", duration="short", domain="d",
        sub_category="s", task_type="t",
    )  # fmt: skip
    with pytest.raises(UserError, match=f"{name}/test/0/0: expected (answers|a ground truth), got"):
        score(name, items(name, hidden))


def test_bad_calls_are_named():
    one = items("textvqa", row("a", answers=("a",)))
    with pytest.raises(UserError, match=r"data set: expected one of textvqa, .* got 'vqav2'"):
        score("vqav2", one)
    with pytest.raises(UserError, match="textvqa options: expected among none, got style"):
        score("textvqa", one, style="lmms")
    with pytest.raises(UserError, match="textvqa: expected items of different uids"):
        score("textvqa", one * 2)
    with pytest.raises(UserError, match=r"tallyqa/test/0/0: expected the field simple in meta"):
        score("tallyqa", items("tallyqa", row("1", "1")))
    with pytest.raises(UserError, match="mmbench/test/0/0: expected choices, got none"):
        score("mmbench", items("mmbench", row("A", "A", group=1, rotation=0)))
    with pytest.raises(UserError, match=r"data set: expected one of .* got 'llava'"):
        headline("llava", {})


def test_headlines_are_metrics():
    found = score("textvqa", items("textvqa", row("a b", answers=("a b",) * 10)))
    assert headline("textvqa", found) == ("vqa_accuracy", 1.0)


@pytest.mark.parametrize(
    ("name", "text", "answer"),
    [
        ("textvqa", "The Dakota.", "dakota"),
        ("scienceqa", "The answer is B.", "B"),
        ("scienceqa", "(B)", None),
        ("tallyqa", "no zero", "0"),
        ("mmbench", "(A)", "A"),
        ("video_mme", "(D)", "D"),
        ("nlvr2", "no", "False"),
        ("muirbench", "I think A or B", "B"),
        ("chartqa", " 14 ", " 14 "),
        ("nlvr2", None, None),
    ],
)
def test_read_answer(name, text, answer):
    item = Item("x/test/0/0", text, choices=("one", "two"))
    assert read_answer(name, item) == answer


def test_read_answer_of_a_style():
    assert read_answer("scienceqa", Item("x", "b", choices=("x", "y")), style="lmms") == "B"


@needs_samples
def test_mmbench_always_a_on_the_sample():
    import csv

    csv.field_size_limit(2**31 - 1)
    path = SAMPLES / "mmbench/MMBench_DEV_EN.circular_derived.tsv"
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    asked = [
        row("A", line["answer"], choices=tuple(line[c] for c in "ABCD" if line[c]),
            group=int(line["index"]) % 10**6, rotation=int(line["index"]) // 10**6,
            category=line["category"], l2_category=line["l2-category"])
        for line in rows
    ]  # fmt: skip
    found = score("mmbench", items("mmbench", *asked))
    assert (found["n"], found["n_questions"], found["circular_accuracy"]) == (78, 20, 0.0)
    assert found["vanilla_accuracy"] == pytest.approx(20 / 78)  # each question has one A
