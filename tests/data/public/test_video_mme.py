"""Video-MME: rows and the authors' template; a video or subtitles that are not there are faults."""

import json

import pytest

from tests.data.public.files import faults_of, records_of, write_json, write_parquet
from tests.samples import SAMPLES, needs_samples
from tiger_jax.data.public.prompts import score_prompt
from tiger_jax.data.public.registry import open_dataset
from tiger_jax.data.public.video_mme import parse_with_trailing_commas
from tiger_jax.errors import UserError

OPTIONS = ["A. A cat.", "B. None, or ]", "C. A horse.", "D. 3."]


def row(question_id, video="bunny", duration="short", **changes):
    return {
        "video_id": question_id.split("-")[0],
        "duration": duration,
        "domain": "Film & Television",
        "sub_category": "Animation",
        "videoID": video,
        "question_id": question_id,
        "task_type": "Object Recognition",
        "question": "Who?",
        "options": OPTIONS,
        "answer": "B",
        **changes,
    }


@pytest.fixture
def folder(tmp_path):
    """The layout of the repository, with a video under each of two endings."""
    rows = [
        row("901-1"),
        row("902-1", "wide", "long"),
        row("903-1", "lost"),
        row("904-1", duration="tiny"),
        row("905-1", options=["A cat.", "A dog."]),
        row("906-1", answer="E"),
        row("907-1", "x" * 300),  # no file can have this name
    ]
    write_parquet(tmp_path / "videomme" / "test-00000-of-00001.parquet", rows)
    (tmp_path / "data").mkdir()
    (tmp_path / "subtitle").mkdir()
    for name in ("bunny.mp4", "wide.mkv"):
        (tmp_path / "data" / name).write_bytes(b"")
    (tmp_path / "subtitle" / "bunny.srt").write_text("1\n00:00:00,000 --> 00:00:01,000\nHop.\n")
    return tmp_path


def test_rows(folder):
    found = list(open_dataset("video_mme", folder))
    first, second = records_of(found)
    assert (first.uid, first.split) == ("video_mme/test/901-1/0", "test")
    assert first.choices == ("A cat.", "None, or ]", "A horse.", "3.")
    assert (first.answers, first.ground_truth, first.images) == (("B",), "B", ())
    assert first.video == str(folder / "data" / "bunny.mp4")
    assert first.meta == {
        "video_id": "901",
        "question_id": "901-1",
        "duration": "short",
        "domain": "Film & Television",
        "sub_category": "Animation",
        "task_type": "Object Recognition",
        "subtitles": None,
    }
    assert second.video == str(folder / "data" / "wide.mkv")
    assert faults_of(found) == [
        ("video_mme/test/903-1/0", "missing video"),
        ("video_mme/test/904-1/0", "wrong value"),
        ("video_mme/test/905-1/0", "wrong value"),
        ("video_mme/test/906-1/0", "wrong value"),
        ("video_mme/test/907-1/0", "missing video"),
    ]


def test_a_duration_is_a_split(folder):
    (only,) = records_of(open_dataset("video_mme", folder, "long"))
    assert only.uid == "video_mme/test/902-1/0"
    assert records_of(open_dataset("video_mme", folder, "medium")) == []


def test_subtitles_are_a_fault_only_where_they_are_wanted(folder):
    found = list(open_dataset("video_mme", folder, subtitles=True))
    (record,) = records_of(found)
    assert record.meta["subtitles"] == str(folder / "subtitle" / "bunny.srt")
    assert faults_of(found)[0] == ("video_mme/test/902-1/0", "missing subtitles")
    asked = score_prompt(record)
    assert asked.subtitles_used
    assert asked.text.startswith("This video's subtitles are listed below:\nHop.\nSelect the best")


@pytest.mark.parametrize("comma", ["", ","])
def test_the_template_with_and_without_trailing_commas(tmp_path, comma):
    question = f'"question_id": "7-1", "question": "a, ]", "options": {json.dumps(OPTIONS)}'
    text = (
        f'[{{"video_id": "7", "duration": "medium", "questions": [{{{question},'
        f'"answer": "C", "response": "x"{comma}\n }}, 5{comma}\n]}}, 3{comma} ]'
    )
    (tmp_path / "output_test_template.json").write_text(text)
    (tmp_path / "7.mp4").write_bytes(b"")
    found = list(open_dataset("video_mme", tmp_path))
    (record,) = records_of(found)
    assert (record.uid, record.question, record.ground_truth) == (
        "video_mme/test/7-1/0",
        "a, ]",
        "C",
    )
    assert record.video == str(tmp_path / "7.mp4")
    assert faults_of(found) == [
        ("output_test_template.json:1", "wrong type"),
        ("output_test_template.json:2", "wrong type"),
    ]


def test_commas_inside_texts_stay():
    assert parse_with_trailing_commas('{"a": "x,]\\",}", "b": [1, 2,],}') == {
        "a": 'x,]",}',
        "b": [1, 2],
    }
    with pytest.raises(json.JSONDecodeError):
        parse_with_trailing_commas("[1,,]")


def test_nothing_there(tmp_path):
    with pytest.raises(UserError, match=r"expected Video-MME: videomme/test-00000-of-"):
        open_dataset("video_mme", tmp_path)
    for content in ({"video_id": 1}, "no array"):
        path = write_json(tmp_path / "output_test_template.json", content)
        with pytest.raises(UserError, match="expected an array of videos"):
            list(open_dataset("video_mme", path))
    path.write_text("[{]")
    with pytest.raises(UserError, match="expected JSON, "):
        list(open_dataset("video_mme", path))


@needs_samples
def test_samples(tmp_path):
    folder, videos = SAMPLES / "video-mme", SAMPLES / "video"
    path = folder / "MADEUP_test-00000-of-00001.parquet"
    rows = list(open_dataset("video_mme", path, videos=videos))
    assert [(r.uid, r.ground_truth) for r in rows] == [
        ("video_mme/test/901-1/0", "B"),
        ("video_mme/test/901-2/0", "C"),
        ("video_mme/test/901-3/0", "A"),
    ]
    assert rows[2].choices == ("None.", "1.", "2.", "3.")
    (tmp_path / "bigbuckbunny.srt").write_bytes((folder / "MADEUP_subtitle.srt").read_bytes())
    with_subtitles = open_dataset(
        "video_mme", path, videos=videos, subtitles=True, subtitle_folder=tmp_path
    )
    text = score_prompt(next(iter(with_subtitles))).text
    assert "below:\nA large rabbit wakes up.\nIt looks at the meadow.\nSelect" in text
    # The template knows a video by its number alone.
    (tmp_path / "901.mp4").write_bytes(b"")
    for name in ("output_test_template", "output_test_template.trailing_commas"):
        found = list(open_dataset("video_mme", folder / f"MADEUP_{name}.json", videos=tmp_path))
        assert [(r.uid, r.question, r.choices, r.ground_truth) for r in found] == [
            (r.uid, r.question, r.choices, r.ground_truth) for r in rows
        ]
