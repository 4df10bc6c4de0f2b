"""COCO captions: years kept apart, captions that name no picture, one record a picture."""

import pytest

from tests.data.public.files import (
    faults_of,
    png,
    records_of,
    write_json,
    write_parquet,
    write_picture,
)
from tests.samples import SAMPLES, needs_samples
from tiger_jax.data.public.dataset import decode_picture, picture_fault
from tiger_jax.data.public.registry import open_dataset
from tiger_jax.errors import UserError


def captions_file(path, names, annotations):
    """names: file name -> id; annotations: (image id, caption)."""
    return write_json(
        path,
        {
            "info": {"year": 2017},
            "images": [{"id": i, "file_name": name} for name, i in names.items()],
            "annotations": [
                {"id": n, "image_id": i, "caption": caption}
                for n, (i, caption) in enumerate(annotations)
            ],
        },
    )


def test_official_layout(tmp_path):
    names = {"000000000007.jpg": 7, "000000000009.jpg": 8, "000000000005.jpg": 5}
    annotations = [(7, "A cat."), (5, None), (8, "x"), (7, "Another."), (99, "Whose?"), (99, "?")]
    captions_file(tmp_path / "annotations" / "captions_val2017.json", names, annotations)
    picture = write_picture(tmp_path / "val2017" / "000000000007.jpg")
    found = list(open_dataset("coco_captions", tmp_path))
    (record,) = records_of(found)
    assert record.uid == "coco_captions/val/2017-7/0"
    assert (record.question, record.choices) == ("", None)
    assert record.answers == ("A cat.", "Another.")
    assert record.ground_truth == "A cat."
    assert record.images[0].path == str(picture)
    assert record.meta == {"image_id": 7, "file_name": "000000000007.jpg"}
    assert faults_of(found) == [
        ("captions_val2017.json:2", "missing field"),
        ("coco_captions/val/2017-8/0", "wrong file name"),
        ("coco_captions/val/2017-5/0", "missing captions"),
        ("coco_captions/val/2017-99/0", "dangling annotation"),
    ]
    assert "which 2 captions name" in found[-1].message


def test_pictures_of_one_year_with_captions_of_the_other(tmp_path):
    """data.md 6.21: the same ids are in both, so nothing but the name shows it."""
    names = {"COCO_val2014_000000000007.jpg": 7, "000000000008.jpg": 8}
    path = tmp_path / "captions_val2014.json"
    captions_file(path, names, [(7, "A cat."), (8, "A dog.")])
    found = list(open_dataset("coco_captions", tmp_path))
    assert [r.uid for r in records_of(found)] == ["coco_captions/val/2014-7/0"]
    assert faults_of(found) == [("coco_captions/val/2014-8/0", "wrong file name")]
    # 2017 where both are there, unless the year is asked for.
    captions_file(tmp_path / "captions_val2017.json", {"000000000008.jpg": 8}, [(8, "A dog.")])
    assert [r.uid for r in open_dataset("coco_captions", tmp_path)] == [
        "coco_captions/val/2017-8/0"
    ]
    assert records_of(open_dataset("coco_captions", tmp_path, year="2014"))[0].uid.endswith(
        "2014-7/0"
    )
    with pytest.raises(UserError, match="expected a file named after 2014"):
        open_dataset("coco_captions", tmp_path / "captions_val2017.json", year="2014")
    path.rename(tmp_path / "captions.json")
    with pytest.raises(UserError, match="named after its year: 2014 or 2017"):
        open_dataset("coco_captions", tmp_path / "captions.json")
    with pytest.raises(UserError, match="expected a file of split train, its name says val"):
        open_dataset("coco_captions", tmp_path / "captions_val2017.json", "train")


def sentence(raw, imgid):
    return {"raw": raw, "tokens": raw.split(), "imgid": imgid, "sentid": 0}


def test_karpathy_layout(tmp_path):
    def image(cocoid, split, *texts):
        return {
            "filepath": "val2014",
            "filename": f"COCO_val2014_{cocoid:012d}.jpg",
            "imgid": cocoid + 100,
            "cocoid": cocoid,
            "split": split,
            "sentences": [sentence(text, cocoid + 100) for text in texts],
        }

    images = [
        image(1, "test", "A.", "B."),
        image(2, "restval", "C."),
        image(3, "train", "D."),
        image(4, "test"),
        {**image(5, "test", "E."), "sentences": [1]},
    ]
    write_json(tmp_path / "dataset_coco.json", {"images": images, "dataset": "coco"})
    write_picture(tmp_path / "val2014" / "COCO_val2014_000000000001.jpg")
    found = list(open_dataset("coco_captions", tmp_path, "test"))
    (record,) = records_of(found)
    assert (record.uid, record.answers) == ("coco_captions/test/2014-1/0", ("A.", "B."))
    assert picture_fault(record) is None
    assert faults_of(found) == [
        ("coco_captions/test/2014-4/0", "missing captions"),
        ("coco_captions/test/2014-5/0", "wrong type"),
    ]
    train = open_dataset("coco_captions", tmp_path / "dataset_coco.json", "train")
    assert [r.meta["image_id"] for r in train] == [2, 3]
    assert list(open_dataset("coco_captions", tmp_path, "val")) == []
    # The official captions of val go before Karpathy's, unless these are asked for.
    names = {"COCO_val2014_000000000001.jpg": 1}
    captions_file(tmp_path / "captions_val2014.json", names, [(1, "Z.")])
    assert [r.ground_truth for r in open_dataset("coco_captions", tmp_path, "val")] == ["Z."]
    assert list(open_dataset("coco_captions", tmp_path, "val", karpathy=True)) == []
    with pytest.raises(UserError, match="expected COCO captions: annotations/captions_train2017"):
        open_dataset("coco_captions", tmp_path, "train", karpathy=False)
    with pytest.raises(UserError, match="expected COCO captions: annotations/captions_train2017"):
        open_dataset("coco_captions", tmp_path, "train", year="2017")  # Karpathy's are of 2014
    with pytest.raises(UserError, match="year: expected 2017 or 2014, got '1999'"):
        open_dataset("coco_captions", tmp_path, year="1999")
    with pytest.raises(UserError, match="year: expected 2014 for Karpathy's splits"):
        open_dataset("coco_captions", tmp_path, "test", year="2017", karpathy=True)


def test_rows_that_are_pictures(tmp_path):
    def row(image_id, name, answer):
        return {"id": image_id, "file_name": name, "answer": answer,
                "image": {"bytes": png(), "path": None}, "question": "Please caption"}  # fmt: skip

    rows = [
        row(7, "000000000007.jpg", ["A.", "B."]),
        row(8, "COCO_val2014_000000000008.jpg", ["C"]),
    ]
    rows += [row(9, "000000000009.jpg", [])]
    for split in ("val", "test"):
        write_parquet(tmp_path / "data" / f"{split}-00000-of-00001.parquet", rows)
    found = list(open_dataset("coco_captions", tmp_path))
    assert [(r.uid, r.answers, r.question) for r in records_of(found)] == [
        ("coco_captions/val/2017-7/0", ("A.", "B."), ""),
        ("coco_captions/val/2014-8/0", ("C",), ""),
    ]
    assert faults_of(found) == [("coco_captions/val/2017-9/0", "missing captions")]
    only = list(open_dataset("coco_captions", tmp_path, year="2014"))
    assert [r.uid for r in records_of(only)] == ["coco_captions/val/2014-8/0"]
    assert faults_of(only)[0] == ("coco_captions/val/2014-7/0", "wrong file name")
    with pytest.raises(UserError, match=r"expected Karpathy's captions, val-.* official ones"):
        open_dataset("coco_captions", tmp_path, karpathy=True)
    hidden = records_of(open_dataset("coco_captions", tmp_path, "test"))[-1]
    assert (hidden.answers, hidden.ground_truth) == ((), None)


def test_rows_that_are_sentences(tmp_path):
    def row(cocoid, text, color):
        return {
            "image": {"bytes": png(color), "path": None},
            "filename": f"COCO_val2014_{cocoid:012d}.jpg",
            "imgid": cocoid + 100,
            "cocoid": cocoid,
            "sentences": sentence(text, cocoid + 100),
        }

    rows = [row(1, "A.", "red"), row(1, "B.", "red"), row(2, "C.", "blue"), row(1, "D.", "red")]
    write_parquet(tmp_path / "data" / "test-00000-of-00001.parquet", rows)
    first, second = open_dataset("coco_captions", tmp_path, "test")
    assert (first.uid, first.answers) == ("coco_captions/test/2014-1/0", ("A.", "B.", "D."))
    assert second.answers == ("C.",)
    assert decode_picture(second.images[0]).getpixel((0, 0)) == (0, 0, 255)
    for options, wanted in (({"year": "2017"}, "official 2017"), ({"karpathy": False}, "official")):
        with pytest.raises(UserError, match=f"the {wanted} captions, test-.* holds Karpathy's"):
            open_dataset("coco_captions", tmp_path, "test", **options)


@needs_samples
def test_samples():
    folder = SAMPLES / "coco"
    for split, n, n_captions in (("train", 14, 70), ("val", 16, 80)):
        found = list(open_dataset("coco_captions", folder, split))
        assert (len(records_of(found)), len(found)) == (n, n)
        assert sum(len(r.answers) for r in found) == n_captions
        assert all(picture_fault(r) is None for r in found)
    path = folder / "caption_eval" / "captions_val2017.first120.json"
    found = list(open_dataset("coco_captions", path))
    assert len(records_of(found)) == len(found) == 120
    assert sum(len(r.answers) for r in found) == 601
    rows = list(open_dataset("coco_captions", folder / "hf_layout"))
    assert len(rows) == 4
    by_uid = {r.uid: r for r in open_dataset("coco_captions", folder)}
    for row in rows:
        same = by_uid[row.uid]
        assert (sorted(row.answers), row.meta) == (sorted(same.answers), same.meta)
        assert row.images[0].sha256() == same.images[0].sha256()
