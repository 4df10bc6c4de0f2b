"""JSON streams over every chunk border, JSON Lines, TSV, and the checks of fields."""

import json
import tracemalloc

import pytest

from tests.data.public.files import cut_in_half, write_json
from tests.samples import SAMPLES, needs_samples
from tiger_jax.data.public import json_stream
from tiger_jax.data.public.record import BadRecord, Fault, PublicRecord
from tiger_jax.data.public.rows import (
    Row,
    build_records,
    json_array,
    json_lines,
    json_members,
    read_json,
    tsv_rows,
)
from tiger_jax.errors import UserError

OBJECTS = [
    {"id": 1, "text": 'a "quote" \\ and , ] } [ {', "n": -1.5e3, "none": None},
    {"id": 23456, "text": "\u00e9\u4e2d\U0001f600\n", "list": [1, [2, {"x": True}], "]"]},
    {},
    {"id": 7, "text": "x" * 50, "wide": float("-inf")},
]


def fields(items) -> list[dict]:
    return [dict(item.fields) for item in items]


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 17, 64, 10_000])
@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_array_is_the_same_over_all_chunk_borders(tmp_path, monkeypatch, chunk, indent, ascii_only):
    monkeypatch.setattr(json_stream, "CHUNK", chunk)
    path = tmp_path / "a.json"
    text = json.dumps(OBJECTS, indent=indent, ensure_ascii=ascii_only)
    path.write_text(f"  {text}\n\n", encoding="utf-8")
    assert fields(json_array(path)) == OBJECTS
    assert [row.place for row in json_array(path)] == [f"a.json:{i}" for i in range(1, 5)]
    whole = {"a": 12, "data": OBJECTS, "b": {"data": [1]}, "c": 345}
    path.write_text(json.dumps(whole, indent=indent, ensure_ascii=ascii_only), encoding="utf-8")
    assert fields(json_array(path, "data")) == OBJECTS


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_members(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(json_stream, "CHUNK", chunk)
    path = write_json(tmp_path / "p.json", {"1": {"a": 1}, "2": [3], "x": {}})
    one, two, three = json_members(path)
    assert one == ("1", Row("p.json:1", {"a": 1}))
    assert (two[0], two[1].kind) == ("2", "wrong type")
    assert three == ("x", Row("p.json:x", {}))


def test_byte_order_mark_and_empty_arrays(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b"\xef\xbb\xbf[]")
    assert list(json_array(path)) == []
    path.write_text('{"data": [ ]}')
    assert list(json_array(path, "data")) == []
    path.write_text("{}")
    assert list(json_members(path)) == []


def test_elements_before_a_cut_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(json_stream, "CHUNK", 8)
    path = write_json(tmp_path / "a.json", OBJECTS)
    whole = path.read_text()
    for end in range(0, len(whole), 3):  # wherever the download broke off
        path.write_text(whole[:end])
        got = []
        with pytest.raises(UserError, match=r"a\.json: element \d+: expected") as caught:
            got.extend(json_array(path))
        assert "\n" not in str(caught.value)
    path.write_text(whole[:-40])
    stream = json_array(path)
    assert [next(stream).fields["id"] for _ in range(2)] == [1, 23456]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "element 0: expected an array, the file ends too early"),
        ("[", "element 1: expected JSON, the file ends too early"),
        ('[{"a": 1}', "element 1: expected ',' or ']', the file ends too early"),
        ('[{"a": "x', "element 1: expected JSON, the file ends too early"),
        ("<html>", "expected an array, got '<html>'"),
        ('{"a": 1}', "expected an array, got"),
        ("[1 2]", "element 1: expected ',' or ']', got '2]'"),
        ("[{}, nul]", "element 2: expected JSON, Expecting value"),
        ("[{}] []", "expected nothing more, got '[]'"),
        ("[" + "[" * 100_000, "nested too deep"),
        ("[" + "9" * 5000 + "]", "Exceeds the limit"),
    ],
)
def test_what_is_no_array_is_said(tmp_path, text, message):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        list(json_array(path))
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(path))


def test_a_wrong_element_is_found_without_reading_on(tmp_path, monkeypatch):
    """The rest of the file must not be collected while waiting for an element's end."""
    path = tmp_path / "a.json"
    path.write_text('[{"a": oops}, ' + " " * 5_000_000 + "]")
    monkeypatch.setattr(json_stream, "CHUNK", 1000)
    with path.open() as file:
        with pytest.raises(UserError, match="Expecting value"):
            list(json_stream.JsonStream(file, path).array())
        assert len(file.read()) > 4_000_000


def test_an_element_without_end_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(json_stream, "CHUNK", 1000)
    monkeypatch.setattr(json_stream, "LONGEST", 10_000)
    path = tmp_path / "a.json"
    path.write_text('["' + "x" * 100_000)
    with pytest.raises(UserError, match="expected at most 10000 characters"):
        list(json_array(path))


def test_array_without_its_key_or_utf8(tmp_path):
    path = write_json(tmp_path / "a.json", {"data": 1, "x": []})
    with pytest.raises(UserError, match="expected an array at 'data', found none"):
        list(json_array(path, "data"))
    path.write_bytes(b'[{"a": "\xff"}]')
    for read in (json_array, json_members, read_json):
        with pytest.raises(UserError, match=r"a\.json: expected UTF-8, got byte 0xff"):
            list(read(path))
    with pytest.raises(UserError, match="cannot be read"):
        list(json_array(tmp_path / "none.json"))


def test_memory_holds_one_element_of_a_long_array(tmp_path, monkeypatch):
    monkeypatch.setattr(json_stream, "CHUNK", 2**14)
    path = write_json(tmp_path / "long.json", [{"id": i, "text": "x" * 5000} for i in range(400)])
    tracemalloc.start()
    count = sum(1 for _ in json_array(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 400
    assert peak < path.stat().st_size / 10


def test_elements_that_are_no_objects_are_faults(tmp_path):
    path = write_json(tmp_path / "a.json", [{"a": 1}, 5, None, {"b": 2}])
    first, number, null, last = json_array(path)
    assert (first.fields, last.fields) == ({"a": 1}, {"b": 2})
    assert number == Fault("a.json:2", "wrong type", "a.json:2: expected an object, got 5")
    assert null.kind == "wrong type"


def test_json_lines_go_on_after_a_bad_line(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\n\n{"a": \n[1]\n{"a": "\xff"}\n{"a": 2}')
    good, cut, wrong, bytes_, last = json_lines(path)
    assert (good.place, last.place) == ("a.jsonl:1", "a.jsonl:6")
    assert (cut.uid, cut.kind) == ("a.jsonl:3", "not JSON")
    assert (wrong.uid, wrong.kind) == ("a.jsonl:4", "wrong type")
    assert (bytes_.uid, bytes_.kind) == ("a.jsonl:5", "not JSON")
    assert last.fields == {"a": 2}


def test_read_json(tmp_path):
    path = write_json(tmp_path / "a.json", {"a": [1]})
    assert read_json(path) == {"a": [1]}
    cut_in_half(path)
    with pytest.raises(UserError, match=r"a\.json: expected JSON, .* at line 1"):
        read_json(path)


def test_tsv_keeps_every_text_as_it_is(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text('index\tA\tB\n1\tNone\tNA\n2\t"a ""b""\tc\nd"\t\n\n3\tx\n4\ty\tz\n')
    one, two, short, last = tsv_rows(path, ["index", "A"])
    assert one.fields == {"index": "1", "A": "None", "B": "NA"}  # not NaN: VLMEvalKit 1559
    assert two.fields == {"index": "2", "A": 'a "b"\tc\nd', "B": ""}
    assert (short.kind, short.message) == (
        "wrong number of cells", "a.tsv:6: expected 3 cells, got 2",
    )  # fmt: skip
    assert last.fields["index"] == "4"


def test_tsv_cells_may_hold_pictures(tmp_path):
    import csv

    csv.field_size_limit(2**17)  # csv's own: an earlier test must not have left another
    path = tmp_path / "a.tsv"
    path.write_text("image\n" + "A" * 500_000 + "\n")
    (row,) = tsv_rows(path)
    assert len(row.fields["image"]) == 500_000
    assert csv.field_size_limit() == 2**17  # it belongs to the whole process


def test_tsv_without_its_columns_or_its_end(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("index\tA\n")
    with pytest.raises(UserError, match=r"a\.tsv: expected column 'image', found \['index', 'A'\]"):
        list(tsv_rows(path, ["index", "image"]))
    path.write_text('index\tA\n1\t"cut')
    with pytest.raises(UserError, match=r"a\.tsv: line 2: expected TSV"):
        list(tsv_rows(path))
    path.write_bytes(b"index\n\xff\n")
    with pytest.raises(UserError, match="expected UTF-8"):
        list(tsv_rows(path))


ROW = Row("f:1", {
    "text": "x", "empty": " ", "number": 5, "yes": True, "null": None, "list": ["a", ""],
    "mixed": ["a", 1], "digits": "-12", "nan": 1.5,
})  # fmt: skip


def test_getters():
    assert (ROW.text("text"), ROW.text("empty", ""), ROW.text("null", "d")) == ("x", " ", "d")
    assert (ROW.identifier("number"), ROW.identifier("text")) == ("5", "x")
    assert (ROW.integer("number"), ROW.integer("none", None)) == (5, None)
    assert ROW.integer("digits", from_text=True) == -12
    assert (ROW.boolean("yes"), ROW.boolean("none", None)) == (True, None)
    assert (ROW.texts("list"), ROW.texts("null", ())) == (("a", ""), ())
    assert ROW.items("mixed") == ["a", 1]


@pytest.mark.parametrize(
    ("getter", "name", "kind", "message"),
    [
        ("text", "none", "missing field", "f:1: expected field 'none', found none"),
        ("text", "null", "missing field", "f:1: expected field 'null', found none"),
        ("text", "empty", "missing field", "f:1: empty: expected a text, got none"),
        ("text", "number", "wrong type", "f:1: number: expected a text, got 5"),
        ("identifier", "yes", "wrong type", "f:1: yes: expected a text, got True"),
        ("integer", "yes", "wrong type", "f:1: yes: expected a whole number, got True"),
        ("integer", "nan", "wrong type", "f:1: nan: expected a whole number, got 1.5"),
        ("integer", "digits", "wrong type", "f:1: digits: expected a whole number, got '-12'"),
        ("boolean", "number", "wrong type", "f:1: number: expected true or false, got 5"),
        ("texts", "text", "wrong type", "f:1: text: expected a list, got 'x'"),
        ("texts", "mixed", "wrong type", "f:1: mixed: expected a list of texts, got ['a', 1]"),
    ],
)
def test_getters_name_what_is_wrong(getter, name, kind, message):
    with pytest.raises(BadRecord) as caught:
        getattr(ROW, getter)(name)
    assert (caught.value.kind, str(caught.value)) == (kind, message)


def test_one_bad_row_leaves_its_neighbours_alone():
    def build(row: Row, uid: str):
        question = row.text("question")
        if question == "two":
            return [PublicRecord("s", "t", uid, "1"), Fault("x", "box", "m")]
        return PublicRecord("s", "t", uid, question)

    found = [
        Row("f:1", {"id": 1, "question": "a"}), Row("f:2", {"id": 2}),
        Row("f:3", {"question": "b"}),
        Fault("f:4", "not JSON", "bad"), Row("f:5", {"id": 5, "question": "two"}),
    ]  # fmt: skip
    built = list(build_records(found, lambda row: f"s/{row.identifier('id')}", build))
    assert [(item.uid, getattr(item, "kind", "record")) for item in built] == [
        ("s/1", "record"), ("s/2", "missing field"), ("f:3", "missing field"),
        ("f:4", "not JSON"), ("s/5", "record"), ("x", "box"),
    ]  # fmt: skip


def test_long_values_are_cut_in_messages():
    with pytest.raises(BadRecord) as caught:
        Row("f:1", {"a": ["x" * 1000, 1]}).texts("a")
    assert len(str(caught.value)) < 120


@needs_samples
def test_sample_files_in_full():
    """Counts of SOURCES.md."""
    llava = SAMPLES / "llava"
    counts = {"coco2014_val_gpt4_qa_30x3": 90, "qa90_questions": 90, "qa90_gpt4_answer": 90,
              "caps_boxes_coco2014_val_80": 80}  # fmt: skip
    for name, count in counts.items():
        assert len(fields(json_lines(llava / f"{name}.jsonl"))) == count
    problems = SAMPLES / "scienceqa/problems.sample.json"
    assert {key: row.fields for key, row in json_members(problems)} == read_json(problems)
    assert len(fields(tsv_rows(SAMPLES / "mmbench/MMBench_DEV_EN.circular_derived.tsv"))) == 78
