"""DocVQA: the official JSON of several years, parquet, a test split without answers."""

import pytest

from tests.data.public.files import (
    cut_in_half,
    faults_of,
    png,
    write_json,
    write_parquet,
    write_picture,
)
from tests.samples import SAMPLES, needs_samples
from tiger_jax.data.public.dataset import picture_fault
from tiger_jax.data.public.registry import open_dataset
from tiger_jax.errors import UserError

ROW = {
    "questionId": 49153, "question": "What is the number?", "question_types": ["form"],
    "image": "documents/abc_81.png", "docId": 14465, "answers": ["0.28", ".28"],
    "data_split": "val",
}  # fmt: skip
TEST_ROW = {  # data.md section 8: no `answers` key
    "questionId": 900001, "question": "MADEUP: What is the invoice number?",
    "image": "documents/madeup_1.png", "docId": 900001, "ucsf_document_id": "madeup",
    "ucsf_document_page_no": "1", "data_split": "test",
}  # fmt: skip


def official(path, *rows: dict):
    return write_json(path, {"dataset_name": "SP-DocVQA", "data": list(rows)})


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("val_v1.0_withQT.json", "spdocvqa_images"), ("val_v1.0.json", "documents"),
        ("spdocvqa_qas/val_v1.0_withQT.json", "spdocvqa_images"),
        ("val_v1.0.json", "val/documents"),
    ],
)  # fmt: skip
def test_official_layouts(tmp_path, name, folder):
    official(tmp_path / name, ROW)
    page = write_picture(tmp_path / folder / "abc_81.png")
    (record,) = open_dataset("docvqa", tmp_path)
    assert (record.uid, record.question) == ("docvqa/val/49153/0", "What is the number?")
    assert (record.answers, record.ground_truth) == (("0.28", ".28"), "0.28")
    assert record.images[0].path == str(page)
    assert record.meta == {"question_types": ("form",)}
    assert picture_fault(record) is None


def test_older_files_have_no_question_types(tmp_path):
    old = {name: value for name, value in ROW.items() if name != "question_types"}
    official(tmp_path / "val_v1.0.json", old)
    (record,) = open_dataset("docvqa", tmp_path)
    assert record.meta == {"question_types": ()}


def test_the_test_split_has_no_answers(tmp_path):
    """Qwen-VL 68: hidden, not wrong."""
    official(tmp_path / "test_v1.0.json", TEST_ROW)
    (record,) = open_dataset("docvqa", tmp_path, "test")
    assert record.uid == "docvqa/test/900001/0"
    assert (record.answers, record.ground_truth) == ((), None)
    official(tmp_path / "val_v1.0.json", TEST_ROW)
    assert faults_of(open_dataset("docvqa", tmp_path)) == [("docvqa/val/900001/0", "missing field")]


@pytest.mark.parametrize("config", ["DocVQA", "data"])
def test_parquet_layout(tmp_path, config):
    image = {"bytes": png(), "path": None}
    row = ROW | {"questionId": "49153", "image": image}
    write_parquet(tmp_path / f"{config}/validation-00000-of-00001.parquet", [row])
    if config == "DocVQA":  # the same repository holds another data set
        write_parquet(tmp_path / "InfographicVQA/validation-00000-of-00001.parquet", [row])
    (record,) = open_dataset("docvqa", tmp_path, "validation")
    assert (record.uid, record.split) == ("docvqa/val/49153/0", "val")
    assert (record.answers, record.meta) == (("0.28", ".28"), {"question_types": ("form",)})
    assert picture_fault(record) is None


def test_parquet_of_the_test_split(tmp_path):
    import pyarrow as pa

    row = {"questionId": "1", "question": "Q?", "image": {"bytes": png(), "path": None},
           "answers": None}  # fmt: skip
    path = tmp_path / "test-00000-of-00001.parquet"
    write_parquet(path, [row], types={"answers": pa.list_(pa.string())})
    (record,) = open_dataset("docvqa", path, "test")
    assert record.answers == ()


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"question": None}, "missing field"), ({"image": 5}, "wrong type"),
        ({"image": None}, "missing field"), ({"answers": "x"}, "wrong type"),
        ({"answers": []}, "missing field"), ({"questionId": None}, "missing field"),
        ({"question_types": [1]}, "wrong type"), ({"questionId": 49153}, "duplicate uid"),
    ],
)  # fmt: skip
def test_faults_leave_their_neighbours_alone(tmp_path, change, kind):
    rows = ROW, ROW | {"questionId": 2} | change, ROW | {"questionId": 3}
    official(tmp_path / "val_v1.0.json", *rows)
    first, fault, last = open_dataset("docvqa", tmp_path)
    assert fault.kind == kind
    assert (first.uid, last.uid) == ("docvqa/val/49153/0", "docvqa/val/3/0")


def test_wrong_files_are_named(tmp_path):
    path = official(tmp_path / "val_v1.0.json", ROW)
    with pytest.raises(UserError, match="expected a file of split train, its name says val"):
        open_dataset("docvqa", path, "train")
    with pytest.raises(UserError, match=r"val_v1\.0\.json: element .*ends too early"):
        list(open_dataset("docvqa", cut_in_half(path)))


@needs_samples
def test_sample_in_full():
    found = list(open_dataset("docvqa", SAMPLES / "docvqa/val_v1.0_withQT.sample2.json"))
    assert [record.uid for record in found] == ["docvqa/val/49153/0", "docvqa/val/24580/0"]
    assert found[0].question.startswith("What is the \u2018actual\u2019 value")
    assert [len(record.answers) for record in found] == [1, 3]
    assert {picture_fault(record).kind for record in found} == {"missing image"}
