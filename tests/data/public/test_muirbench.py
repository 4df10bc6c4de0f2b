"""MuirBench: marks that say where pictures go, and what happens when they do not fit."""

import logging

import pytest

from tests.data.public.files import faults_of, png, records_of, write_parquet
from tests.samples import SAMPLES, needs_samples
from tiger_jax.data.public.dataset import picture_fault
from tiger_jax.data.public.prompts import score_prompt
from tiger_jax.data.public.registry import open_dataset
from tiger_jax.errors import UserError


def row(idx, question="Which <image>?", options=("<image>", "None"), answer="A", pictures=2):
    return {
        "idx": idx,
        "task": "Counting",
        "image_relation": "Independent",
        "image_type": "Photography",
        "question": question,
        "options": list(options),
        "answer": answer,
        "image_list": [{"bytes": png(size=(4 + i, 3)), "path": None} for i in range(pictures)],
        "counterpart_idx": f"{idx}_U" if idx == "1" else "",
    }


def test_records(tmp_path, caplog):
    rows = [
        row("1"),
        row("2", pictures=3),
        row("3", answer="C"),
        row("4", pictures=0),
        row("5", options=("one",)),
        row("6", question="Which?", options=("x", "y"), answer=""),
    ]
    rows[3]["image_list"] = []
    write_parquet(tmp_path / "data" / "test-00000-of-00001.parquet", rows)
    with caplog.at_level(logging.WARNING):
        found = list(open_dataset("muirbench", tmp_path))
    first, moved, hidden = records_of(found)
    assert first.uid == "muirbench/test/1/0"
    assert (first.question, first.choices) == ("Which <image>?", ("<image>", "None"))
    assert (first.answers, first.ground_truth) == (("A",), "A")
    assert first.meta == {
        "task": "Counting",
        "image_relation": "Independent",
        "image_type": "Photography",
        "counterpart": "1_U",
        "marks": "placed",
    }
    assert (moved.meta["marks"], moved.meta["counterpart"], len(moved.images)) == ("moved", None, 3)
    assert (hidden.answers, hidden.ground_truth, hidden.meta["marks"]) == ((), None, "moved")
    assert [record.getMessage() for record in caplog.records] == [
        "muirbench/test/2/0: 2 <image> marks for 3 pictures: all go first",
        "muirbench/test/6/0: 0 <image> marks for 2 pictures: all go first",
    ]
    assert faults_of(found) == [
        ("muirbench/test/3/0", "wrong value"),
        ("muirbench/test/4/0", "missing image"),
        ("muirbench/test/5/0", "wrong value"),
    ]


def test_marks_of_the_prompt_are_the_pictures_in_order(tmp_path):
    write_parquet(tmp_path / "test-00000-of-00001.parquet", [row("1"), row("2", pictures=3)])
    placed, moved = (score_prompt(record) for record in open_dataset("muirbench", tmp_path))
    assert placed.text.count("<image>") == len(placed.images) == 2
    assert placed.text.startswith("Question: Which <image>?\nChoices:\n(A) <image>\n(B) None\n")
    assert "<image>" not in moved.text
    assert len(moved.images) == 3


def test_a_shard_without_a_column_and_nothing_there(tmp_path):
    rows = [{name: value for name, value in row("1").items() if name != "answer"}]
    path = write_parquet(tmp_path / "test-00000-of-00001.parquet", rows)
    with pytest.raises(UserError, match="expected column 'answer'"):
        list(open_dataset("muirbench", path))
    path.unlink()
    with pytest.raises(UserError, match=r"expected MuirBench: test-00000-of-\*\.parquet"):
        open_dataset("muirbench", tmp_path)


@needs_samples
def test_samples():
    path = SAMPLES / "muirbench" / "MADEUP_test-00000-of-00001.parquet"
    found = list(open_dataset("muirbench", path))
    assert [(r.meta["counterpart"], r.ground_truth, len(r.images)) for r in found] == [
        ("MADEUP_1_U", "A", 3),
        ("MADEUP_1", "D", 3),
        (None, "B", 3),
    ]
    assert all(r.meta["marks"] == "placed" and picture_fault(r) is None for r in found)
    assert all(score_prompt(r).text.count("<image>") == 3 for r in found)
