"""The embedded Qwen3-VL pair: small enough, well trained on pictures and clips, lossless with both
of its drafters, and equal to transformers."""

import jax
import numpy as np
import pytest

from tests.assets import TINY_QWEN3_VL
from tests.weights.test_convert_scripts import script
from tiger_jax import embedded
from tiger_jax.data.batches import make_prompt
from tiger_jax.data.clips import make_clip
from tiger_jax.data.examples import shown_in
from tiger_jax.data.prompts import build_prompt
from tiger_jax.data.scenes import HELD_OUT, make_scene
from tiger_jax.decoding.engine import Options
from tiger_jax.pipeline import Pipeline

PAIR = "tiny_qwen3_vl"
RECORDS = 16
"""Of each kind: half of the prompts are about clips."""
NEW_TOKENS = 32


@pytest.fixture(scope="module")
def asked():
    """(record, question) of every prompt."""
    records = [
        make(7, HELD_OUT + index) for index in range(RECORDS) for make in (make_scene, make_clip)
    ]
    return [(record, record.qa[n // 2 % 4]) for n, record in enumerate(records)]


@pytest.fixture(scope="module")
def full():
    return Pipeline.load(embedded.verifier(PAIR), embedded.drafter("full", pair=PAIR))


@pytest.fixture(scope="module")
def tiger():
    return Pipeline.load(embedded.verifier(PAIR), embedded.drafter(pair=PAIR))


@pytest.fixture(scope="module")
def prompts(full, asked):
    made = []
    for record, qa in asked:
        shown = shown_in(record)
        text = build_prompt(full.processor, qa.question, *map(len, shown))
        made.append(make_prompt(full.processor, full.config, text, shown.images,
                                videos=shown.videos))  # fmt: skip
    return made


def answers(pipeline, prompts):
    """In batches of eight, as the command decodes them."""
    options = [Options(max_new_tokens=NEW_TOKENS)] * 8
    return [
        output
        for start in range(0, len(prompts), 8)
        for output in pipeline.engine.run(
            pipeline.arrays(prompts[start : start + 8]), options
        ).outputs
    ]


@pytest.fixture(scope="module")
def plain(full, prompts):
    return [output.tokens for output in answers(full.plain(), prompts)]


def accepted(outputs):
    return np.mean([length for output in outputs for length in output.accepted_lengths])


def test_sizes():
    stored = sum(path.stat().st_size for path in TINY_QWEN3_VL.rglob("*") if path.is_file())
    assert stored <= 16 * 2**20
    counts = {}
    for role in ("verifier", "drafter", "tiger_drafter"):
        params = Pipeline.load(TINY_QWEN3_VL / role).engine.params
        counts[role] = sum(x.size for x in jax.tree.leaves(params))
    assert 2e6 <= counts["verifier"] <= 6e6
    assert counts["drafter"] == counts["tiger_drafter"] <= counts["verifier"] / 3


def test_the_verifier_reads_pictures_and_clips(full, asked, plain):
    """A sample of the held-out accuracy of docs/results.md."""
    right = [
        record.is_correct(qa.kind, qa.question, full.processor.decode(tokens).strip())
        for (record, qa), tokens in zip(asked, plain, strict=True)
    ]
    assert np.mean(right[::2]) >= 0.6
    assert np.mean(right[1::2]) >= 0.6


@pytest.mark.parametrize("name", ["full", "tiger"])
def test_drafters_change_no_token(request, prompts, plain, name):
    pipeline = request.getfixturevalue(name)
    found = answers(pipeline, prompts)
    assert [output.tokens for output in found] == plain
    assert accepted(found[::2]) > 2.5
    assert accepted(found[1::2]) > 2.5


def test_the_tiger_drafter_routes_eight_tokens(tiger):
    assert (tiger.router.selector, tiger.router.routed_tokens) == ("tiger", 8)


def test_transformers_gives_the_same_logits(capsys):
    """The drafter's folder as it lies there, its own processor on both sides."""
    folder = str(embedded.drafter("full", pair=PAIR))
    assert script("check_parity").main([folder, "--prompt", "Describe the picture."]) == 0
    assert "equal within 5e-06" in capsys.readouterr().out
