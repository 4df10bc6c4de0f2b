"""MMBench: cells that are texts, pictures by reference, rotations read and made."""

import base64
import csv

import pytest

from tests.data.public.files import faults_of, png, records_of, write_parquet
from tests.samples import SAMPLES, needs_samples
from tiger_jax.data.public.dataset import decode_picture
from tiger_jax.data.public.mmbench_pictures import PictureCells
from tiger_jax.data.public.record import PublicRecord
from tiger_jax.data.public.registry import open_dataset
from tiger_jax.data.public.rows import tsv_rows
from tiger_jax.errors import UserError

RED = base64.b64encode(png("red", (40, 30))).decode()
BLUE = base64.b64encode(png("blue", (40, 30))).decode()
COLUMNS = [
    "index",
    "question",
    "hint",
    "A",
    "B",
    "C",
    "D",
    "answer",
    "category",
    "image",
    "source",
    "l2-category",
    "comment",
    "split",
]
ROW = {"question": "Which?", "A": "six", "B": "five", "C": "None", "D": "NA", "answer": "C"}


def written(path, rows):
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, COLUMNS, restval="", delimiter="\t", lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    return path


def test_cells_are_texts_and_none_is_an_option(tmp_path):
    rows = [
        {**ROW, "index": 7, "image": RED, "hint": "nan", "category": "c", "l2-category": "l"},
        {**ROW, "index": 8, "image": BLUE, "hint": "two\nlines", "C": "", "D": "", "answer": "B"},
        {**ROW, "index": 9, "image": RED, "answer": ""},
    ]
    written(tmp_path / "MMBench_DEV_EN.tsv", rows)
    first, second, hidden = open_dataset("mmbench", tmp_path)
    assert first.uid == "mmbench/dev/7/0"
    assert first.choices == ("six", "five", "None", "NA")
    assert (first.answers, first.ground_truth) == (("C",), "C")
    assert first.meta == {
        "index": 7,
        "group": 7,
        "rotation": 0,
        "hint": None,
        "category": "c",
        "l2_category": "l",
    }
    assert (second.choices, second.meta["hint"]) == (("six", "five"), "two\nlines")
    assert decode_picture(second.images[0]).getpixel((0, 0)) == (0, 0, 255)
    assert (hidden.answers, hidden.ground_truth) == ((), None)


def test_bad_rows_spoil_no_neighbour(tmp_path):
    rows = [
        {**ROW, "index": "x", "image": RED},
        {**ROW, "index": 1, "image": RED, "answer": "E"},
        {**ROW, "index": 2, "image": RED, "C": ""},
        {**ROW, "index": 3, "image": RED, "A": "", "B": "", "C": "", "D": ""},
        {**ROW, "index": 4, "image": ""},
        {**ROW, "index": 5, "image": "99"},
        {**ROW, "index": 6, "image": "5"},
        {**ROW, "index": 8, "image": "no base64!" * 10},
        {**ROW, "index": 9, "image": "\u00e9" * 100},
        {**ROW, "index": "--5", "image": RED},
        {**ROW, "index": 7, "image": RED},
    ]
    path = written(tmp_path / "MMBench_DEV_EN.tsv", rows)
    found = list(open_dataset("mmbench", path))
    assert [r.uid for r in records_of(found)] == ["mmbench/dev/7/0"]
    assert faults_of(found) == [
        ("MMBench_DEV_EN.tsv:2", "wrong type"),
        ("mmbench/dev/1/0", "wrong value"),
        ("mmbench/dev/2/0", "wrong value"),
        ("mmbench/dev/3/0", "wrong value"),
        ("mmbench/dev/4/0", "missing image"),
        ("mmbench/dev/5/0", "missing image"),
        ("mmbench/dev/6/0", "missing image"),
        ("mmbench/dev/8/0", "damaged image"),
        ("mmbench/dev/9/0", "damaged image"),
        ("MMBench_DEV_EN.tsv:11", "wrong type"),
    ]


def test_references_before_and_after_the_row_they_name(tmp_path):
    rows = [
        {**ROW, "index": 1_000_002, "image": "2"},
        {**ROW, "index": 1, "image": RED},
        {**ROW, "index": 2, "image": BLUE},
        {**ROW, "index": 2_000_002, "image": "2"},
        {**ROW, "index": 1_000_001, "image": "1"},
        {**ROW, "index": 3_000_002, "image": " 2 "},
    ]
    written(tmp_path / "MMBench_DEV_EN.tsv", rows)
    dataset = open_dataset("mmbench", tmp_path)
    for _ in range(2):
        found = list(dataset)
        shown = [decode_picture(r.images[0]).getpixel((0, 0))[2] // 255 for r in found]
        assert shown == [1, 0, 1, 1, 0, 1]
        assert [(r.meta["group"], r.meta["rotation"]) for r in found] == [
            (2, 1),
            (1, 0),
            (2, 0),
            (2, 2),
            (1, 1),
            (2, 3),
        ]


def test_pictures_are_kept_only_while_rows_still_refer_to_them(tmp_path):
    rows = [
        {**ROW, "index": 1, "image": RED},
        {**ROW, "index": 1_000_001, "image": "1"},
        {**ROW, "index": 2, "image": BLUE},
        {**ROW, "index": 2_000_001, "image": "1"},
    ]
    path = written(tmp_path / "MMBench_DEV_EN.tsv", rows)
    cells = PictureCells(path)
    kept = []
    for row in tsv_rows(path):
        cells.cell(row, row.integer("index", from_text=True))
        kept.append(cells.kept)
    assert kept == [{1}, {1}, {1}, set()]


def test_rotations_are_made_where_the_file_has_none(tmp_path):
    rows = [
        {**ROW, "index": 1, "image": RED, "D": ""},
        {**ROW, "index": 2, "image": BLUE},
        {**ROW, "index": 1_000_002, "image": "2", "question": "From the file"},
    ]
    path = written(tmp_path / "MMBench_DEV_EN.tsv", rows)
    found = list(open_dataset("mmbench", path, circular=True))
    assert [r.uid.split("/")[2] for r in found] == [
        "1", "1000001", "2000001", "2", "2000002", "3000002", "1000002",
    ]  # fmt: skip
    assert [(r.choices, r.ground_truth, r.answers) for r in found[:3]] == [
        (("six", "five", "None"), "C", ("C",)),
        (("five", "None", "six"), "B", ("B",)),
        (("None", "six", "five"), "A", ("A",)),
    ]
    assert (found[1].meta["index"], found[1].meta["group"], found[1].meta["rotation"]) == (
        1_000_001,
        1,
        1,
    )
    assert found[1].images == found[0].images
    assert found[-1].question == "From the file"
    assert len(list(open_dataset("mmbench", path))) == 3


def test_which_file(tmp_path):
    written(tmp_path / "mmbench_dev_cn.mine.tsv", [])
    written(tmp_path / "MMBench_DEV_EN_V11.tsv", [{**ROW, "index": 11, "image": RED}])
    written(tmp_path / "MMBench_DEV_EN_legacy.tsv", [{**ROW, "index": 9, "image": RED}])
    (only,) = open_dataset("mmbench", tmp_path)
    assert only.uid == "mmbench/dev/11/0"
    assert list(open_dataset("mmbench", tmp_path, language="cn")) == []
    (tmp_path / "MMBench_DEV_EN_V11.tsv").rename(tmp_path / "mmbench_dev_en_x.tsv")
    with pytest.raises(UserError, match=r"expected one file mmbench_dev_en\*\.tsv, found .*name o"):
        open_dataset("mmbench", tmp_path)
    with pytest.raises(UserError, match=r"expected MMBench: MMBENCH_TEST_EN\.tsv"):
        open_dataset("mmbench", tmp_path, "test")
    with pytest.raises(UserError, match="expected a file of split test, its name says dev"):
        open_dataset("mmbench", tmp_path / "mmbench_dev_cn.mine.tsv", "test")
    with pytest.raises(UserError, match="language: expected en or cn, got 'de'"):
        open_dataset("mmbench", tmp_path, language="de")
    (tmp_path / "no.tsv").write_text("index\tquestion\n")
    with pytest.raises(UserError, match=r"no\.tsv: expected column 'A'"):
        list(open_dataset("mmbench", tmp_path / "no.tsv"))


def test_hugging_face_layout(tmp_path):
    def row(index, answer, **changes):
        image = {"bytes": png("red"), "path": None}
        fields = {"index": index, "question": "q?", "hint": "nan", "answer": answer, "A": "x"}
        fields |= {"B": "y", "C": "z", "D": "nan", "category": "c", "image": image}
        return {**fields, "L2-category": "l", **changes}

    rows = [row(3, "A"), row(1_000_003, "C"), row(4, "D"), row(5, "B", image=None), row(6, "B")]
    for language in ("en", "cn"):
        write_parquet(tmp_path / language / "dev-00000-of-00001.parquet", rows)
    found = list(open_dataset("mmbench", tmp_path))
    base, rotated, last = records_of(found)
    assert base.choices == ("x", "y", "z")
    assert base.meta == {
        "index": 3,
        "group": 3,
        "rotation": 0,
        "hint": None,
        "category": "c",
        "l2_category": "l",
    }
    assert (rotated.uid, rotated.ground_truth) == ("mmbench/dev/1000003/0", "C")
    assert last.uid == "mmbench/dev/6/0"
    assert faults_of(found) == [
        ("mmbench/dev/4/0", "wrong value"),
        ("mmbench/dev/5/0", "missing image"),
    ]
    made = records_of(open_dataset("mmbench", tmp_path, circular=True))
    assert [r.meta["index"] for r in made] == [
        3, 2_000_003, 1_000_003, 6, 1_000_006, 2_000_006,
    ]  # fmt: skip


@needs_samples
def test_samples():
    folder = SAMPLES / "mmbench"
    english = list(open_dataset("mmbench", folder / "mmbench_dev_en.readme_samples.tsv"))
    chinese = list(open_dataset("mmbench", folder, language="cn"))
    assert len(english) == len(chinese) == 20
    assert [r.uid for r in english] == [r.uid for r in chinese]
    stored = list(open_dataset("mmbench", folder / "MMBench_DEV_EN.circular_derived.tsv"))
    path = folder / "mmbench_dev_en.readme_samples.tsv"
    made = list(open_dataset("mmbench", path, circular=True))
    assert len(stored) == len(made) == 78
    assert all(isinstance(r, PublicRecord) for r in [*stored, *made])
    # What we make is what the official file stores: questions, order of options, gold, picture.
    assert {r.uid: (r.choices, r.ground_truth, r.images[0].sha256()) for r in stored} == {
        r.uid: (r.choices, r.ground_truth, r.images[0].sha256()) for r in made
    }
    assert all(decode_picture(r.images[0]).mode == "RGB" for r in english)
