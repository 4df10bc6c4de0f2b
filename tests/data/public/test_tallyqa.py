"""TallyQA: the official arrays, and the_cauldron's rows of several questions."""

import pytest

from tests.data.public.files import faults_of, png, records_of, write_json, write_parquet
from tests.samples import SAMPLES, needs_samples
from tiger_jax.data.public.dataset import decode_picture
from tiger_jax.data.public.registry import open_dataset
from tiger_jax.errors import UserError

ROW = {
    "answer": 4,
    "data_source": "imported_genome",
    "image": "VG_100K_2/1.jpg",
    "image_id": 92000001,
    "issimple": False,
    "question": "How many headlights?",
    "question_id": 30,
}


def row(question_id, **changes):
    return {**ROW, "question_id": question_id, **changes}


def test_official_layout(tmp_path):
    lacking = row(33)
    del lacking["issimple"]
    rows = [
        row(30),
        row(31, answer=0, issimple=True),
        lacking,
        row(34, answer="four"),
        row(35, answer=True),
        row(36, answer=-1),
        row(37, image=None),
        row(31),
    ]
    write_json(tmp_path / "train.json", rows)
    found = list(open_dataset("tallyqa", tmp_path, "train"))
    first, zero, unknown = records_of(found)
    assert first.uid == "tallyqa/train/30/0"
    assert first.question == "How many headlights?"
    assert (first.answers, first.ground_truth) == (("4",), "4")
    assert first.images[0].path == str(tmp_path / "VG_100K_2/1.jpg")
    assert first.meta == {
        "simple": False,
        "data_source": "imported_genome",
        "image_id": 92000001,
        "image": "VG_100K_2/1.jpg",
    }
    # Questions about absent things are intended: 0 is an answer.
    assert (zero.answers, zero.ground_truth, zero.meta["simple"]) == (("0",), "0", True)
    assert unknown.meta["simple"] is None
    assert faults_of(found) == [
        ("tallyqa/train/34/0", "wrong type"),
        ("tallyqa/train/35/0", "wrong type"),
        ("tallyqa/train/36/0", "wrong value"),
        ("tallyqa/train/37/0", "missing field"),
        ("tallyqa/train/31/0", "duplicate uid"),
    ]


def test_pictures_lie_beside_the_file_or_where_the_option_says(tmp_path):
    write_json(tmp_path / "test.json", [row(1)])
    (tmp_path / "images").mkdir()
    (only,) = open_dataset("tallyqa", tmp_path)
    assert only.images[0].path == str(tmp_path / "images/VG_100K_2/1.jpg")
    (tmp_path / "coco").mkdir()
    (only,) = open_dataset("tallyqa", tmp_path / "test.json", images=str(tmp_path / "coco"))
    assert only.images[0].path == str(tmp_path / "coco/VG_100K_2/1.jpg")
    with pytest.raises(UserError, match="nowhere: expected a folder, found none there"):
        open_dataset("tallyqa", tmp_path, images=str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="expected a file of split train, its name says test"):
        open_dataset("tallyqa", tmp_path / "test.json", "train")


def test_the_cauldron_layout(tmp_path):
    def text(user, assistant):
        return {"user": user, "assistant": assistant, "source": "TallyQA"}

    shared = [{"bytes": png(), "path": None}]
    rows = [
        {"images": shared, "texts": [text("How many cars?\nAnswer briefly.", "2."),
                                     text("How many cats?", "0")]},
        {"images": shared, "texts": [text("How many dogs?", "Many."), text("How many?", "11.")]},
    ]  # fmt: skip
    write_parquet(tmp_path / "tallyqa" / "train-00000-of-00001.parquet", rows)
    found = list(open_dataset("tallyqa", tmp_path, "train"))
    place = "tallyqa/train/train-00000-of-00001.parquet"
    assert [(r.uid, r.question, r.ground_truth) for r in records_of(found)] == [
        (f"{place}:1/0", "How many cars?", "2"),
        (f"{place}:1/1", "How many cats?", "0"),
        (f"{place}:2/1", "How many?", "11"),
    ]
    assert faults_of(found) == [(f"{place}:2/0", "wrong type")]
    assert decode_picture(found[0].images[0]).size == (4, 3)
    assert found[0].meta["simple"] is None
    with pytest.raises(UserError, match=r"expected TallyQA: test\.json .*found only split train"):
        open_dataset("tallyqa", tmp_path, "test")


@needs_samples
def test_samples():
    (real,) = open_dataset("tallyqa", SAMPLES / "tallyqa" / "README_example.1.json")
    assert (real.uid, real.ground_truth) == ("tallyqa/test/30095774/0", "4")
    path = SAMPLES / "tallyqa" / "MADEUP_from_coco_instances.json"
    made = list(open_dataset("tallyqa", path, images=SAMPLES / "coco"))
    assert len(records_of(made)) == len(made) == 57
    assert {image.name for r in made for image in r.images} == {
        str(path) for path in (SAMPLES / "coco" / "val2017").iterdir()
    }
    assert sum(r.ground_truth == "1" for r in made) == round(0.6842 * 57)
