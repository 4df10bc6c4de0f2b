"""Bad lines become errors of their own and leave their neighbours alone."""

import json

import pytest

from tiger_jax.data.records import RecordError, Request, parse_requests, read_requests
from tiger_jax.errors import UserError

GOOD = {"id": "a", "images": ["x.png"], "prompt": "Hi?"}


def only(line) -> Request | RecordError:
    (record,) = parse_requests([line])
    return record


def test_all_fields():
    settings = {"max_new_tokens": 5, "temperature": 0, "top_p": 0.9, "top_k": 40, "seed": 7}
    shown = {"videos": ["a.mp4", "b.gif"], "fps": 1, "max_frames": 32}
    request = only(json.dumps({**GOOD, **settings, **shown, "stop": ["\n", "USER:"]}))
    assert request == Request(
        "a",
        "Hi?",
        ("x.png",),
        ("a.mp4", "b.gif"),
        max_new_tokens=5,
        temperature=0.0,
        top_p=0.9,
        top_k=40,
        seed=7,
        stop=("\n", "USER:"),
        fps=1.0,
        max_frames=32,
    )
    assert isinstance(request.fps, float)


def test_defaults_and_short_forms():
    request = only(b'{"prompt": "Hi?", "images": "x.png", "stop": null}')
    assert request == Request("line-1", "Hi?", ("x.png",))
    assert only('{"prompt": "Hi?", "id": 12}').id == "12"
    request = only('{"prompt": "Hi?", "videos": "x.mp4", "fps": null}')
    assert request == Request("line-1", "Hi?", videos=("x.mp4",))
    assert (request.fps, request.max_frames) == (None, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt": None}, "missing field 'prompt'"),
        ({"prompt": ""}, "prompt: expected a non-empty text"),
        ({"prompt": 5}, "prompt: expected a non-empty text, got 5"),
        ({"images": [1]}, "images: expected a list"),
        ({"images": {"a": 1}}, "images: expected a list"),
        ({"videos": [""]}, "videos: expected a list"),
        ({"fps": -1}, "fps: expected a number in 1e-06..1000000, got -1"),
        ({"fps": 0}, "fps: expected a number in 1e-06..1000000, got 0"),
        ({"fps": 0.0}, "fps: expected a number in 1e-06..1000000, got 0.0"),
        ({"fps": float("inf")}, "fps: expected a number in 1e-06..1000000, got inf"),
        ({"fps": "fast"}, "fps: expected a number in 1e-06..1000000, got 'fast'"),
        ({"fps": True}, "fps: expected a number in 1e-06..1000000, got True"),
        ({"max_frames": 0}, "max_frames: expected a whole number in 1..1536, got 0"),
        ({"max_frames": 1.5}, "max_frames: expected a whole number"),
        ({"stop": [""]}, "stop: expected a list"),
        ({"max_new_tokens": 0}, "max_new_tokens: expected a whole number in 1.., got 0"),
        ({"max_new_tokens": 2.5}, "max_new_tokens: expected a whole number"),
        ({"max_new_tokens": True}, "max_new_tokens: expected a whole number"),
        ({"temperature": -1}, "temperature: expected a number in 0.., got -1"),
        ({"temperature": "hot"}, "temperature: expected a number"),
        ({"temperature": float("nan")}, "temperature: expected a number"),
        ({"temperature": float("inf")}, "temperature: expected a number"),
        ({"top_p": 1.5}, "top_p: expected a number in 0..1"),
        ({"top_k": -1}, "top_k: expected a whole number in 0.."),
        ({"seed": 2**32}, "seed: expected a whole number"),
        ({"id": ["a"]}, "id: expected a non-empty text"),
        ({"prompt": "\ud800?"}, "prompt: expected valid Unicode text, got '\\ud800?'"),
        ({"id": "\ud800"}, "id: expected valid Unicode text"),
        ({"images": ["\udc80.png"]}, "images: expected valid Unicode text"),
        ({"temprature": 1}, "unknown field 'temprature'"),
    ],
)
def test_faults_name_the_field(change, message):
    error = only(json.dumps({**GOOD, **change}))
    assert isinstance(error, RecordError)
    assert error.line == 1
    assert message in error.message
    assert "\n" not in error.message


def test_an_id_that_cannot_be_written_is_none():
    """Printing it would end the run of all its neighbours."""
    assert only(json.dumps({**GOOD, "id": "\ud800"})).id is None


def test_all_faults_of_a_record_come_at_once():
    error = only(json.dumps({"id": "a", "top_p": 2, "seed": -1, "x": 0}))
    assert error.id == "a"
    for name in ("top_p", "seed", "'x'", "'prompt'"):
        assert name in error.message


def test_one_bad_record_spoils_no_neighbour(tmp_path):
    lines = [
        json.dumps(GOOD).encode(),
        b"",
        b'{"prompt": "cut',
        b'{"prompt": "\xff"}',
        b"[1, 2]",
        b"[" * 100_000,
        json.dumps({**GOOD, "prompt": "again"}).encode(),
        json.dumps({**GOOD, "id": "b"}).encode(),
    ]
    path = tmp_path / "requests.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + b"\n".join(lines))
    records = list(read_requests(path))
    assert [record.id for record in records if isinstance(record, Request)] == ["a", "b"]
    errors = {r.line: r.message for r in records if isinstance(r, RecordError)}
    assert list(errors) == [3, 4, 5, 6, 7]
    assert "not valid JSON" in errors[3]
    assert "not UTF-8" in errors[4]
    assert "got list" in errors[5]
    assert "nested too deep" in errors[6]
    assert errors[7] == "id 'a' was already used on line 1"


def test_missing_file(tmp_path):
    with pytest.raises(UserError, match=r"none\.jsonl"):
        list(read_requests(tmp_path / "none.jsonl"))
