"""The decode command as a person types it: answers, reports, and one clear line for every fault."""

import gc
import json
import weakref

import numpy as np
import pytest
from PIL import Image

from tests.assets import TINY_LLAVA
from tests.decode_command import models, run, write_pair
from tiger_jax import embedded
from tiger_jax.data.scene_folder import write_tiny_folder
from tiger_jax.data.scenes import make_scene
from tiger_jax.decoding import statistics
from tiger_jax.pipeline import Pipeline
from tiger_jax.streaming import Stream

FIELDS = {
    "requests", "A", "tau", "rounds", "tokens", "p_ge_2", "p_ge_4", "p_ge_8", "c", "v",
    "predicted_speedup", "measured_speedup", "measured_speedup_with_prefill", "ceiling",
    "identical_to_plain", "compiles", "prefill_seconds", "decode_seconds", "device", "versions",
}  # fmt: skip
KINDS = embedded.kinds_of("tiny_llava")
TREE = ("--draft-tree", "8,2,3")
REQUEST_FIELDS = {
    "id", "text", "tokens", "rounds", "drafted", "accepted", "accepted_lengths", "finish_reason",
    "logprobs", "error", "frames", "visual_tokens", "tokens_per_frame",
}  # fmt: skip

pytestmark = pytest.mark.usefixtures("no_compilation_cache")


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A pair and a picture."""
    root = write_pair(tmp_path_factory.mktemp("pair"), "tiny_llava")
    Image.fromarray(make_scene(0, 5).image).save(root / "scene.png")
    return root


def test_one_picture_with_report(pair, tmp_path, capsys):
    report_path = tmp_path / "report.json"
    code = run(
        *models(pair), "--image", pair / "scene.png", "--prompt", "What is in the picture?",
        "--max-new-tokens", 12, "--draft-length", 3, "--compare", "--report", report_path,
    )  # fmt: skip
    assert code == 0
    report = json.loads(report_path.read_text())
    assert set(report) >= FIELDS
    (request,) = report["requests"]
    assert set(request) == REQUEST_FIELDS
    assert len(request["tokens"]) == len(request["logprobs"]) == report["tokens"] <= 12
    assert report["identical_to_plain"] is True
    assert report["A"] == pytest.approx(np.mean(request["accepted_lengths"]))
    assert report["tau"] == pytest.approx(report["A"] + 1)
    assert report["ceiling"] == pytest.approx(1 / report["c"])
    want = report["tau"] / (3 * report["c"] + report["v"])
    assert report["predicted_speedup"] == pytest.approx(want)
    out = capsys.readouterr().out
    assert request["text"].split()[0] in out
    assert "identical to plain decoding: yes" in out


def test_pictures_are_read_a_few_batches_at_a_time(pair, tmp_path, monkeypatch):
    """Five requests, two a batch, one batch a window: the third is read when two are answered, and
    a bad one keeps its place."""
    monkeypatch.setattr("tiger_jax.session.WINDOW", 1)
    seen = []
    for name in ("prepare", "run"):
        plain = getattr(Pipeline, name)

        def noted(self, *arguments, name=name, plain=plain):
            seen.append(name)
            return plain(self, *arguments)

        monkeypatch.setattr(Pipeline, name, noted)
    images = [[str(pair / "scene.png")], ["nowhere.png"], *[[str(pair / "scene.png")]] * 3]
    lines = [json.dumps({"id": str(n), "images": shown, "prompt": "Count the circles."})
             for n, shown in enumerate(images)]  # fmt: skip
    (tmp_path / "requests.jsonl").write_text("\n".join(lines))
    report = tmp_path / "report.json"
    assert run("--verifier", pair / "verifier", "--requests", tmp_path / "requests.jsonl",
               "--batch-size", 2, "--max-new-tokens", 3, "--report", report) == 0  # fmt: skip
    assert seen == ["prepare", "prepare", "run"] * 2 + ["prepare", "run"]
    answers = json.loads(report.read_text())["requests"]
    assert [answer["id"] for answer in answers] == list("01234")
    assert [bool(answer["error"]) for answer in answers] == [False, True, False, False, False]


@pytest.mark.parametrize(("window_bytes", "expected"), [(0, [1, 1, 1]), (10**9, [3, 2, 1])])
def test_pictures_are_let_go(pair, tmp_path, monkeypatch, window_bytes, expected):
    """Three requests alike, one a batch: what is alive when each of them is decoded."""
    monkeypatch.setattr("tiger_jax.session.WINDOW_BYTES", window_bytes)
    made, alive = [], []
    prepare, decode = Pipeline.prepare, Pipeline.run

    def noted_prepare(self, *arguments):
        prepared = prepare(self, *arguments)
        made.append(weakref.ref(prepared.inputs.tiles))
        return prepared

    def noted_decode(self, *arguments):
        gc.collect()
        alive.append(sum(tiles() is not None for tiles in made))
        return decode(self, *arguments)

    monkeypatch.setattr(Pipeline, "prepare", noted_prepare)
    monkeypatch.setattr(Pipeline, "run", noted_decode)
    line = json.dumps({"images": [str(pair / "scene.png")], "prompt": "Count the circles."})
    (tmp_path / "requests.jsonl").write_text("\n".join([line] * 3))
    assert run("--verifier", pair / "verifier", "--requests", tmp_path / "requests.jsonl",
               "--batch-size", 1, "--max-new-tokens", 3) == 0  # fmt: skip
    assert alive == expected


def test_ctrl_c_leaves_a_report_of_what_was_answered(pair, tmp_path, monkeypatch, capsys):
    decode_batch, calls = Pipeline.run, []

    def interrupted(self, *arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return decode_batch(self, *arguments)

    monkeypatch.setattr(Pipeline, "run", interrupted)
    line = json.dumps({"images": [str(pair / "scene.png")], "prompt": "Count the circles."})
    (tmp_path / "requests.jsonl").write_text("\n".join([line] * 3))
    report = tmp_path / "report.json"
    assert run("--verifier", pair / "verifier", "--requests", tmp_path / "requests.jsonl",
               "--batch-size", 1, "--max-new-tokens", 3, "--report", report) == 130  # fmt: skip
    assert capsys.readouterr().err == "interrupted\n"
    written = json.loads(report.read_text())
    assert written["interrupted"]
    assert [answer["id"] for answer in written["requests"]] == ["line-1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pair", "bogus"], "--pair: expected one of tiny_llava, tiny_qwen3_vl, got 'bogus'"),
        (["--dry-run"], "--dry-run: expected no pictures, got --image or --video beside it"),
    ],
)
def test_videos_where_none_can_be_read(capsys, arguments, message):
    assert run("--video", ".", *arguments) == 2
    assert capsys.readouterr().err == f"error: {message}\n"


def test_requests_file_with_bad_records(pair, tmp_path, capsys):
    (tmp_path / "not_a_picture.png").write_text("<html>404</html>")
    records = [
        {"id": "good", "images": [str(pair / "scene.png")], "prompt": "Count the circles."},
        {"id": "missing", "images": ["nowhere.png"], "prompt": "What is it?"},
        {"id": "broken", "images": ["not_a_picture.png"], "prompt": "What is it?"},
        {"id": "text", "prompt": "Say something.", "max_new_tokens": 4, "temperature": 1.0},
        {"id": "counts", "prompt": "<image> <image>", "images": [str(pair / "scene.png")]},
    ]
    lines = [json.dumps(record) for record in records]
    lines.insert(2, "{not json")
    path = tmp_path / "requests.jsonl"
    path.write_text("\n".join(lines))
    report_path = tmp_path / "report.json"
    code = run(
        *models(pair), "--requests", path, "--batch-size", 2, "--max-new-tokens", 6,
        "--draft-length", 2, "--report", report_path,
    )  # fmt: skip
    assert code == 0
    answers = json.loads(report_path.read_text())["requests"]
    assert [answer["id"] for answer in answers] == [
        "good", "missing", None, "broken", "text", "counts",
    ]  # fmt: skip
    failed = {answer["id"]: answer["error"] for answer in answers if answer["error"]}
    assert set(failed) == {"missing", None, "broken", "counts"}
    assert "nowhere.png" in failed["missing"]
    assert "not_a_picture.png" in failed["broken"]
    assert "line 3" in failed[None]
    assert len(answers[4]["tokens"]) <= 4
    assert "good\t" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--image", "no.png"], "no.png: expected a picture or video, found none there"),
        (["--verifier", "/nowhere"], "/nowhere: expected a checkpoint folder"),
        (["--draft-length", "fast"], "--draft-length: expected a number or auto, got 'fast'"),
        (["--requests", "none.jsonl"], "none.jsonl: expected a JSON Lines file"),
        (["--requests", "x.jsonl", "--prompt", "y"], "--requests: expected it alone"),
        (["--temperature", "-1"], "temperature: expected a value 0, or in 0.001..1000, got -1.0"),
        (["--report", "/nowhere/r.json"], "--report: expected a writable folder, got /nowhere"),
        (["--stop", ""], "--stop: expected a text"),
        (["--batch-size", "0"], "--batch-size: expected at least 1, got 0"),
        (["--fps", "2"], "--fps: expected --video or --requests beside it"),
        (["--video", ".", "--fps", "0"], "--fps: expected a number in 1e-06..1000000, got 0.0"),
        (["--video", ".", "--max-frames", "0"], "--max-frames: expected a whole number in 1..1536"),
        (["--video", "no.mp4"], "no.mp4: expected a picture or video, found none there"),
        (["--video", ""], "'': expected a picture or video, found none there"),
        (["--video", "."], ".: expected a folder of pictures, found none in it"),
        (["--visual-budget", "0"], "--visual-budget: expected at least 1, got 0"),
        (["--pair", "tiny_qwen3_vl"], "--pair: expected it alone, got --verifier beside it"),
        (["--draft-length", "0", "--selector", "random"], "--selector: expected a drafter to use"),
        (["--drafter", "none", "--routed-tokens", "4"], "expected a drafter to use it, got --draf"),
        (["--verifier", "v", "--selector", "full"], "to use it, got --verifier alone"),
        (["--prompt", "<image>"], "got 1 placeholders and 0 images"),
    ],
)
def test_bad_input_is_one_line_and_code_2(pair, capsys, arguments, message):
    given = [*models(pair), *arguments] if "--verifier" not in arguments else arguments
    assert run(*given) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert message in captured.err


def test_pairs_that_do_not_fit_are_refused(pair, tmp_path, capsys):
    other = tmp_path / "other"
    write_tiny_folder(other, role="drafter")
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    words = tokenizer["model"]["vocab"]
    one, two = list(words)[-2:]
    words[one], words[two] = words[two], words[one]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert run("--verifier", pair / "verifier", "--drafter", other, "--prompt", "hello") == 2
    assert "drafter: expected the verifier's vocabulary" in capsys.readouterr().err


def test_plain_decoding_without_a_drafter(pair, tmp_path, capsys):
    report_path = tmp_path / "report.json"
    arguments = ["--prompt", "hello", "--max-new-tokens", 5, "--report", report_path, "--compare"]
    assert run("--verifier", pair / "verifier", *arguments) == 0
    report = json.loads(report_path.read_text())
    assert report["A"] is None
    assert report["draft_length"] == 0
    assert report["c"] is None
    assert report["measured_speedup"] is None  # there is nothing to compare
    assert "speedup" not in capsys.readouterr().out


@pytest.mark.parametrize("best", [0, 2])
def test_a_draft_length_that_is_chosen_on_the_way(pair, tmp_path, monkeypatch, best):
    """Four requests calibrate; where drafting does not pay the rest is plain, and not compared."""
    monkeypatch.setattr("tiger_jax.session.MEASURED_LENGTHS", (2,))
    monkeypatch.setattr("tiger_jax.session.CALIBRATION_LENGTH", 3)
    monkeypatch.setattr(statistics, "best_draft_length", lambda *_: (best, 1.0))
    requests, path = tmp_path / "requests.jsonl", tmp_path / "report.json"
    requests.write_text('{"prompt": "hello"}\n' * 6)
    code = run(*models(pair), "--requests", requests, "--batch-size", 2, "--compare", "--quiet",
               "--draft-length", "auto", "--max-new-tokens", 5, "--report", path)  # fmt: skip
    assert code == 0
    report = json.loads(path.read_text())
    assert [len(request["tokens"]) > 0 for request in report["requests"]] == [True] * 6
    assert (report["draft_length"], report["calibration"]["chosen"]) == (best, best)
    assert report["calibration"]["requests"] == 4
    drafts = best > 0
    assert (report["measured_speedup"] is not None) == (report["c"] is not None) == drafts
    assert report["identical_to_plain"] is True  # of the first four it was asked


def answered(tmp_path, *arguments):
    """Report of the embedded pair's answer about the demo picture."""
    path = tmp_path / "report.json"
    line = ["--image", TINY_LLAVA / "demo.png", "--prompt", embedded.demo().prompt,
            "--max-new-tokens", 16, "--report", path]  # fmt: skip
    assert run(*line, *arguments) == 0
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def embedded_plain(tmp_path_factory):
    """What the embedded verifier says alone."""
    report = answered(tmp_path_factory.mktemp("plain"), "--drafter", "none", "--quiet")
    assert (report["drafter_kind"], report["draft_nodes"]) == (None, 0)
    return report["requests"][0]["tokens"]


@pytest.mark.parametrize("kind", KINDS)
def test_drafters_of_the_embedded_pair(kind, embedded_plain, tmp_path):
    """Each says what the verifier says alone, and some of its drafts are accepted."""
    report = answered(tmp_path, "--drafter-kind", kind, "--draft-length", 2, "--quiet")
    assert report["requests"][0]["tokens"] == embedded_plain
    assert len(embedded_plain) == 16
    assert report["drafter_kind"] == kind
    assert (report["draft_length"], report["draft_nodes"]) == (2, 3)
    assert report["A"] > 0.5
    routed = kind in ("tiger_head", "vlm")
    assert report["routed_tokens"] == (8 if routed else None)
    assert report["pooled_tokens"] is None or kind in ("tiger_head", "vlm")


def test_a_tree_is_compared_with_plain_decoding(embedded_plain, tmp_path, capsys):
    report = answered(tmp_path, "--drafter-kind", "tiger_head", *TREE, "--compare")
    assert report["identical_to_plain"] is True
    assert report["requests"][0]["tokens"] == embedded_plain
    assert (report["draft_length"], report["draft_nodes"]) == (3, 8)
    assert 0.5 < report["A"] <= 3
    assert report["p_ge_4"] == 0
    assert report["predicted_speedup"] > 0
    assert "identical to plain decoding: yes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--draft-tree", "8,2"], "NODES,DEPTH,WIDTH, a .json file or chain, got '8,2'"),
        (["--draft-tree", "8,-2,3"], "draft tree: expected NODES,DEPTH,WIDTH"),
        (["--draft-tree", "9,1,2"], "tree: expected 2 to 7 nodes, got 9"),
        ([*TREE, "--draft-confidence", "0.5"], "confidence: expected 0 with a tree, got 0.5"),
        ([*TREE, "--drafter-kind", "vlm"], "draft tree: expected a head as drafter, got "),
        ([*TREE, "--draft-length", "3"], "--draft-tree: expected no --draft-length, got 3"),
        ([*TREE, "--draft-length", "auto"], "--draft-tree: expected no --draft-length, got auto"),
        ([*TREE, "--drafter", "none"], "--draft-tree: expected a drafter to use it"),
        (["--drafter-kind", "vlm", "--drafter", "d"], "expected the embedded pair, got --drafter"),
        (["--drafter-kind", "vlm", "--verifier", "v"], "expected the embedded pair, got --verifi"),
        (["--drafter-kind", "tiger_head", "--selector", "sparsevlm"],
         "selector: expected one of tiger, random, image_only, got 'sparsevlm'"),
        (["--drafter-kind", "tiger_head", "--selector", "full"],
         "expected one that routes with visual 'routed'"),
    ],
)  # fmt: skip
def test_wrong_uses_of_heads_are_one_line_and_code_2(capsys, arguments, message):
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert message in captured.err


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("tiger_head", "vlm")])
def test_heads_that_do_not_route_are_asked_for_no_k(kind, capsys):
    assert run("--drafter-kind", kind, "--routed-tokens", 4) == 2
    assert f"routed_tokens: expected a head that routes, got {kind}" in capsys.readouterr().err


def test_a_stop_string_is_never_shown_while_streaming(capsys):
    """What could become a stop string waits; nothing is printed twice."""
    stream = Stream(0.0, ("the word",))
    for text in ("There", "There is ", "There is th", "There is the big", "There is the big the w"):
        stream.update(text)
    stream.update("There is the big the word fig")
    stream.end("There is the big")
    assert capsys.readouterr().out == "There is the big\n"
