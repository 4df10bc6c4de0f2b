"""MM-Vet: one object of questions by id, or parquet with abilities in one text."""

import json

import pytest

from tests.data.public.files import faults_of, png, records_of, write_json, write_parquet
from tests.samples import SAMPLES, needs_samples
from tiger_jax.data.public.dataset import decode_picture, picture_fault
from tiger_jax.data.public.registry import open_dataset
from tiger_jax.errors import UserError

QUESTION = {
    "imagename": "v1_0.png",
    "question": "What is x?",
    "answer": "-1<AND>-5<OR>x=-1<AND>x=-5",
    "capability": ["ocr", "math"],
    "imagesource": "web",
}


@pytest.mark.parametrize("place", ["", "mm-vet"])
def test_original_layout(tmp_path, place):
    content = {"v1_0": QUESTION, "v1_1": {**QUESTION, "capability": "ocr"}, "v1_2": 3}
    write_json(tmp_path / place / "mm-vet.json", {**content, "v1_3": QUESTION})
    (tmp_path / place / "images").mkdir()
    found = list(open_dataset("mm_vet", tmp_path))
    first, last = records_of(found)
    assert (first.uid, first.question) == ("mm_vet/test/v1_0/0", "What is x?")
    assert first.ground_truth == "-1<AND>-5<OR>x=-1<AND>x=-5"
    assert first.answers == ("-1<AND>-5", "x=-1<AND>x=-5")
    assert first.meta == {"id": "v1_0", "capabilities": ("ocr", "math")}
    assert first.images[0].path == str(tmp_path / place / "images" / "v1_0.png")
    assert picture_fault(first).kind == "missing image"
    assert last.uid == "mm_vet/test/v1_3/0"
    assert faults_of(found) == [
        ("mm_vet/test/v1_1/0", "wrong type"),
        ("mm-vet.json:v1_2", "wrong type"),
    ]


def test_bard_set(tmp_path):
    write_json(tmp_path / "mm-vet.json", {"v1_0": QUESTION, "v1_1": QUESTION})
    with pytest.raises(UserError, match=r"bard_set\.json"):
        open_dataset("mm_vet", tmp_path, bard_set=True)
    write_json(tmp_path / "bard_set.json", ["v1_1", "v1_9"])
    found = list(open_dataset("mm_vet", tmp_path, bard_set=True))
    assert [r.uid for r in records_of(found)] == ["mm_vet/test/v1_1/0"]
    assert faults_of(found) == [("mm_vet/test/v1_9/0", "missing record")]
    write_json(tmp_path / "bard_set.json", {"v1_1": 1})
    with pytest.raises(UserError, match=r"bard_set\.json: expected a list of ids"):
        open_dataset("mm_vet", tmp_path, bard_set=True)


@pytest.mark.parametrize(
    ("name", "abilities"), [("question_id", "ocr, math"), ("id", ["ocr", "math"])]
)
def test_hugging_face_layouts(tmp_path, name, abilities):
    image = {"bytes": png(), "path": "v1_0.png"}
    row = {name: "v1_0", "image": image, "question": "q?", "answer": "3/4<OR>0.75"}
    rows = [{**row, "capability": abilities}, {**row, "image": None, "capability": abilities}]
    write_parquet(tmp_path / "data" / "test-00000-of-00001.parquet", rows)
    found = list(open_dataset("mm_vet", tmp_path))
    (record,) = records_of(found)
    assert record.uid == "mm_vet/test/v1_0/0"
    assert record.answers == ("3/4", "0.75")
    assert record.meta == {"id": "v1_0", "capabilities": ("ocr", "math")}
    assert decode_picture(record.images[0]).size == (4, 3)
    assert faults_of(found) == [("mm_vet/test/v1_0/0", "missing image")]
    with pytest.raises(UserError, match=r"expected mm-vet\.json beside bard_set\.json"):
        open_dataset("mm_vet", tmp_path, bard_set=True)


def test_nothing_there(tmp_path):
    with pytest.raises(UserError, match=r"expected MM-Vet: mm-vet\.json or test-00000-of-"):
        open_dataset("mm_vet", tmp_path)


@needs_samples
def test_samples():
    folder = SAMPLES / "mm-vet"
    found = records_of(open_dataset("mm_vet", folder))
    assert len(found) == 20
    assert len({r.images[0].path for r in found}) == 16
    assert all(picture_fault(r) is None for r in found)
    assert len(records_of(open_dataset("mm_vet", folder, bard_set=True))) == 20
    predictions = json.loads((folder / "results_llava_llama2_13b_chat.json").read_text())
    assert {r.meta["id"] for r in found} == set(predictions)
    rows = list(open_dataset("mm_vet", folder / "hf_layout"))
    assert len(rows) == 6
    by_uid = {r.uid: r for r in found}
    for row in rows:
        same = by_uid[row.uid]
        assert (row.question, row.ground_truth, row.meta) == (
            same.question,
            same.ground_truth,
            same.meta,
        )
        assert row.images[0].sha256() == same.images[0].sha256()
