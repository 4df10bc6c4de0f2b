"""Training examples: bad lines and broken pictures cost only themselves."""

import json

import numpy as np
import pytest
from PIL import Image

from tiger_jax.data.examples import (
    DroppedExample,
    Example,
    PreparedExample,
    PrepareExample,
    read_examples,
)
from tiger_jax.data.json_lines import RecordError
from tiger_jax.errors import UserError

GOOD = {"images": ["cats/1.png"], "prompt": "How many cats are there?"}


def write(folder, *records) -> str:
    path = folder / "pets.jsonl"
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def example(*images, prompt="Hi?", response=None) -> Example:
    return Example("a", prompt, tuple(map(str, images)), "pets", response)


def test_all_fields_and_defaults(tmp_path):
    full = {**GOOD, "id": 7, "response": "There are 2.", "source": "zoo"}
    path = write(tmp_path, full, "", GOOD, {**GOOD, "images": "/abs.png", "response": ""})
    cat = str(tmp_path / "cats/1.png")  # relative to the file; nothing is opened
    assert read_examples(path) == [
        Example("7", GOOD["prompt"], (cat,), "zoo", "There are 2."),
        Example("line-3", GOOD["prompt"], (cat,), "pets"),
        Example("line-4", GOOD["prompt"], ("/abs.png",), "pets", ""),
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": None}, "missing field 'images'"),
        ({"images": [""]}, "images: expected a list of non-empty texts"),
        ({"prompt": None}, "missing field 'prompt'"),
        ({"prompt": ""}, "prompt: expected a non-empty text, got ''"),
        ({"response": 5}, "response: expected a non-empty text, got 5"),
        ({"source": ""}, "source: expected a non-empty text"),
        ({"prompt": "\ud800?"}, "prompt: expected valid Unicode text"),
        ({"answer": "2"}, "unknown field 'answer'"),
        ({"prompt": "<image> <image>?"}, "expected no <image>, or one for each image (1), got 2"),
        ({"images": [], "prompt": "<image>?"}, "one for each image (0), got 1"),
    ],
)
def test_faults_are_one_line_each_and_spoil_no_neighbour(tmp_path, change, message):
    first, bad, last = read_examples(write(tmp_path, GOOD, {**GOOD, **change}, GOOD))
    assert isinstance(bad, RecordError)
    assert bad.line == 2
    assert message in bad.message
    assert "\n" not in bad.message
    assert (first.id, last.id) == ("line-1", "line-3")


def test_broken_json_and_repeated_id(tmp_path):
    records = read_examples(write(tmp_path, {**GOOD, "id": "a"}, '{"cut', {**GOOD, "id": "a"}))
    assert isinstance(records[0], Example)
    assert "not valid JSON" in records[1].message
    assert records[2].message == "id 'a' was already used on line 1"


def test_missing_file(tmp_path):
    with pytest.raises(UserError, match=r"JSON Lines file of examples, found none"):
        read_examples(tmp_path / "none.jsonl")


def test_prepared_example_is_the_prompt_with_its_picture(processor, tmp_path):
    path = tmp_path / "grey.png"
    Image.new("L", (112, 112), 90).save(path)
    prepared = PrepareExample(processor)(example(path, response="It is grey."))
    assert isinstance(prepared, PreparedExample)
    assert len(prepared.prompt.tiles) == 2
    assert (prepared.prompt.image_ids == 0).sum() == 136
    assert processor.decode(prepared.response) == " It is grey."
    assert prepared.response[-1] == processor.config.eos_token_ids[0]
    assert prepared.response.tolist() == processor.encode_answer("It is grey.")
    assert PrepareExample(processor)(example(path)).response is None
    placed = PrepareExample(processor)(example(path, prompt="Look: <image> What?"))
    assert processor.decode(placed.prompt.tokens).startswith("USER: Look:")


def test_unusable_example_says_why(processor, tmp_path):
    whole = tmp_path / "whole.png"
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    Image.fromarray(noise).save(whole)
    (tmp_path / "cut.png").write_bytes(whole.read_bytes()[:900])
    prepare = PrepareExample(processor, max_length=200)
    cases = {
        "cut.png: damaged image": example(whole, tmp_path / "cut.png"),
        "none.png: expected an image file, found nothing there": example(tmp_path / "none.png"),
        "the limit is 200": example(whole, prompt="Hi? " * 60),
    }
    for message, broken in cases.items():
        dropped = prepare(broken)
        assert isinstance(dropped, DroppedExample)
        assert (dropped.id, dropped.source) == ("a", "pets")
        assert message in dropped.message
        assert "\n" not in dropped.message
