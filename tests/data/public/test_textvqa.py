"""TextVQA: official JSON, LLaVA's question file, parquet; OCR tokens of three sources."""

import pytest

from tests.data.public.files import (
    cut_in_half,
    faults_of,
    png,
    write_json,
    write_json_lines,
    write_parquet,
    write_picture,
)
from tests.samples import SAMPLES, needs_samples
from tiger_jax.data.public.dataset import picture_fault
from tiger_jax.data.public.prompt_styles import SINGLE_WORD
from tiger_jax.data.public.registry import open_dataset
from tiger_jax.data.public.textvqa import OCR_LINE, most_frequent, split_ocr
from tiger_jax.errors import UserError

GOLDS = ["red", "blue ", "blue", "red", "pink", "x", "y", "z", "v", "w"]
ROW = {"question": "what is it?", "image_id": "abc", "question_id": 7, "answers": GOLDS}


def official(tmp_path, *rows: dict, split: str = "val"):
    content = {"dataset_name": "textvqa", "data": list(rows)}
    return write_json(tmp_path / f"TextVQA_0.5.1_{split}.json", content)


@pytest.mark.parametrize(
    ("split", "folder"),
    [("train", "train_images"), ("val", "train_images"), ("test", "test_images"),
     ("val", "train_val_images/train_images")],
)  # fmt: skip
def test_official_layout(tmp_path, split, folder):
    official(tmp_path, ROW, split=split)
    photo = write_picture(tmp_path / folder / "abc.jpg")
    (record,) = open_dataset("textvqa", tmp_path, split)
    assert record.uid == f"textvqa/{split}/7/0"
    assert (record.question, record.answers) == ("what is it?", tuple(GOLDS))
    assert record.ground_truth == "red"  # two of each: the first
    assert record.images[0].path == str(photo)
    assert picture_fault(record) is None
    assert record.meta == {"question_id": 7, "image_id": "abc", "ocr_tokens": None}


@pytest.mark.parametrize("answers", [None, [], [""] * 10])
def test_only_the_test_split_hides_its_answers(tmp_path, answers):
    row = ROW | {"answers": answers}
    official(tmp_path, row, split="test")
    (record,) = open_dataset("textvqa", tmp_path, "test")
    assert (record.answers, record.ground_truth) == ((), None)
    official(tmp_path, row)
    (fault,) = open_dataset("textvqa", tmp_path)
    assert (fault.uid, fault.kind) == ("textvqa/val/7/0", "missing field")


def test_parquet_layout(tmp_path):
    image = {"bytes": png(), "path": "abc.jpg"}
    rows = [ROW | {"question_id": i, "image": image, "ocr_tokens": ["A", f"{i}"]} for i in range(5)]
    for shard, part in enumerate((rows[:3], rows[3:])):
        write_parquet(tmp_path / f"data/validation-0000{shard}-of-00002.parquet", part)
    found = list(open_dataset("textvqa", tmp_path))
    assert [record.uid for record in found] == [f"textvqa/val/{i}/0" for i in range(5)]
    assert found[4].meta == {"question_id": 4, "image_id": "abc", "ocr_tokens": ("A", "4")}
    assert found[0].answers == tuple(GOLDS)
    assert picture_fault(found[0]) is None
    assert open_dataset("textvqa", tmp_path, "validation").split == "val"
    with pytest.raises(UserError, match=r"TextVQA_0\.5\.1_train\.json .*found only split valid"):
        open_dataset("textvqa", tmp_path, "train")


def llava_row(image_id: str, question: str, ocr: str | None) -> dict:
    line = "" if ocr is None else f"{OCR_LINE} {ocr}"
    return {"question_id": image_id, "image": f"{image_id}.jpg",
            "text": question + line + SINGLE_WORD, "category": "default"}  # fmt: skip


def test_question_file_of_llava_alone(tmp_path):
    rows = [llava_row("abc", "What is it?", "A, b C"), llava_row("abc", "Where?", ""),
            llava_row("d", "Why?", None)]  # fmt: skip
    path = write_json_lines(tmp_path / "llava_textvqa_val_v051_ocr.jsonl", rows)
    path.write_text(path.read_text() + '{"cut": \n')
    found = list(open_dataset("textvqa", tmp_path))
    assert faults_of(found) == [("llava_textvqa_val_v051_ocr.jsonl:4", "not JSON")]
    # its question_id is the picture's, and repeats (LLaVA)
    assert [r.uid for r in found[:3]] == [
        "textvqa/val/abc/0", "textvqa/val/abc#2/0", "textvqa/val/d/0",
    ]  # fmt: skip
    assert [r.question for r in found[:3]] == ["What is it?", "Where?", "Why?"]
    assert [r.meta["ocr_tokens"] for r in found[:3]] == [("A", "b C"), (), None]
    assert found[0].answers == ()
    assert found[0].images[0].path == str(tmp_path / "train_images/abc.jpg")
    with pytest.raises(UserError, match="expected TextVQA"):
        open_dataset("textvqa", path, "train")


def test_split_ocr():
    assert split_ocr("A?" + OCR_LINE + " x, y z" + SINGLE_WORD) == ("A?", ("x", "y z"))
    assert split_ocr("A?" + OCR_LINE + " " + SINGLE_WORD) == ("A?", ())
    assert split_ocr("A?" + SINGLE_WORD) == ("A?", None)


def test_ocr_tokens_of_llava_are_joined_by_picture_and_question(tmp_path):
    official(tmp_path, ROW, ROW | {"question_id": 8, "question": "other?"})
    rows = [llava_row("abc", "Other?", "no"), llava_row("abc", "What is it?", "YES")]
    ocr = write_json_lines(tmp_path / "ocr.jsonl", rows)
    first, second = open_dataset("textvqa", tmp_path, ocr=ocr)
    assert (first.meta["ocr_tokens"], second.meta["ocr_tokens"]) == (("YES",), ("no",))


def test_ocr_tokens_of_rosetta(tmp_path):
    official(tmp_path, ROW, ROW | {"question_id": 8, "image_id": "unknown"})
    content = {"data": [{"image_id": "abc", "ocr_tokens": ["a", "b, c"], "ocr_info": [{}]}]}
    ocr = write_json(tmp_path / "TextVQA_Rosetta_OCR_v0.2_val.json", content)
    first, second = open_dataset("textvqa", tmp_path, ocr=str(ocr))
    assert (first.meta["ocr_tokens"], second.meta["ocr_tokens"]) == (("a", "b, c"), None)
    write_json(ocr, {"data": [{"image_id": "abc"}]})
    with pytest.raises(UserError, match=r"Rosetta.*expected field 'ocr_tokens'"):
        open_dataset("textvqa", tmp_path, ocr=ocr)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"question": 5}, "wrong type"), ({"question": None}, "missing field"),
        ({"image_id": 5}, "wrong type"), ({"question_id": 1.5}, "wrong type"),
        ({"answers": "red"}, "wrong type"), ({"answers": [1] * 10}, "wrong type"),
        ({"question_id": 7}, "duplicate uid"),
    ],
)  # fmt: skip
def test_faults_leave_their_neighbours_alone(tmp_path, change, kind):
    official(tmp_path, ROW, ROW | {"question_id": 8} | change, ROW | {"question_id": 9})
    first, fault, last = open_dataset("textvqa", tmp_path)
    assert fault.kind == kind
    assert (first.uid, last.uid) == ("textvqa/val/7/0", "textvqa/val/9/0")


def test_a_row_of_parquet_without_its_picture_is_a_fault(tmp_path):
    rows = [ROW | {"image": {"bytes": png(), "path": None}},
            ROW | {"question_id": 8, "image": None}]  # fmt: skip
    path = write_parquet(tmp_path / "validation-00000-of-00001.parquet", rows)
    assert faults_of(open_dataset("textvqa", path)) == [("textvqa/val/8/0", "missing image")]


def test_wrong_files_are_named(tmp_path):
    path = official(tmp_path, ROW)
    with pytest.raises(UserError, match="expected a file of split train, its name says val"):
        open_dataset("textvqa", path, "train")
    with pytest.raises(UserError, match=r"TextVQA_0\.5\.1_val\.json: element .*ends too early"):
        list(open_dataset("textvqa", cut_in_half(path)))


def test_most_frequent():
    assert most_frequent(("b ", "a", "b", "c")) == "b"
    assert most_frequent(()) is None


@needs_samples
def test_samples_in_full():
    folder = SAMPLES / "textvqa"
    golds = folder / "TextVQA_0.5.1_val.partial5.json"
    questions = folder / "llava_textvqa_val_v051_ocr.sample.jsonl"
    found = list(open_dataset("textvqa", golds, ocr=questions))
    assert [record.meta["question_id"] for record in found] == list(range(34602, 34607))
    assert found[0].answers.count("dakota") == 5
    assert found[0].ground_truth == "dakota"
    assert found[0].meta["ocr_tokens"][:2] == ("DAKOTA", "DIGITAL")
    assert found[3].answers[0] == "bowmore "  # verbatim
    lines = list(open_dataset("textvqa", questions))
    assert faults_of(lines) == []
    assert len(lines) == 18
    assert any(record.meta["ocr_tokens"] == () for record in lines)  # an empty OCR line is real
