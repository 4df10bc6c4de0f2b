"""LLaVA's conversations: turns, marks, boxes, text-only records, bare names."""

import json

import pytest

from tests.data.public.files import cut_in_half, faults_of, records_of, write_json, write_picture
from tests.samples import SAMPLES, needs_samples
from tiger_jax.data.public.dataset import picture_fault
from tiger_jax.data.public.registry import open_dataset
from tiger_jax.errors import UserError

IMAGE = "coco/train2017/000000000009.jpg"


def talk(*texts: str, first: str = "human") -> list[dict]:
    speakers = ("human", "gpt") if first == "human" else ("gpt", "human")
    return [{"from": speakers[i % 2], "value": text} for i, text in enumerate(texts)]


def read(tmp_path, *rows: dict, **options) -> list:
    return list(open_dataset("llava", write_json(tmp_path / "talks.json", list(rows)), **options))


def test_first_turn_and_all_turns(tmp_path):
    row = {"id": "9", "image": IMAGE, "conversations": talk("<image>\nA?", "a", "B?", "b")}
    (record,) = read(tmp_path, row)
    assert (record.uid, record.question, record.answers) == ("llava/train/9/0", "A?", ("a",))
    assert record.ground_truth == "a"
    assert record.meta == {"id": "9", "turn": 0, "image_folder": "coco/train2017"}
    first, second = read(tmp_path, row, turns="all")
    assert first == record
    assert (second.uid, second.question, second.ground_truth) == ("llava/train/9/1", "B?", "b")
    assert second.images == record.images
    assert (second.meta["turn"], second.meta["history"]) == (1, (("A?", "a"),))


@pytest.mark.parametrize("question", ["<image>\nA?\nB", "A?\nB\n<image>", "A?\nB"])
def test_mark_first_last_or_missing_gives_one_bare_question(tmp_path, question):
    (record,) = read(tmp_path, {"id": "9", "image": IMAGE, "conversations": talk(question, "a")})
    assert record.question == "A?\nB"
    assert len(record.images) == 1


@pytest.mark.parametrize(
    ("image", "texts"),
    [
        (IMAGE, ("<image><image>\nA?", "a")),
        (IMAGE, ("<image>\nA?", "a", "<image>\nB?", "b")),
        (None, ("<image>\nA?", "a")),
    ],
)
def test_another_number_of_marks_than_pictures_is_refused(tmp_path, image, texts):
    """LlamaFactory 5329."""
    rows = [{"id": "9", "image": image, "conversations": talk(*texts)},
            {"id": "10", "conversations": talk("A?", "a")}]  # fmt: skip
    for turns in ("first", "all"):
        fault, record = read(tmp_path, *rows, turns=turns)
        assert (fault.uid, fault.kind) == ("llava/train/9/0", "mark count")
        assert "talks.json:1: expected a <image> for each picture, got" in fault.message
        assert record.uid == "llava/train/10/0"


def test_text_only_records_have_no_picture(tmp_path):
    """LLaVA 835: no `image`, ids such as wgByO4Y_0, an extra key `model`."""
    row = {"id": "wgByO4Y_0", "model": "", "conversations": talk("Hi", "Hello", "And?", "So.")}
    (record,) = read(tmp_path, row)
    assert (record.images, record.meta["image_folder"]) == ((), None)
    assert record.question == "Hi"
    # ShareGPT's conversations may begin with an answer, and end with a question
    odd = {"id": "x", "conversations": talk("Skipped", "Hi", "Hello", "Left over", first="gpt")}
    (record,) = read(tmp_path, odd, turns="all")
    assert (record.question, record.answers) == ("Hi", ("Hello",))


@pytest.mark.parametrize(
    ("question", "answer", "has_box"),
    [
        ("Describe [0.1, 0.25, 0.333, 1.0].", "a", True),
        ("Where is it?", "[0.0,0.25,0.3,0.44]", True),
        ("Where is it?", "[.5, 0, 1, 0.44]", True),
        ("What is [0.5]?", "a list", False),
        ("Is it [1, 2, 3, 4]?", "yes", False),
    ],
)
def test_boxes_are_named_faults_or_kept(tmp_path, question, answer, has_box):
    row = {"id": "9", "image": IMAGE, "conversations": talk(question, answer, "B?", "b")}
    (kept,) = read(tmp_path, row, drop_boxes=False)
    assert (kept.question, kept.answers) == (question, (answer,))
    found = read(tmp_path, row, turns="all")
    assert faults_of(found) == ([("llava/train/9/0", "box")] if has_box else [])
    assert records_of(found)[-1].uid == "llava/train/9/1"  # its neighbour stays


def test_ids_that_repeat_are_numbered(tmp_path):
    rows = [{"id": "9", "conversations": talk("A?", "a")}, {"id": "9", "conversations": 5},
            {"id": "9", "conversations": talk("B?", "b")}]  # fmt: skip
    found = read(tmp_path, *rows)
    assert [item.uid for item in found] == [
        "llava/train/9/0", "llava/train/9#2/0", "llava/train/9#3/0",
    ]  # fmt: skip
    assert found[2].meta["id"] == "9"
    assert found[1].kind == "wrong type"


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ({"image": IMAGE, "conversations": talk("A?", "a")}, "missing field"),
        ({"id": "1", "image": 7, "conversations": talk("A?", "a")}, "wrong type"),
        ({"id": "1", "image": "", "conversations": talk("A?", "a")}, "missing field"),
        ({"id": "1", "conversations": None}, "missing field"),
        ({"id": "1", "conversations": []}, "missing field"),
        ({"id": "1", "conversations": talk("A?")}, "missing field"),
        ({"id": "1", "conversations": talk("A?", " ")}, "missing field"),
        ({"id": "1", "image": IMAGE, "conversations": talk("<image>\n", "a")}, "missing field"),
        ({"id": "1", "conversations": ["A?", "a"]}, "wrong type"),
        ({"id": "1", "conversations": [{"from": "human", "value": 3}]}, "wrong type"),
        ({"id": "1", "conversations": [{"from": "bot", "value": "x"}]}, "wrong type"),
        ({"id": "1", "conversations": talk("A?", "a") + talk("x", first="gpt")}, "turn order"),
        ([1], "wrong type"),
    ],
)
def test_faults_leave_their_neighbours_alone(tmp_path, row, kind):
    good = {"id": "good", "conversations": talk("A?", "a")}
    fault, record = read(tmp_path, row, good)
    assert fault.kind == kind
    assert fault.message.startswith("talks.json:1")
    assert "\n" not in fault.message
    assert record.uid == "llava/train/good/0"


def test_where_pictures_lie(tmp_path):
    row = [{"id": "9", "image": IMAGE, "conversations": talk("A?", "a")},
           {"id": "10", "image": "vg/VG_100K/1.jpg", "conversations": talk("A?", "a")}]  # fmt: skip
    path = write_json(tmp_path / "data/texts/llava_v1_5_mix665k.json", row)
    above = write_picture(tmp_path / "data" / IMAGE)
    found = [record.images[0].path for record in open_dataset("llava", path.parent)]
    assert found == [str(above), str(tmp_path / "data/texts/vg/VG_100K/1.jpg")]
    beside = write_picture(path.parent / IMAGE)
    record = next(iter(open_dataset("llava", path)))
    assert record.images[0].path == str(beside)
    own = write_picture(tmp_path / "own" / IMAGE)
    record = next(iter(open_dataset("llava", path, images=str(tmp_path / "own"))))
    assert record.images[0].path == str(own)
    assert picture_fault(record) is None


def test_bare_names_of_instruct_150k(tmp_path):
    row = [{"id": "9", "image": "000000000009.jpg", "conversations": talk("A?", "a")}]
    path = write_json(tmp_path / "llava_instruct_150k.json", row)
    (tmp_path / "photos").mkdir()
    (record,) = open_dataset("llava", tmp_path, images=tmp_path / "photos")
    with pytest.raises(UserError, match="none: expected a folder, found none there"):
        open_dataset("llava", tmp_path, images=tmp_path / "none")
    assert record.images[0].path == str(tmp_path / "photos/000000000009.jpg")
    assert record.meta["image_folder"] == ""
    photo = write_picture(tmp_path / IMAGE)
    (record,) = open_dataset("llava", path)
    assert record.images[0].path == str(photo)


def test_which_file_of_a_folder(tmp_path):
    with pytest.raises(UserError, match=r"llava_v1_5_mix665k\.json or llava_instruct_150k\.json"):
        open_dataset("llava", tmp_path)
    for name in ("detail_23k", "conversation_58k"):
        write_json(tmp_path / f"{name}.json", [{"id": name, "conversations": talk("A?", "a")}])
    with pytest.raises(UserError, match="expected one file of conversations, found 2"):
        open_dataset("llava", tmp_path)
    (record,) = open_dataset("llava", tmp_path / "detail_23k.json")
    assert record.meta["id"] == "detail_23k"


def test_bad_options_and_a_cut_file(tmp_path):
    path = write_json(tmp_path / "a.json", [{"id": "1", "conversations": talk("A?", "a")}] * 3)
    with pytest.raises(UserError, match="llava: turns: expected first or all, got 'last'"):
        open_dataset("llava", path, turns="last")
    dataset = iter(open_dataset("llava", cut_in_half(path)))
    assert next(dataset).uid == "llava/train/1/0"
    with pytest.raises(UserError, match=r"a\.json: element 2: expected JSON"):
        next(dataset)


@needs_samples
def test_samples_in_full():
    (record,) = open_dataset("llava", SAMPLES / "llava/llava_v1_5_mix665k.first1.json")
    assert record.question == "What are the colors of the bus in the image?"
    assert record.answers == ("The bus in the image is white and red.",)
    assert picture_fault(record).kind == "missing image"  # SOURCES.md: its photo is not here
    path = SAMPLES / "llava/derived_llava_layout_from_coco.json"
    found = list(open_dataset("llava", path))
    assert faults_of(found) == []
    assert [bool(record.images) for record in found] == [True] * 14 + [False]
    assert [picture_fault(record) for record in found] == [None] * 15
    turns = sum(len(row["conversations"]) // 2 for row in json.loads(path.read_text()))
    assert len(list(open_dataset("llava", path, turns="all"))) == turns
