"""Caption scores: by hand on tokenised captions, golden from raw ones, and the ends of java."""

import json
import math
import shutil
import subprocess
from collections import defaultdict

import pytest

from tests.samples import SAMPLES, needs_samples
from tiger_jax.errors import UserError
from tiger_jax.metrics import captions
from tiger_jax.metrics.captions import caption_scores

needs_java = pytest.mark.skipif(shutil.which("java") is None, reason="no java")
# Two pictures that share no word: each word of one has an inverse frequency of log 2.
REFERENCES = {1: ("a b c d",), 2: ("k l", "m n")}
PREDICTIONS = {1: "a b c d e", 2: "k l"}


def test_scores_by_hand():
    found = caption_scores(PREDICTIONS, REFERENCES, tokenize=False, meteor=False)
    # CIDEr of 1: cosines of the n-gram vectors, whose weights all are log 2, times the penalty of
    # one bigram too many; of 2: unigrams and bigrams meet one of two references, longer ones none.
    cosines = [4 / math.sqrt(5 * 4), 3 / math.sqrt(4 * 3), 2 / math.sqrt(3 * 2), 1 / math.sqrt(2)]
    first = 10 * sum(cosines) / 4 * math.exp(-1 / (2 * 6.0**2))
    second = 10 * (1 + 1 + 0 + 0) / 4 / 2
    assert found["CIDEr"] == pytest.approx((first + second) / 2)
    # n-grams of both captions together: found of all; 7 words against 6, so no brevity penalty.
    precisions = [6 / 7, 4 / 5, 2 / 3, 1 / 2]
    for n in range(1, 5):
        expected = math.prod(precisions[:n]) ** (1 / n)
        assert found[f"BLEU-{n}"] == pytest.approx(expected, rel=1e-6)
    # ROUGE-L of 1: precision .8, recall 1, beta 1.2.
    first = (1 + 1.44) * 0.8 / (1 + 1.44 * 0.8)
    assert found["ROUGE-L"] == pytest.approx((first + 1) / 2)
    assert found["METEOR"] is None
    assert found["METEOR_reason"] == "not asked for"


def test_nothing_is_printed(capfd):
    caption_scores(PREDICTIONS, REFERENCES, tokenize=False, meteor=False)
    assert capfd.readouterr() == ("", "")


def test_an_empty_caption_is_worth_nothing():
    found = caption_scores({1: "a b c d", 2: ""}, REFERENCES, tokenize=False, meteor=False)
    assert found["CIDEr"] == pytest.approx(5)  # 10 and 0
    assert found["ROUGE-L"] == pytest.approx(0.5)


def test_without_java(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(UserError, match=r"PTB tokens: expected java on the PATH.*JRE"):
        caption_scores(PREDICTIONS, REFERENCES)
    with pytest.raises(UserError, match=r"METEOR: expected java.*a JRE"):
        caption_scores(PREDICTIONS, REFERENCES, tokenize=False, meteor=True)
    found = caption_scores(PREDICTIONS, REFERENCES, tokenize=False)
    assert found["METEOR"] is None
    assert found["METEOR_reason"] == "no java on this machine"


def test_java_that_fails_is_told(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: "/bin/java")
    failed = subprocess.CompletedProcess([], 1, b"", b"first\nno class\n")
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: failed)
    with pytest.raises(UserError, match=r"expected 5 lines from java, got 0 and exit code 1: no"):
        caption_scores(PREDICTIONS, REFERENCES)


def test_bad_input_is_named():
    with pytest.raises(UserError, match="got 1 and 2; in one only: 2"):
        caption_scores({1: "a"}, REFERENCES, tokenize=False)
    with pytest.raises(UserError, match="got 0 and 0"):
        caption_scores({}, {}, tokenize=False)
    with pytest.raises(UserError, match="captions of 2: expected references, got none"):
        caption_scores(PREDICTIONS, {1: ("a",), 2: ()}, tokenize=False)


def test_the_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pycocoevalcap.bleu.bleu", None)
    with pytest.raises(UserError, match=r"pycocoevalcap.*tiger_jax\[caption\]"):
        caption_scores(PREDICTIONS, REFERENCES, tokenize=False)


def test_a_meteor_that_dies_is_told_and_waits_for_nobody(tmp_path, monkeypatch):
    fake = tmp_path / "java"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(UserError, match="METEOR: expected a score from java, got: "):
        caption_scores(PREDICTIONS, REFERENCES, tokenize=False, meteor=True)


@pytest.mark.java
@needs_java
def test_raw_captions_score_as_their_tokens():
    raw = caption_scores(
        {1: "A b, c d e.", 2: "K l!"}, {1: ("a b c d",), 2: ("k\nl", "M n.")}, meteor=False
    )
    tokens = caption_scores(PREDICTIONS, REFERENCES, tokenize=False, meteor=False)
    assert raw == pytest.approx(tokens)


@pytest.mark.java
@needs_java
def test_ptb_tokens(capfd):
    texts = ["A café's end, “quoted”.", "", "two\u2028lines\nof one", "x -- y; (z)", ""]
    found = captions._ptb_tokens(texts)
    # The dropped marks name brackets in capitals, which -lowerCase does not write: they stay, as in
    # all published scores.
    assert found == ["a café 's end quoted", "", "two lines of one", "x y -lrb- z -rrb-", ""]
    assert capfd.readouterr() == ("", "")


@pytest.mark.java
@needs_java
@needs_samples
def test_golden_scores_from_raw_captions():
    folder = SAMPLES / "coco/caption_eval"
    people = defaultdict(list)
    annotations = json.loads((folder / "captions_val2017.first120.json").read_text())
    for row in sorted(annotations["annotations"], key=lambda row: row["id"]):
        people[row["image_id"]].append(row["caption"])
    results = json.loads((folder / "human_last_caption_results.json").read_text())
    predictions = {row["image_id"]: row["caption"] for row in results}
    references = {key: texts[:-1] for key, texts in people.items()}
    assert len(predictions) == 120

    golden = json.loads((folder / "GOLDEN_scores.json").read_text())
    names = {f"Bleu_{n}": f"BLEU-{n}" for n in range(1, 5)} | {"ROUGE_L": "ROUGE-L"}
    found = caption_scores(predictions, references)
    for name, value in golden["with_ptb_tokenizer"].items():
        assert found[names.get(name, name)] == pytest.approx(value, abs=1e-9), name
    rounded = [found[name] for name in ("CIDEr", "BLEU-4", "ROUGE-L", "METEOR")]
    assert rounded == pytest.approx([0.9635, 0.1826, 0.4801, 0.2478], abs=5e-5)

    raw = caption_scores(predictions, references, tokenize=False, meteor=False)
    for name, value in golden["raw_strings_no_tokenizer (VLMEvalKit style)"].items():
        assert raw[names.get(name, name)] == pytest.approx(value, abs=1e-9), name
