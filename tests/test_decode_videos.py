"""Videos on the command line and in a file of requests, to the answer."""

import json

import pytest
from PIL import Image

from tests.decode_command import models, run, write_pair
from tiger_jax.pipeline import Pipeline

pytestmark = pytest.mark.usefixtures("no_compilation_cache")


@pytest.fixture(scope="module")
def film_pair(tmp_path_factory):
    """A pair that reads videos, and one of 12 pictures in 3 s, as a GIF and as a folder."""
    root = write_pair(tmp_path_factory.mktemp("film_pair"), "tiny_qwen3_vl")
    pictures = [Image.new("RGB", (64, 64), (20 * k, 0, 0)) for k in range(12)]
    pictures[0].save(root / "film.gif", save_all=True, append_images=pictures[1:], duration=250)
    (root / "film").mkdir()
    for k, picture in enumerate(pictures):
        picture.save(root / "film" / f"{k}.png")
    return root


@pytest.fixture
def frames(monkeypatch):
    """How many frames (of two pictures) each request had, as they are prepared."""
    prepare, counts = Pipeline.prepare, []

    def noted(self, *arguments):
        prepared = prepare(self, *arguments)
        counts.append(int(prepared.inputs.image_ids.max()) + 1)
        return prepared

    monkeypatch.setattr(Pipeline, "prepare", noted)
    return counts


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        (["film.gif", "--fps", 4, "--max-frames", 10, "--video-prompt", "4.57"], 5),
        (["film", "--selector", "random", "--routed-tokens", 4], 6),
        (["film.gif", "--prompt", "<image> or <video>?", "--image", "film/3.png"], 4),
    ],
)
def test_a_video_is_answered_as_plainly(film_pair, frames, tmp_path, arguments, count):
    report = tmp_path / "report.json"
    given = [film_pair / word if str(word).startswith("film") else word for word in arguments]
    assert run(*models(film_pair), "--max-new-tokens", 6, "--report", report, "--compare",
               "--quiet", "--video", *given) == 0  # fmt: skip
    assert frames == [count]
    written = json.loads(report.read_text())
    assert written["identical_to_plain"]
    assert written["requests"][0]["tokens"]


def test_videos_of_a_requests_file(film_pair, frames, tmp_path):
    (tmp_path / "cut.gif").write_bytes(b"GIF89a")
    film = str(film_pair / "film.gif")
    records = [
        {"id": "plain", "videos": [film], "prompt": "What happens?"},
        {"id": "dense", "videos": [film], "prompt": "What happens?", "fps": 4},
        {"id": "few", "videos": [film, film], "prompt": "Compare.", "max_frames": 2},
        {"id": "cut", "videos": ["cut.gif"], "prompt": "What happens?"},
        {"id": "rate", "videos": [film], "prompt": "What happens?", "fps": 1e308},
        {"id": "picture", "images": [str(film_pair / "film/3.png")], "prompt": "What is it?"},
    ]
    (tmp_path / "requests.jsonl").write_text("\n".join(map(json.dumps, records)))
    report = tmp_path / "report.json"
    assert run(*models(film_pair), "--requests", tmp_path / "requests.jsonl", "--batch-size", 2,
               "--max-new-tokens", 4, "--fps", 1, "--report", report, "--quiet") == 0  # fmt: skip
    assert frames == [2, 6, 2, 1]  # 4 pictures at least, by the folder
    errors = {r["id"] or "rate": r["error"] for r in json.loads(report.read_text())["requests"]}
    assert [name for name, error in errors.items() if error] == ["cut", "rate"]
    assert "cut.gif: " in errors["cut"]
    assert "fps: expected a number in 1e-06..1000000" in errors["rate"]


def test_llava_pools_what_its_budget_does_not_hold(film_pair, tmp_path):
    """A film of 6 frames, a picture whose detail view goes, and a film of more frames than the
    budget has tokens, which costs only itself."""
    verifier = write_pair(tmp_path / "llava", "tiny_llava") / "verifier"
    film, still = str(film_pair / "film.gif"), str(film_pair / "film/3.png")
    records = [
        {"id": "film", "videos": [film], "prompt": "What happens?"},
        {"id": "still", "images": [still], "prompt": "What does the picture show, all in all?"},
        {"id": "many", "videos": [film], "prompt": "What?", "fps": 100, "max_frames": 101},
    ]
    (tmp_path / "requests.jsonl").write_text("\n".join(map(json.dumps, records)))
    report = tmp_path / "report.json"
    assert run("--verifier", verifier, "--requests", tmp_path / "requests.jsonl", "--batch-size", 2,
               "--max-new-tokens", 3, "--visual-budget", 100, "--report", report) == 0  # fmt: skip
    written = json.loads(report.read_text())
    assert written["visual_budget"] == 100
    shown = {
        request["id"]: (request["frames"], request["tokens_per_frame"], request["visual_tokens"])
        for request in written["requests"]
    }
    assert shown == {"film": (6, [16], 96), "still": (1, [64], 64), "many": (0, [], 0)}
    assert "at most 100 pictures and frames of videos" in written["requests"][2]["error"]


def test_qwen_has_no_budget(film_pair, capsys):
    given = ["--verifier", film_pair / "verifier", "--prompt", "hi", "--visual-budget", 100]
    assert run(*given) == 2
    assert "visual budget: expected a LLaVA model" in capsys.readouterr().err
