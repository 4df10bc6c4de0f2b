"""`decode --trace` and `--trace-png` as a person types them."""

import gc
import json
import re
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from tests.assets import TINY_LLAVA
from tests.decode_command import run
from tiger_jax import decode
from tiger_jax.data.batches import PromptInputs
from tiger_jax.data.records import Request
from tiger_jax.decoding.engine import BatchOutput, Options, Output
from tiger_jax.errors import UserError
from tiger_jax.pipeline import Pipeline, Prepared
from tiger_jax.traces.tracer import Tracer

pytestmark = pytest.mark.usefixtures("no_compilation_cache")
DEMO = TINY_LLAVA / "demo.png"
SHORT = ("--max-new-tokens", 10, "--draft-length", 2, "--quiet", "--no-compare")


def accepted_marks(page):
    """Accepted tokens that each round of a page shows."""
    rounds = page.split("<article ")[1:]
    return [one.split("</article>")[0].count('<li class="token accepted">') for one in rounds]


def test_a_page_and_pictures_of_one_answer(tmp_path):
    """The marks are the report's lengths; the answer is that of a run without a trace."""
    page, folder, report = tmp_path / "t.html", tmp_path / "png", tmp_path / "r.json"
    folder.mkdir()
    line = ("--image", DEMO, "--prompt", "What <i>is</i> it?", *SHORT, "--report", report)
    assert run(*line) == 0
    (alone,) = json.loads(report.read_text())["requests"]
    assert run(*line, "--trace", page, "--trace-png", folder) == 0
    found = json.loads(report.read_text())
    (request,) = found["requests"]
    assert request == alone
    assert found["times_include_trace"] is True
    text = page.read_text(encoding="utf-8")
    assert accepted_marks(text) == request["accepted_lengths"]
    assert "What &lt;i&gt;is&lt;/i&gt; it?" in text
    row = dict(re.findall(r"<dt>([^<]*)</dt><dd>([^<]*)</dd>", text))
    assert row["drafter"] == "tiny_llava/heads/tiger_head (tiger_head)"
    assert row["verifier"] == "tiny_llava/verifier"
    assert {n: row[n] for n in ("selector", "k", "g", "T", "seed")} == {
        "selector": "tiger", "k": "8", "g": "2", "T": "0", "seed": "0"
    }  # fmt: skip
    names = [f"round-{n:03}.png" for n in range(1, request["rounds"] + 1)]
    assert sorted(path.name for path in folder.iterdir()) == names
    with Image.open(folder / names[0]) as picture:
        assert picture.format == "PNG"


def test_requests_have_a_section_each_in_the_order_of_the_file(tmp_path):
    """Batches put prompts of one size together; a fault, and a text without a picture."""
    lines = [
        {"id": "b", "prompt": "Why?"},
        {"id": "gone", "images": ["nowhere.png"], "prompt": "What?"},
        {"id": "a", "images": [str(DEMO)], "prompt": "What is it?", "max_new_tokens": 4},
        {"id": "<c>", "images": [str(DEMO)], "prompt": "What is it?", "seed": 3},
    ]
    file, page, report = tmp_path / "q.jsonl", tmp_path / "t.html", tmp_path / "r.json"
    broken = ["[1]", json.dumps({"prompt": "\ud800?"}), "{"]
    file.write_text("\n".join([*map(json.dumps, lines), *broken]))
    assert run("--requests", file, "--batch-size", 1, *SHORT, "--trace", page, "--report",
               report) == 0  # fmt: skip
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"<h2>(.*)</h2>", text) == [
        "Request b", "Request gone", "Request a", "Request &lt;c&gt;", "Request ?",
        "Request ?", "Request ?",
    ]  # fmt: skip
    answers = json.loads(report.read_text())["requests"]
    assert accepted_marks(text) == [a for one in answers for a in one["accepted_lengths"]]
    assert "nowhere.png: expected an image file, found nothing there" in text
    errors = re.findall('<p class="error">error: (line [^<]*)</p>', text)
    assert [error[:12] for error in errors] == ["line 5: expe", "line 6: prom", "line 7: not "]
    assert "no picture, nothing to route" in text
    assert "<dt>seed</dt><dd>differ, see each request</dd>" in text


def test_a_head_that_does_not_route_with_a_tree(tmp_path):
    page = tmp_path / "t.html"
    line = ("--image", DEMO, "--prompt", "What is it?", "--max-new-tokens", 8, "--quiet",
            "--drafter-kind", "medusa", "--draft-tree", "6,1,3", "--trace", page)  # fmt: skip
    assert run(*line) == 0
    text = page.read_text(encoding="utf-8")
    assert "This drafter does not route" in text
    assert "in the tree" in text
    assert "<dt>tree nodes</dt><dd>5</dd>" in text
    assert "<dt>k</dt><dd>none</dd>" in text
    assert sum(accepted_marks(text)) > 0
    assert 'class="routed' not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trace", "nowhere/t.html"], "--trace: expected a writable folder, got "),
        (["--trace", "."], "--trace: expected a writable file, got '.'"),
        (["--trace", ""], "--trace: expected a writable file, got ''"),
        (["--trace-png", "nowhere"], "--trace-png: expected a writable folder that exists, got"),
        (["--trace-png", ""], "--trace-png: expected a writable folder that exists, got ''"),
        (["--trace", "t.html", "--drafter", "none"],
         "--trace: expected a drafter to use it, got --drafter none"),
        (["--trace-png", ".", "--draft-length", "0"],
         "--trace-png: expected a drafter to use it, got --draft-length 0"),
        (["--trace", "t.html", "--verifier", "v"],
         "--trace: expected a drafter to use it, got --verifier alone"),
        (["--trace", "t.html", "--report", "./t.html"],
         "--trace: expected another file than --report, got 't.html'"),
        (["--trace", "t.html", "--dry-run"], "--trace: expected a run that decodes, got --dry-run"),
        (["--trace", "t.html", "--requests", "q", "--draft-length", "auto"],
         "--trace: expected --draft-length N beside --requests, got auto"),
    ],
)  # fmt: skip
def test_wrong_uses_are_refused_before_anything_is_loaded(
    arguments, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tiger_jax.session.Session", None)
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"error: {message}")
    assert captured.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_page_that_cannot_be_written_after_all_is_one_line(tmp_path):
    report = {"requests": [], "draft_nodes": 3, "draft_length": 2, "selector": None,
              "routed_tokens": None, "drafter_kind": "vlm", "dtype": "float32",
              "device": "cpu"}  # fmt: skip
    nowhere = Pipeline.__new__(Pipeline)  # nothing was decoded: it is not asked
    with pytest.raises(UserError, match=r"gone/t.html: cannot be written \(No such file"):
        Tracer().write(nowhere, report, verifier="v", drafter="d", records=[],
                       page=str(tmp_path / "gone" / "t.html"))  # fmt: skip


def test_tiles_are_let_go():
    """Many requests may be traced: an empty slice would keep the array that it was cut from."""
    tiles = np.zeros((5, 8, 8, 3), np.float32)
    alive = weakref.ref(tiles)
    rows, nowhere = np.zeros(3, np.int32), np.zeros((3, 2), np.float32)
    inputs = PromptInputs(rows, rows, tiles, nowhere, rows, rows, 4)
    prepared = [Prepared(Request("1", "What?"), inputs, Options())]

    class Silent(Pipeline):
        processor = SimpleNamespace(empty_tiles=lambda: np.zeros((0, 8, 8, 3), np.float32))

        def run(self, *_):
            return BatchOutput([Output("", [], [], "length", 0, 0, [])], 0.0, 0.0, compiled=False)

    tracer = Tracer()
    tracer.recorded(Silent.__new__(Silent))(prepared, 1)
    del tiles, inputs, prepared
    gc.collect()
    assert alive() is None
    assert len(tracer.traced[0].prepared.inputs.tiles) == 0


def test_help_names_both(capsys):
    with pytest.raises(SystemExit):
        decode.parse_arguments(["--help"])
    text = capsys.readouterr().out
    assert "--trace FILE.html" in text
    assert "--trace-png DIR" in text
    assert "python -m tiger_jax.decode --trace rounds.html" in text
