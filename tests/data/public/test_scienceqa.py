"""ScienceQA: problems.json and its splits, parquet that has lost the ids."""

import json

import pytest

from tests.data.public.files import (
    cut_in_half,
    faults_of,
    png,
    records_of,
    write_json,
    write_parquet,
    write_picture,
)
from tests.samples import SAMPLES, needs_samples
from tiger_jax.data.public.dataset import picture_fault
from tiger_jax.data.public.registry import open_dataset
from tiger_jax.errors import UserError

pa = pytest.importorskip("pyarrow")
PROBLEM = {
    "question": "Which?", "choices": ["one", "two", "three"], "answer": 1, "hint": "",
    "image": None, "task": "closed choice", "grade": "grade2", "subject": "natural science",
    "topic": "biology", "category": "Traits", "skill": "See", "lecture": "L", "solution": "S",
}  # fmt: skip
IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def write(tmp_path, problems: dict, splits: dict | None = None):
    if splits is not None:
        write_json(tmp_path / "pid_splits.json", splits)
    return write_json(tmp_path / "problems.json", problems)


def problem(split: str = "test", **change) -> dict:
    return PROBLEM | {"split": split} | change


def test_official_layout(tmp_path):
    problems = {"3": problem("train"), "1": problem(image="image.png", hint="Look."),
                "2": problem(answer=2)}  # fmt: skip
    write(tmp_path, problems, {"train": ["3"], "test": ["1", "2"], "minitest": ["2"]})
    shown, text = open_dataset("scienceqa", tmp_path)
    assert (shown.uid, text.uid) == ("scienceqa/test/1/0", "scienceqa/test/2/0")
    assert (shown.question, shown.choices) == ("Which?", ("one", "two", "three"))
    assert (shown.ground_truth, text.ground_truth) == ("B", "C")
    assert text.images == ()
    photo = write_picture(tmp_path / "images/test/1/image.png")
    (shown, _) = open_dataset("scienceqa", tmp_path)
    assert shown.images[0].path == str(photo)
    assert shown.meta == {
        "pid": "1", "hint": "Look.", "task": "closed choice", "grade": "grade2",
        "subject": "natural science", "topic": "biology", "category": "Traits", "skill": "See",
    }  # fmt: skip
    (mini,) = open_dataset("scienceqa", tmp_path, "minitest")
    assert mini.uid == "scienceqa/minitest/2/0"


def test_pictures_of_joined_splits_lie_in_the_folder_of_their_own(tmp_path):
    problems = {"1": problem("train", image="image.png"), "2": problem("val", image="image.png")}
    write(tmp_path, problems, {"trainval": ["1", "2"]})
    for split, pid in (("train", "1"), ("val", "2")):
        write_picture(tmp_path / f"images/{split}/{pid}/image.png")
    found = list(open_dataset("scienceqa", tmp_path, "trainval"))
    assert [picture_fault(record) for record in found] == [None, None]


def test_without_the_split_file_problems_say_it_themselves(tmp_path):
    path = write(tmp_path, {"1": problem("train"), "2": problem("test")})
    assert [r.uid for r in open_dataset("scienceqa", path)] == ["scienceqa/test/2/0"]


def test_a_problem_without_an_id_is_a_fault(tmp_path):
    path = write(tmp_path, {"": problem("test"), "2": problem("test")})
    fault, record = open_dataset("scienceqa", path)
    assert (fault.kind, record.uid) == ("missing field", "scienceqa/test/2/0")


def test_ids_without_a_problem_are_faults(tmp_path):
    write(tmp_path, {"1": problem()}, {"test": ["0", "1", "5"]})
    found = list(open_dataset("scienceqa", tmp_path))
    assert [r.uid for r in records_of(found)] == ["scienceqa/test/1/0"]
    assert faults_of(found) == [
        ("scienceqa/test/0/0", "missing record"), ("scienceqa/test/5/0", "missing record"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        (problem(answer=3), "wrong choices"), (problem(answer=-1), "wrong choices"),
        (problem(choices=[]), "wrong choices"), (problem(answer="B"), "wrong type"),
        (problem(choices="one"), "wrong type"), (problem(choices=[1, 2]), "wrong type"),
        (problem(question=""), "missing field"), (problem(hint=4), "wrong type"),
        (problem(image=4), "wrong type"), ("text", "wrong type"),
    ],
)  # fmt: skip
def test_faults_leave_their_neighbours_alone(tmp_path, bad, kind):
    write(tmp_path, {"1": problem(), "2": bad, "3": problem()}, {"test": ["1", "2", "3"]})
    first, fault, last = open_dataset("scienceqa", tmp_path)
    assert fault.kind == kind
    assert (first.uid, last.uid) == ("scienceqa/test/1/0", "scienceqa/test/3/0")


def parquet(tmp_path, count: int = 5):
    rows = [PROBLEM | {"hint": f"h{i}", "image": None} for i in range(count)]
    rows[1]["image"] = {"bytes": png(), "path": "image.png"}
    types = {"image": IMAGE, "answer": pa.int8()}
    for shard, part in enumerate((rows[:3], rows[3:])):
        path = tmp_path / f"hf/data/test-0000{shard}-of-00002.parquet"
        write_parquet(path, part, types=types)
    return tmp_path / "hf"


def test_parquet_numbers_its_rows_over_all_shards(tmp_path):
    found = list(open_dataset("scienceqa", parquet(tmp_path)))
    assert [r.uid for r in found] == [f"scienceqa/test/row{i}/0" for i in range(5)]
    assert [r.meta["hint"] for r in found] == [f"h{i}" for i in range(5)]
    assert [len(r.images) for r in found] == [0, 1, 0, 0, 0]
    assert (found[0].ground_truth, found[0].meta["pid"]) == ("B", None)
    assert picture_fault(found[1]) is None


def test_parquet_gets_its_ids_back(tmp_path):
    folder = parquet(tmp_path)
    splits = write_json(tmp_path / "pid_splits.json", {"test": ["4", "15", "22", "26", "27"]})
    found = list(open_dataset("scienceqa", folder, pid_splits=splits))
    assert [r.uid for r in found][-1] == "scienceqa/test/27/0"
    assert found[1].meta["pid"] == "15"
    write_json(splits, {"test": ["4", "15"]})
    with pytest.raises(UserError, match="expected 5 ids of split test, got 2"):
        open_dataset("scienceqa", folder, pid_splits=splits)
    write_json(splits, {"train": []})
    with pytest.raises(UserError, match="expected a list of texts at 'test', found none"):
        open_dataset("scienceqa", folder, pid_splits=splits)


def test_wrong_files_are_named(tmp_path):
    with pytest.raises(UserError, match=r"expected ScienceQA: problems\.json or"):
        open_dataset("scienceqa", tmp_path)
    path = write(tmp_path, {"1": problem(), "2": problem()}, {"test": ["1"]})
    with pytest.raises(UserError, match=r"problems\.json: element 2: expected JSON"):
        list(open_dataset("scienceqa", cut_in_half(path)))


@needs_samples
def test_samples_in_full():
    folder = SAMPLES / "scienceqa"
    path = folder / "problems.sample.json"
    problems = json.loads(path.read_text())
    for split in ("train", "val", "test"):
        found = list(open_dataset("scienceqa", path, split))
        assert faults_of(found) == []
        assert len(found) == 8
        for record in found:
            own = problems[record.meta["pid"]]
            assert own["split"] == split
            assert (
                record.choices["ABCDE".index(record.ground_truth)]
                == (own["choices"][own["answer"]])
            )
    assert len(list(open_dataset("scienceqa", path, "trainval"))) == 16
    assert len(list(open_dataset("scienceqa", path, "minival"))) == 2
    assert list(open_dataset("scienceqa", path, "minitest")) == []
    found = list(open_dataset("scienceqa", folder / "hf_layout"))
    assert len(found) == 25
    record = json.loads((folder / "hf_test_index5/record.json").read_text())
    (shown,) = [r for r in found if r.images]
    assert (shown.question, shown.ground_truth) == (record["question"], "B")
    assert picture_fault(shown) is None
