"""The comparison with transformers on a tiny random pair: same tokens, bars, failures."""

import json

import pytest

pytest.importorskip("torch")

from tests.assets import TINY_QWEN3_VL
from tiger_jax import evaluate
from tiger_jax.decoding.costs import Costs
from tiger_jax.decoding.engine import Options
from tiger_jax.evaluation import peer_report, peer_run, random_pair, scene_prompts
from tiger_jax.evaluation.bandwidth import Bandwidth
from tiger_jax.evaluation.peer_run import PairResult
from tiger_jax.evaluation.peer_transformers import Peer
from tiger_jax.evaluation.speed import Timing
from tiger_jax.pipeline import Pipeline

G = 3
BARS = {"plain_over_generate": 2.0, "speculative_over_assisted": 4.0, "speculative_over_plain": 1.5}


def _runs(rate: float, rounds: int = 10) -> list[list[Timing]]:
    """One answer of 11 tokens, `rate` of them a second after the first, which takes 1 s."""
    return [[Timing(tuple(range(11)), 1 + 10 / rate, 10 / rate, 10, rounds)]]


def _result(runs: dict, failed: dict | None = None) -> PairResult:
    return PairResult(
        "embedded", (4, 1), runs, failed or {}, True,
        Costs(plain_step=1.0, draft=0.5, round=1.6, draft_length=5), (1e6, 1e5),
    )  # fmt: skip


def _report(result: PairResult, bars: dict) -> dict:
    settings = {"draft_length": 5, "bandwidth_mib": 1, "embedded": {"bars": bars}}
    return peer_report.build([result], Bandwidth(1e8, "x"), 2**21, settings, {"jax": "0"}, 9999.0)


def test_bars_are_against_the_faster_rival_and_need_both_times():
    report = _report(_result({
        peer_run.GENERATE: _runs(10), peer_run.ASSISTED: _runs(5),
        peer_run.ASSISTED_SEEING: _runs(8, 5), peer_run.PLAIN: _runs(20),
        peer_run.SPECULATIVE: _runs(40, 2),
    }), BARS)  # fmt: skip
    by_name = {bar["bar"]: bar for bar in report["bars"]}
    plain = by_name["plain_over_generate"]
    assert plain["without_prefill"] == pytest.approx(2.0)
    assert plain["with_prefill"] == pytest.approx(2 / 1.5)
    assert plain["passed"] is False
    assert by_name["speculative_over_assisted"]["without_prefill"] == pytest.approx(40 / 8)
    assert by_name["speculative_over_plain"]["passed"] is False
    (pair,) = report["pairs"]
    assert pair["A"] == 4.0
    assert pair["predicted_speedup"] == pytest.approx(5 / 1.6)
    assert pair["assisted_round_in_steps"] == pytest.approx((10 / 8 / 5) / 0.1)
    speculative = pair["contenders"][-1]
    assert speculative["round_bytes"] == 1e6 + 5 * 1e5
    assert speculative["bandwidth_share"] == pytest.approx(1.5e6 / (10 / 40 / 2) / 1e8)
    text = peer_report.text(report)
    assert "MISS |" in text
    assert "last-level cache" in text
    assert "NOT QUIET: load average 9999.0" in text
    assert "without the picture" in text


def test_assisted_generation_that_fails_is_said_so():
    runs = {
        peer_run.GENERATE: _runs(10), peer_run.PLAIN: _runs(100), peer_run.SPECULATIVE: _runs(200)
    }  # fmt: skip
    why = {peer_run.ASSISTED: "ValueError: no", peer_run.ASSISTED_SEEING: "ValueError: no"}
    report = _report(_result(runs, why), {"speculative_over_assisted": 4.0})
    assert report["bars"][0]["passed"] is None
    text = peer_report.text(report)
    assert "not measured" in text
    assert "transformers assisted failed: ValueError: no" in text


def test_only_assisted_generation_may_fail():
    def broken(prompt):
        raise ValueError("no")

    names = (peer_run.GENERATE, peer_run.ASSISTED, peer_run.ASSISTED_SEEING)
    runnable, failed = peer_run._runnable(dict.fromkeys(names, broken))
    assert list(runnable) == [peer_run.GENERATE]
    assert failed[peer_run.ASSISTED] == "ValueError: no"


@pytest.fixture(scope="module")
def peer(pair) -> Peer:
    """The verifier drafts for itself."""
    return Peer(
        pair[0], pair[0], draft_length=G, confidence=0.0, max_new_tokens=1 + 2 * (G + 1), threads=1
    )


def test_a_drafter_that_sees_the_picture_is_accepted(pair, peer):
    pipeline = Pipeline.load(pair[0])
    (question,) = scene_prompts.questions(1, 0, ("count",))
    inputs = peer.inputs(scene_prompts.prompt_text(pipeline, question), question.scene.image)
    plain = peer.plain(inputs)
    assert (len(plain.tokens), plain.decode_tokens, plain.rounds) == (9, 8, 8)
    seeing = peer.assisted(inputs, show_picture=True)
    assert seeing.tokens == plain.tokens
    # 4 with the prompt, 4 in a round, and the last one alone
    assert (seeing.decode_tokens, seeing.rounds) == (5, 2)
    assert peer.blind_drafts is False
    assert peer.assisted(inputs).tokens == plain.tokens
    import transformers

    if transformers.__version__ == "5.24.0":  # later versions may hand the picture over
        assert peer.blind_drafts is True


def test_a_trained_pair_of_the_other_family():
    """transformers' own tokens, and a drafter that is right about some of them."""
    verifier, drafter = TINY_QWEN3_VL / "verifier", TINY_QWEN3_VL / "drafter"
    peer = Peer(verifier, drafter, draft_length=G, confidence=0.0, max_new_tokens=24, threads=1)
    pipeline = Pipeline.load(verifier)
    (question,) = scene_prompts.questions(1, 0, ("describe",))
    inputs = peer.inputs(scene_prompts.prompt_text(pipeline, question), question.scene.image)
    ours = scene_prompts.prepare(pipeline, question, Options(max_new_tokens=24))
    assert ours.inputs.tokens.tolist() == inputs["input_ids"][0].tolist()
    tokens = tuple(pipeline.run([ours], 1).outputs[0].tokens)
    assert peer.plain(inputs).tokens == tokens
    seeing = peer.assisted(inputs, show_picture=True)
    assert seeing.tokens == tokens
    assert seeing.rounds < len(tokens) / 2


def test_the_command_prints_the_table(sizes, tmp_path, capsys):
    fields = [
        f"--config.random.{role}.{name}={value}"
        for role, chosen in sizes.items() for name, value in chosen.items()
    ]  # fmt: skip
    path = tmp_path / "report.json"
    line = [
        "--config", "configs/eval/peer_transformers.py", "--config.pairs=('random',)",
        "--config.random.max_new_tokens=6", "--config.repeats=1",
        "--config.threads=1", "--config.bandwidth_mib=1", f"--config.draft_length={G}",
        f"--config.report={path}", f"--config.random.folder={tmp_path / 'pair'}", *fields,
    ]  # fmt: skip
    assert evaluate.main(line) == 0
    report = json.loads(path.read_text())
    (pair,) = report["pairs"]
    assert [row["same_tokens"] for row in pair["contenders"]] == [True] * 5
    assert [row["tokens"] for row in pair["contenders"]] == [6] * 5
    assert [bar["bar"] for bar in report["bars"]] == ["plain_over_generate"]
    assert pair["round_in_steps"] > 0
    assert capsys.readouterr().out.startswith("| pair ")


def test_a_written_pair_is_kept(sizes, tmp_path):
    verifier, drafter = random_pair.write_pair(tmp_path, sizes)
    before = (verifier / "model.safetensors").stat().st_mtime_ns
    assert random_pair.write_pair(tmp_path, sizes) == [verifier, drafter]
    assert (verifier / "model.safetensors").stat().st_mtime_ns == before
    assert random_pair.count_params(drafter) < random_pair.count_params(verifier)
