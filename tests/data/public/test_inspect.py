"""What inspect counts, names and prints; its exit codes."""

import json

import pytest

from tests.data.public.files import png, write_json, write_picture
from tests.samples import SAMPLES, needs_samples
from tiger_jax.data import inspect
from tiger_jax.data.public import survey as surveys
from tiger_jax.data.public.record import Fault, Picture, PublicRecord
from tiger_jax.data.public.survey import survey


def record(uid: str, **fields) -> PublicRecord:
    return PublicRecord("made", "val", uid, "What?", **fields)


@pytest.fixture
def pages(tmp_path):
    """DocVQA with a good page, a damaged one, a missing one, and a record without a question."""
    row = {"question": "What?", "image": "documents/a.png", "answers": ["x"]}
    rows = [
        row | {"questionId": 1},
        row | {"questionId": 2, "image": "documents/b.png", "question_types": ["form"]},
        row | {"questionId": 3, "image": "documents/c.png"},
        {"questionId": 4, "image": "documents/a.png", "answers": ["x"]},
    ]
    write_json(tmp_path / "val_v1.0.json", {"data": rows})
    write_picture(tmp_path / "documents/a.png")
    (tmp_path / "documents/b.png").write_bytes(png(size=(99, 99))[:90])
    return tmp_path


def test_counts():
    items = [
        record("a", images=(Picture(data=png()), Picture(data=png())), answers=("x",)),
        record("b", video="none.mp4", choices=("x", "y"), ground_truth="A", meta={"hint": ""}),
        record("c", meta={"hint": "h", "zero": 0}),
        Fault("d", "wrong type", "bad"),
    ]
    found = survey(items, first=2)
    assert (found.records, found.with_pictures, found.pictures) == (3, 1, 2)
    assert (found.with_video, found.text_only, found.hidden_answers) == (1, 1, 1)
    fields = {name: (count.seen, count.empty) for name, count in found.fields.items()}
    assert fields["question"] == (3, 0)
    assert fields["images"] == (3, 2)
    assert fields["choices"] == (3, 2)
    assert fields["meta.hint"] == (2, 1)
    assert fields["meta.zero"] == (1, 0)  # 0 is a value: TallyQA_dataset 5
    assert found.faults == {"wrong type": 1, "missing video": 1}
    assert [r.uid for r in found.first] == ["a", "b"]
    json.dumps(found.as_json())


def test_only_the_first_faults_of_a_kind_are_kept():
    found = survey(Fault(str(i), "box", "b") for i in range(10))
    assert found.faults == {"box": 10}
    assert [fault.uid for fault in found.named["box"]] == ["0", "1", "2"]
    assert surveys.NAMED_FAULTS == 3


def test_limit_and_watch():
    seen = []
    found = survey((record(str(i)) for i in range(10)), limit=4, watch=seen.append)
    assert found.records == 4
    assert seen == [1, 2, 3, 4]


def test_pictures_are_opened_unless_told_not_to(pages, capsys):
    assert inspect.main(["docvqa", str(pages)]) == 0
    shown = capsys.readouterr().out
    assert "records    3\n" in shown
    assert "3 records with 3 pictures" in shown
    assert "faults     3\n" in shown
    assert "missing field: 1\n    docvqa/val/4/0: val_v1.0.json:4: expected field 'q" in shown
    assert "damaged image: 1\n    docvqa/val/2/0: " in shown
    assert "missing image: 1\n    docvqa/val/3/0: " in shown
    assert "docvqa/val/1/0\n  question      What?\n" in shown

    assert inspect.main(["docvqa", str(pages), "--no-pictures"]) == 0
    shown = capsys.readouterr().out
    assert "faults     1 (no picture was opened)" in shown


def test_json_file(pages, tmp_path, capsys):
    path = tmp_path / "out.json"
    assert inspect.main(["docvqa", str(pages), "--first", "1", "--json", str(path)]) == 0
    found = json.loads(path.read_text())
    assert (found["dataset"], found["split"], found["records"]) == ("docvqa", "val", 3)
    assert found["faults"] == {"damaged image": 1, "missing image": 1, "missing field": 1}
    assert found["fields"]["meta.question_types"] == {"seen": 3, "empty": 2}
    assert {fault["uid"] for fault in found["first_faults"]} == {
        "docvqa/val/2/0", "docvqa/val/3/0", "docvqa/val/4/0",
    }  # fmt: skip
    (first,) = found["first_records"]
    assert first["images"] == [str(pages / "documents/a.png")]
    capsys.readouterr()
    for place in (tmp_path, tmp_path / "none" / "out.json"):
        assert inspect.main(["docvqa", str(pages), "--json", str(place)]) == 2
        shown = capsys.readouterr()
        assert (shown.out, shown.err.count("\n")) == ("", 1)  # told before the pictures are opened
        assert f"--json: expected a place for a file, got {place}: " in shown.err


def test_limit_first_split_and_options(pages, tmp_path, capsys):
    assert inspect.main(["docvqa", str(pages), "--limit", "1", "--first", "0",
                         "--split", "validation"]) == 0  # fmt: skip
    shown = capsys.readouterr().out
    assert "split val" in shown
    assert "records    1\n" in shown
    assert "docvqa/val/1/0" not in shown
    talk = [{"from": "human", "value": "A"}, {"from": "gpt", "value": "a"}] * 2
    path = write_json(tmp_path / "talks.json", [{"id": "1", "conversations": talk}])
    assert inspect.main(["llava", str(path), "--option", "turns=all"]) == 0
    assert "records    2\n" in capsys.readouterr().out


def test_a_sign_that_the_terminal_lacks_stops_nothing(tmp_path, capsys):
    talk = [{"from": "human", "value": "\ud800 \U0001f600?"}, {"from": "gpt", "value": "a"}]
    path = write_json(tmp_path / "talks.json", [{"id": "1", "conversations": talk}])
    assert inspect.main(["llava", str(path), "--json", str(tmp_path / "out.json")]) == 0
    assert "\\ud800 \U0001f600?" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["imagenet", "."], "error: data set: expected one of llava, textvqa"),
        (["docvqa", "none"], "error: none: expected the files of docvqa, found nothing there"),
        (["docvqa", "x" * 300], f"error: {'x' * 300}: expected the files of docvqa, found nothing"),
        (
            ["tallyqa", ".", "--json", "x" * 300 + "/a"],
            "error: --json: expected a place for a file",
        ),
        (["docvqa", ".", "--split", "dev"], "error: docvqa: expected split train or val or test"),
        (["docvqa", ".", "--option", "x"], "error: --option: expected NAME=VALUE, got 'x'"),
        (
            ["llava", ".", "--option", "drop_boxes=0"],
            "error: llava: drop_boxes: expected true or false, got '0'",
        ),
        (
            ["coco_captions", ".", "--option", "karpathy=no"],
            "error: coco_captions: karpathy: expected true or false, got 'no'",
        ),
        (["docvqa", ".", "--option", "x=1"], "error: docvqa: expected options out of none"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert inspect.main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(message)
    assert shown.err.count("\n") == 1


def test_arguments_that_are_none_exit_with_2(capsys):
    with pytest.raises(SystemExit) as caught:
        inspect.main(["docvqa", ".", "--limit", "-1"])
    assert caught.value.code == 2
    assert "expected a whole number from 0, got '-1'" in capsys.readouterr().err


def test_help_shows_examples(capsys):
    with pytest.raises(SystemExit) as caught:
        inspect.main(["--help"])
    assert caught.value.code == 0
    assert "python -m tiger_jax.data.inspect textvqa" in capsys.readouterr().out


def test_interrupt_is_one_line(pages, monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(inspect, "survey", interrupted)
    assert inspect.main(["docvqa", str(pages)]) == 130
    assert capsys.readouterr().err == "interrupted\n"


@needs_samples
@pytest.mark.parametrize(
    ("name", "path", "records", "faults"),
    [
        ("llava", "llava/derived_llava_layout_from_coco.json", 15, {}),
        ("llava", "llava/llava_v1_5_mix665k.first1.json", 1, {"missing image": 1}),
        ("textvqa", "textvqa/llava_textvqa_val_v051_ocr.sample.jsonl", 18, {"missing image": 18}),
        ("scienceqa", "scienceqa/hf_layout", 25, {}),
        ("docvqa", "docvqa/val_v1.0_withQT.sample2.json", 2, {"missing image": 2}),
    ],
)
def test_samples(name, path, records, faults, tmp_path, capsys):
    out = tmp_path / "out.json"
    assert inspect.main([name, str(SAMPLES / path), "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert (found["records"], found["faults"]) == (records, faults)
