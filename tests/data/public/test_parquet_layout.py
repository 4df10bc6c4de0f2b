"""Shards in order, row groups resumed, pictures as structs, damaged files named."""

import pytest

from tests.data.public.files import cut_in_half, png, write_parquet
from tests.samples import SAMPLES, needs_samples
from tiger_jax.data.public.parquet_layout import (
    ParquetRows,
    RowPlace,
    columns_of,
    count_rows,
    find_shards,
    picture_of,
    pictures_of,
    splits_of,
)
from tiger_jax.data.public.record import BadRecord, Picture
from tiger_jax.data.public.rows import Row
from tiger_jax.errors import UserError

pa = pytest.importorskip("pyarrow")
SIZES = (5, 0, 3)
"""Rows of the three shards; row groups hold two."""


@pytest.fixture
def shards(tmp_path):
    """Rows 0 to 7, whose last shard lacks the optional column."""
    start = 0
    for shard, size in enumerate(SIZES):
        rows = [{"id": start + i, "text": f"t{start + i}", "more": 1} for i in range(size)]
        if shard == 2:
            rows = [{"id": row["id"], "text": row["text"]} for row in rows]
        path = tmp_path / f"data/train-{shard:05d}-of-00003.parquet"
        if rows:
            write_parquet(path, rows)
        else:
            columns = {"id": pa.array([], pa.int64()), "text": pa.array([], pa.string())}
            pa.parquet.write_table(pa.table(columns), path)
        start += size
    return find_shards(tmp_path, "train")


def ids(rows) -> list[int]:
    return [row.fields["id"] for row in rows]


def test_rows_come_in_the_order_of_shards(shards):
    assert [path.name[:11] for path in shards] == ["train-00000", "train-00001", "train-00002"]
    rows = list(ParquetRows(shards, ["id"], ["more"]))
    assert ids(rows) == list(range(8))
    assert rows[0].fields == {"id": 0, "more": 1}  # "text" was not asked for
    assert rows[7].fields == {"id": 7}
    places = [row.place for row in rows]
    assert places[4:6] == ["train-00000-of-00003.parquet:5", "train-00002-of-00003.parquet:1"]
    assert count_rows(shards) == 8
    assert columns_of(shards[0]) == ("id", "text", "more")


@pytest.mark.parametrize("taken", range(9))
def test_reading_goes_on_where_it_stopped(shards, taken):
    rows = ParquetRows(shards, ["id"])
    first = [next(rows) for _ in range(taken)]
    rest = list(ParquetRows(shards, ["id"], start=rows.place))
    assert ids(first) + ids(rest) == list(range(8))
    assert [row.place for row in rest] == [row.place for row in rows]


def test_place_names_row_groups(shards):
    rows = ParquetRows(shards, ["id"])
    assert rows.place == RowPlace(0, 0, 0)
    for _ in range(4):
        next(rows)
    assert rows.place == RowPlace(shard=0, row_group=1, row=2)


def test_only_a_few_rows_are_decoded_at_once(tmp_path, monkeypatch):
    from tiger_jax.data.public import parquet_layout

    monkeypatch.setattr(parquet_layout, "ROWS_AT_ONCE", 2)
    path = write_parquet(tmp_path / "a.parquet", [{"id": i} for i in range(7)], row_group=5)
    assert ids(ParquetRows([path], ["id"])) == list(range(7))


def test_layouts_of_a_folder(tmp_path):
    row = [{"id": 0}]
    assert find_shards(tmp_path, "train") == ()
    assert find_shards(tmp_path / "none", "train") == ()
    alone = write_parquet(tmp_path / "a/train.parquet", row)
    hashed = write_parquet(tmp_path / "b/validation-00000-of-00001-0a1b2c.parquet", row)
    write_parquet(tmp_path / "b/val_extra-00000-of-00001.parquet", row)
    assert find_shards(tmp_path, "train") == (alone,)
    assert find_shards(tmp_path, "val") == (hashed,)
    assert find_shards(tmp_path / "b", "validation") == (hashed,)
    assert splits_of(tmp_path) == ("val_extra", "validation")


def test_a_split_in_two_folders_is_not_guessed(tmp_path):
    for name in ("ScienceQA-FULL", "ScienceQA-IMG"):
        write_parquet(tmp_path / name / "test-00000-of-00001.parquet", [{"id": 0}])
    with pytest.raises(UserError, match="in one folder, found it in ScienceQA-FULL, ScienceQA-IMG"):
        find_shards(tmp_path, "test")
    assert len(find_shards(tmp_path / "ScienceQA-IMG", "test")) == 1


def test_a_missing_shard_is_named(tmp_path):
    for shard in (0, 2):
        write_parquet(tmp_path / f"test-{shard:05d}-of-00003.parquet", [{"id": shard}])
    with pytest.raises(UserError, match=r"expected test-00001-of-00003\.parquet, found 2 of 3"):
        find_shards(tmp_path, "test")
    write_parquet(tmp_path / "test-00001-of-00002.parquet", [{"id": 1}])
    with pytest.raises(UserError, match=r"found counts \[2, 3\]"):
        find_shards(tmp_path, "test")


def test_one_file_is_the_split_that_its_name_says(tmp_path):
    path = write_parquet(tmp_path / "test-00001-of-00003.parquet", [{"id": 0}])
    assert find_shards(path, "test") == (path,)
    with pytest.raises(UserError, match="expected split train, got test"):
        find_shards(path, "train")
    own = write_parquet(tmp_path / "MADEUP_test-00000-of-00001.parquet", [{"id": 0}])
    free = write_parquet(tmp_path / "anything.parquet", [{"id": 0}])
    assert find_shards(own, "test") == (own,)
    assert find_shards(free, "train") == (free,)
    other = tmp_path / "x.json"
    other.write_text("[]")
    assert find_shards(other, "train") == ()


def test_damaged_files_are_named(tmp_path, shards):
    with pytest.raises(UserError, match=r"00000-of-00003\.parquet: expected column 'image', found"):
        list(ParquetRows(shards, ["image"]))
    cut_in_half(shards[2])
    rows = ParquetRows(shards, ["id"])
    assert ids(next(rows) for _ in range(5)) == list(range(5))
    with pytest.raises(UserError, match=r"train-00002-of-00003\.parquet: damaged parquet file"):
        next(rows)
    empty = tmp_path / "train.parquet"
    empty.write_bytes(b"")
    with pytest.raises(UserError, match=r"train\.parquet: damaged parquet file"):
        columns_of(empty)


def test_damaged_pages_are_named(tmp_path):
    text = [{"id": i, "text": f"{i} " * 500} for i in range(40)]
    path = write_parquet(tmp_path / "a.parquet", text, row_group=40)
    content = bytearray(path.read_bytes())
    content[60:400] = b"\xff" * 340  # the footer, which is at the end, stays whole
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"a\.parquet: damaged parquet file") as caught:
        list(ParquetRows([path], ["id", "text"]))
    assert "\n" not in str(caught.value)


def test_pictures_of_columns(tmp_path):
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    both = {"bytes": png(), "path": "a.png"}
    only_path = {"bytes": None, "path": "b.png"}
    rows = [
        {"image": both, "many": [both, only_path]},
        {"image": {"bytes": png("blue"), "path": None}, "many": []},
        {"image": only_path, "many": None},
        {"image": {"bytes": None, "path": None}, "many": [None]},
        {"image": None, "many": [{"bytes": None, "path": None}, both]},
    ]
    path = write_parquet(tmp_path / "a.parquet", rows, 2, {"image": image, "many": pa.list_(image)})
    found = list(ParquetRows([path], ["image", "many"]))
    assert [picture_of(row, "image", tmp_path) for row in found] == [
        Picture("a.png", png()), Picture(None, png("blue")), Picture(str(tmp_path / "b.png")),
        None, None,
    ]  # fmt: skip
    assert pictures_of(found[0], "many") == (Picture("a.png", png()), Picture("b.png"))
    assert pictures_of(found[1], "many") == pictures_of(found[2], "many") == ()
    for row in found[3:]:
        with pytest.raises(BadRecord) as caught:
            pictures_of(row, "many")
        assert caught.value.kind == "missing image"


@pytest.mark.parametrize("value", ["a.png", 5, {"bytes": "text"}, {"path": 3}, [1]])
def test_a_picture_of_another_type_is_a_fault(value):
    with pytest.raises(BadRecord, match=r"f:1: image: expected struct<bytes, path>"):
        picture_of(Row("f:1", {"image": value}), "image")


@needs_samples
@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("chartqa/hf_layout/train-00000-of-00001", 3), ("coco/hf_layout/val-00000-of-00001", 4),
        ("mm-vet/hf_layout/test-00000-of-00001", 6), ("muirbench/MADEUP_test-00000-of-00001", 3),
        ("nlvr2/STANDIN_hf_layout", 2), ("scienceqa/hf_layout/test-00000-of-00001", 25),
        ("video-mme/MADEUP_test-00000-of-00001", 3),
    ],
)  # fmt: skip
def test_sample_shards_in_full(name, rows):
    path = SAMPLES / f"{name}.parquet"
    found = list(ParquetRows([path], columns_of(path)))
    assert len(found) == count_rows([path]) == rows
