"""Records, pictures, and data sets opened by name."""

import hashlib

import numpy as np
import pytest

from tests.data.public.files import png, write_json, write_picture
from tiger_jax.data.public import registry
from tiger_jax.data.public.dataset import Dataset, Reader, decode_picture, picture_fault
from tiger_jax.data.public.record import BadRecord, Fault, Picture, PublicRecord, record_uid
from tiger_jax.data.public.registry import READERS, open_dataset
from tiger_jax.errors import UserError


def record(uid: str, *pictures: Picture) -> PublicRecord:
    return PublicRecord("made", "val", uid, "What?", pictures)


def test_picture_reads_what_it_holds(tmp_path):
    path = write_picture(tmp_path / "a.png")
    for picture in (Picture(str(path)), Picture(data=path.read_bytes()),
                    Picture("elsewhere.png", path.read_bytes())):  # fmt: skip
        assert picture.read() == path.read_bytes()
        assert picture.sha256() == hashlib.sha256(path.read_bytes()).hexdigest()
        assert np.asarray(decode_picture(picture))[0, 0].tolist() == [255, 0, 0]


def test_picture_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match="found neither"):
        Picture().read()
    with pytest.raises(UserError, match=r"none\.png: expected an image file, found nothing"):
        Picture(str(tmp_path / "none.png")).read()
    with pytest.raises(UserError, match="a folder"):
        Picture(str(tmp_path)).sha256()


def test_empty_bytes_are_a_damaged_picture_and_no_missing_one():
    fault = picture_fault(record("a", Picture(data=png()), Picture(data=b"")))
    assert (fault.uid, fault.kind) == ("a", "damaged image")
    assert fault.message == "embedded picture: expected an image, got an empty file"


def test_picture_faults(tmp_path):
    whole, absent = Picture(data=png()), Picture(str(tmp_path / "x.png"))
    assert picture_fault(record("a", whole, whole)) is None
    assert picture_fault(record("a")) is None
    assert picture_fault(record("a", whole, absent)).kind == "missing image"
    cut = Picture(data=png(size=(50, 50))[:100])
    assert picture_fault(record("a", cut)).kind == "damaged image"


def test_uid_and_fault():
    assert record_uid("textvqa", "val", "34602") == "textvqa/val/34602/0"
    assert record_uid("llava", "train", "a", 3) == "llava/train/a/3"
    assert BadRecord("wrong type", "x: bad").fault("u") == Fault("u", "wrong type", "x: bad")


def made_reader(items) -> Reader:
    return Reader("made", ("train", "val"), "val", lambda root, split, color="red": iter(items))


def test_dataset_starts_anew_and_refuses_a_uid_twice(tmp_path):
    items = [record("a"), Fault("b", "wrong type", "bad"), record("a"), record("b")]
    dataset = Dataset(made_reader(items), tmp_path, "val")
    for _ in range(2):
        got = list(dataset)
        assert got[0] == items[0]
        assert got[1] == items[1]
        assert (got[2].uid, got[2].kind) == ("a", "duplicate uid")
        assert got[3] == items[3]  # a fault does not take the uid


def test_split_names():
    reader = made_reader([])
    assert reader.split_named(None) == "val"
    assert reader.split_named("validation") == "val"
    with pytest.raises(UserError, match="made: expected split train or val, got 'dev'"):
        reader.split_named("dev")
    reader.check_options({"color": "blue"})
    with pytest.raises(UserError, match="expected options out of color, got 'size'"):
        reader.check_options({"size": 3})


def test_open_dataset_tells_at_once_what_is_wrong(tmp_path):
    with pytest.raises(UserError, match="expected one of llava, textvqa"):
        open_dataset("imagenet", tmp_path)
    with pytest.raises(UserError, match="found nothing there"):
        open_dataset("docvqa", tmp_path / "none")
    with pytest.raises(UserError, match=r"expected DocVQA: val_v1\.0_withQT\.json or val_v1\.0"):
        open_dataset("docvqa", tmp_path)
    with pytest.raises(UserError, match="docvqa: expected split train or val or test, got 'dev'"):
        open_dataset("docvqa", tmp_path, "dev")
    with pytest.raises(UserError, match="docvqa: expected options out of none, got 'ocr'"):
        open_dataset("docvqa", tmp_path, ocr="x")


def test_open_dataset_reads_nothing_before_it_is_asked(tmp_path):
    write_json(tmp_path / "val_v1.0.json", {"data": 3})
    dataset = open_dataset("docvqa", tmp_path)
    with pytest.raises(UserError, match="expected an array at 'data'"):
        list(dataset)


@pytest.mark.parametrize("name", ["llava", "textvqa", "scienceqa", "docvqa"])
def test_readers_are_registered_under_their_names(name):
    reader = registry.reader_named(name)
    assert reader.name == name
    assert reader.default_split in reader.splits
    assert READERS[name] == f"tiger_jax.data.public.{name}"
