"""NLVR2: JSON Lines under .json, pictures that are no PNG under .png, groups of one sentence."""

import pytest
from PIL import Image

from tests.data.public.files import (
    faults_of,
    png,
    records_of,
    write_json_lines,
    write_parquet,
    write_picture,
)
from tests.samples import SAMPLES, needs_samples
from tiger_jax.data.public.dataset import decode_picture, picture_fault
from tiger_jax.data.public.registry import open_dataset
from tiger_jax.errors import UserError


def line(identifier, label="True", **changes):
    return {"identifier": identifier, "sentence": "One is red.", "label": label, **changes}


def test_original_layout(tmp_path):
    rows = [
        line("dev-850-0-0", "False"),
        line("dev-850-2-0", "true"),
        line("dev-850-2-1", "maybe"),
        line("dev-850"),
        line(None),
        line("dev-850-3-1", None),
    ]
    path = write_json_lines(tmp_path / "dev.json", rows)
    path.write_text(path.read_text() + "{not json\n" + path.read_text().splitlines()[0] + "\n")
    found = list(open_dataset("nlvr2", tmp_path, "dev"))
    first, second, hidden = records_of(found)
    assert (first.uid, first.question) == ("nlvr2/dev/dev-850-0-0/0", "One is red.")
    assert (first.answers, first.ground_truth) == (("False",), "False")
    assert first.meta == {"identifier": "dev-850-0-0", "group": "dev-850-0"}
    assert [image.path for image in first.images] == [
        str(tmp_path / "dev-850-0-img0.png"),
        str(tmp_path / "dev-850-0-img1.png"),
    ]
    assert (second.ground_truth, second.meta["group"]) == ("True", "dev-850-0")
    assert (hidden.answers, hidden.ground_truth, hidden.meta["group"]) == ((), None, "dev-850-1")
    assert faults_of(found) == [
        ("nlvr2/dev/dev-850-2-1/0", "wrong value"),
        ("nlvr2/dev/dev-850/0", "wrong value"),
        ("dev.json:5", "missing field"),
        ("dev.json:7", "not JSON"),
        ("nlvr2/dev/dev-850-0-0/0", "duplicate uid"),
    ]


def test_pictures_of_each_split(tmp_path):
    (tmp_path / "data" / "balanced").mkdir(parents=True)
    write_json_lines(tmp_path / "data" / "train.json", [line("train-1-0-0", directory=37)])
    write_json_lines(tmp_path / "data/balanced/balanced_test1.json", [line("test1-0-1-0")])
    left = write_picture(tmp_path / "images/train/37/train-1-0-img0.png")
    write_picture(tmp_path / "images/train/37/train-1-0-img1.png")
    (only,) = open_dataset("nlvr2", tmp_path, "train")
    assert only.images[0].path == str(left)
    assert picture_fault(only) is None
    # Pictures are what their bytes are, whatever the name says.
    Image.new("RGB", (8, 5)).save(left, "JPEG")
    assert decode_picture(only.images[0]).size == (8, 5)
    left.unlink()
    assert picture_fault(only).kind == "missing image"
    (tmp_path / "images" / "test1").mkdir()
    (only,) = open_dataset("nlvr2", tmp_path, "balanced_test1")
    assert only.uid == "nlvr2/balanced_test1/test1-0-1-0/0"
    assert only.images[0].path == str(tmp_path / "images/test1/test1-0-1-img0.png")


def test_which_file(tmp_path):
    write_json_lines(tmp_path / "dev.sample.json", [line("dev-850-0-0")])
    with pytest.raises(UserError, match="expected a file of split test1, its name says dev"):
        open_dataset("nlvr2", tmp_path / "dev.sample.json")
    with pytest.raises(UserError, match=r"expected NLVR2: test1\.json or test_public-00000"):
        open_dataset("nlvr2", tmp_path)


def test_hugging_face_layout(tmp_path):
    def row(identifier, answer, right=True):
        left = {"bytes": png("red"), "path": None}
        other = {"bytes": png("blue", (9, 9)), "path": None} if right else None
        fields = {"question_id": identifier, "question": "q", "answer": answer}
        return {**fields, "left_image": left, "right_image": other}

    rows = [row("test1-0-1-2", "True"), row("x7", "False"), row("test1-0-2-2", "True", False)]
    write_parquet(tmp_path / "data" / "balanced_test_public-00000-of-00001.parquet", rows)
    found = list(open_dataset("nlvr2", tmp_path, "balanced_test1"))
    first, second = records_of(found)
    assert first.uid == "nlvr2/balanced_test1/test1-0-1-2/0"
    assert first.meta == {"identifier": "test1-0-1-2", "group": "test1-0-2"}
    assert [decode_picture(image).size for image in first.images] == [(4, 3), (9, 9)]
    assert (second.ground_truth, second.meta["group"]) == ("False", None)
    assert faults_of(found) == [("nlvr2/balanced_test1/test1-0-2-2/0", "missing image")]
    with pytest.raises(UserError, match="found only split balanced_test_public"):
        open_dataset("nlvr2", tmp_path, "dev")


@needs_samples
def test_samples():
    folder = SAMPLES / "nlvr2"
    images = folder / "STANDIN_images"
    dev = list(open_dataset("nlvr2", folder / "dev.sample.json", "dev", images=images))
    test1 = list(open_dataset("nlvr2", folder / "test1.sample.json"))
    assert [len(records_of(dev)), len(records_of(test1))] == [44, 44]
    assert sum(r.ground_truth == "True" for r in dev) == 22
    for found in (dev, test1):
        groups = [r.meta["group"] for r in found]
        sizes = sorted(groups.count(group) for group in set(groups))
        assert sizes == [2, 2, *[4] * 10]
    pictured = [r for r in dev if picture_fault(r) is None]
    assert {r.meta["identifier"].rpartition("-")[0] for r in pictured} == {
        "dev-850-0",
        "dev-850-2",
    }
    rows = list(open_dataset("nlvr2", folder / "STANDIN_hf_layout.parquet", "dev"))
    assert len(rows) == 2
    by_uid = {r.uid: r for r in dev}
    for row in rows:
        same = by_uid[row.uid]
        assert (row.question, row.ground_truth, row.meta) == (
            same.question,
            same.ground_truth,
            same.meta,
        )
        assert [p.sha256() for p in row.images] == [p.sha256() for p in same.images]
