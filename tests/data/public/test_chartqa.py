"""ChartQA: two parts a split, and both Hugging Face forms."""

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
from tiger_jax.data.public.dataset import decode_picture
from tiger_jax.data.public.registry import open_dataset
from tiger_jax.errors import UserError

IMAGE = {"bytes": png(), "path": None}


def asked(label="14", **changes):
    return {"imgname": "a.png", "query": "How many bars?", "label": label, **changes}


@pytest.mark.parametrize("place", ["", "test", "ChartQA Dataset/test"])
def test_official_layout(tmp_path, place):
    write_json(tmp_path / place / "test_human.json", [asked(), asked(None), asked("No")])
    write_json(tmp_path / place / "test_augmented.json", [asked("47", query="How much?")])
    picture = write_picture(tmp_path / place / "png" / "a.png")
    found = list(open_dataset("chartqa", tmp_path))
    assert [(r.uid, r.question, r.ground_truth, r.meta) for r in records_of(found)] == [
        ("chartqa/test/human-0/0", "How many bars?", "14", {"part": "human"}),
        ("chartqa/test/human-2/0", "How many bars?", "No", {"part": "human"}),
        ("chartqa/test/augmented-0/0", "How much?", "47", {"part": "augmented"}),
    ]
    assert faults_of(found) == [("chartqa/test/human-1/0", "missing field")]
    assert found[0].images[0].path == str(picture)
    assert found[0].answers == ("14",)


def test_one_part_or_none(tmp_path):
    path = write_json(tmp_path / "val" / "val_human.json", [asked()])
    with pytest.raises(UserError, match=r"val_augmented\.json is not there"):
        open_dataset("chartqa", tmp_path, "validation")
    (only,) = open_dataset("chartqa", path, "val")
    assert only.uid == "chartqa/val/human-0/0"
    with pytest.raises(UserError, match="expected a file of split test, its name says val"):
        open_dataset("chartqa", path)
    with pytest.raises(UserError, match=r"expected ChartQA: train/train_human\.json or train-"):
        open_dataset("chartqa", tmp_path, "train")
    cut_in_half(path)
    with pytest.raises(UserError, match=r"val_human\.json: .*the file ends too early"):
        list(open_dataset("chartqa", path, "val"))


def test_hugging_face_form_with_lists(tmp_path):
    def row(label, part, image=IMAGE):
        return {"image": image, "query": "q?", "label": label, "human_or_machine": part}

    rows = [row(["Yes"], 0), row(["6", "six"], 1), row([], 0), row(["1"], 2), row(["1"], 0, None)]
    path = write_parquet(tmp_path / "data" / "val-00000-of-00001.parquet", rows)
    found = list(open_dataset("chartqa", tmp_path, "val"))
    first, second = records_of(found)
    assert first.uid == f"chartqa/val/{path.name}:1/0"
    assert (first.ground_truth, first.meta) == ("Yes", {"part": "human"})
    assert (second.answers, second.meta) == (("6", "six"), {"part": "augmented"})
    assert decode_picture(second.images[0]).size == (4, 3)
    assert faults_of(found) == [
        (f"chartqa/val/{path.name}:3/0", "missing field"),
        (f"chartqa/val/{path.name}:4/0", "wrong value"),
        (f"chartqa/val/{path.name}:5/0", "missing image"),
    ]


def test_a_part_that_is_a_list_is_a_fault(tmp_path):
    row = {"image": IMAGE, "query": "q?", "label": ["1"], "human_or_machine": [0]}
    path = write_parquet(tmp_path / "val-00000-of-00001.parquet", [row])
    uid = f"chartqa/val/{path.name}:1/0"
    assert faults_of(open_dataset("chartqa", tmp_path, "val")) == [(uid, "wrong type")]


def test_hugging_face_form_with_types(tmp_path):
    rows = [
        {"type": f"{part}_test", "question": "q?", "answer": "3", "image": IMAGE}
        for part in ("human", "augmented")
    ]
    write_parquet(tmp_path / "test-00000-of-00001.parquet", rows)
    found = list(open_dataset("chartqa", tmp_path))
    assert [(r.question, r.ground_truth, r.meta["part"]) for r in found] == [
        ("q?", "3", "human"),
        ("q?", "3", "augmented"),
    ]


@needs_samples
def test_samples():
    found = list(open_dataset("chartqa", SAMPLES / "chartqa"))
    assert [sum(r.meta["part"] == part for r in found) for part in ("human", "augmented")] == [
        24,
        20,
    ]
    assert (found[0].question, found[0].ground_truth) == (
        "How many food item is shown in the bar graph?",
        "14",
    )
    charts = list(open_dataset("chartqa", SAMPLES / "chartqa" / "hf_layout", "train"))
    assert [r.ground_truth for r in charts] == ["Yes", "6", "2014"]
    stored = {(SAMPLES / "chartqa/png" / f"{n}.png").read_bytes() for n in (10095, 10149)}
    assert {r.images[0].read() for r in charts} == stored
    # The demo of Qwen's finetuning asks the same in LLaVA's layout, but its rows have no ids.
    name = "qwen_finetune_single_images.json"
    demo = list(open_dataset("llava", SAMPLES / "chartqa" / name))
    assert faults_of(demo) == [(f"{name}:{n}", "missing field") for n in (1, 2, 3)]
