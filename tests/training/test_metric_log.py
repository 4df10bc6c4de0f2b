"""What a run reports: lines that survive a kill, texts, samples with their accepted part."""

import json

import numpy as np
import pytest
from draft_cases import make_case, make_items

from tiger_jax.routing.router import RouterConfig
from tiger_jax.testing.tiny import tiny_config
from tiger_jax.training.kinds import kind_metrics
from tiger_jax.training.metric_log import MetricLog, read_curve, show_sample


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_goes_on_behind_the_last_whole_line(tmp_path):
    """Killed in the middle of a line: the next line must not be glued to it."""
    log = MetricLog(tmp_path)
    log.write(1, {"loss": 2.0})
    log.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "of": "tr')
    assert read_curve(tmp_path, "train/loss") == ([1], [2.0])
    log = MetricLog(tmp_path)
    log.write(2, {"loss": 1.0})
    log.write(2, {"A/read": 3.0}, prefix="held_out")
    log.write_text(2, {"sample 0": "    [a]b"})
    log.close()
    assert [line["step"] for line in lines(tmp_path)] == [1, 2, 2, 2]
    assert lines(tmp_path)[-1] == {"step": 2, "of": "text", "sample 0": "    [a]b"}
    assert read_curve(tmp_path, "train/loss") == ([1, 2], [2.0, 1.0])
    assert read_curve(tmp_path, "held_out/A/read") == ([2], [3.0])


def test_a_log_of_another_process_writes_nothing(tmp_path):
    log = MetricLog(tmp_path / "log", active=False)
    log.write(1, {"loss": 2.0})
    log.write_text(1, {"sample": "text"})
    log.close()
    assert not (tmp_path / "log").exists()


def test_the_accepted_part_is_marked_and_nothing_is_markdown():
    text = show_sample("USER: *two*\nASSISTANT: There", [(" are two", " stars"), ("", " is")])
    assert text.splitlines() == [
        "    USER: *two*\\nASSISTANT: There", "        [ are two] stars", "        [] is"
    ]  # fmt: skip


@pytest.fixture(scope="module")
def batch():
    """Three examples: two questions, one, and two; the first two have blocks of both kinds."""
    config = tiny_config(layers=1)
    return make_case(config, RouterConfig("tiger", routed_tokens=3), make_items(config)).batch


def test_metrics_by_kind_count_each_block_once(batch):
    """Question 0 is one kind, question 1 another; together they are the whole batch."""
    calls = []

    def evaluate(params, batch):
        calls.append(batch)
        blocks = (batch.anchors >= 0).sum()
        return {"A": (batch.block_lengths.sum(), blocks), "loss": (blocks, blocks)}

    found = kind_metrics(evaluate, None, batch, ("read", "count"), names=("A", "kl"))
    assert set(found) == {"A/read", "A/count"}
    want = by_hand(batch)
    assert {name: (int(a), int(b)) for name, (a, b) in found.items()} == want
    assert sum(total for total, _ in want.values()) == int(batch.block_lengths.sum())
    assert [call.tokens.shape for call in calls] == [batch.tokens.shape] * 2


def by_hand(batch):
    """(drafted tokens, blocks) by the segment in which each anchor stands."""
    sums = {"A/read": [0, 0], "A/count": [0, 0]}
    for b, m in np.argwhere(np.asarray(batch.anchors) >= 0):
        kind = ("A/read", "A/count")[int(batch.segments[b, batch.anchors[b, m]]) - 1]
        sums[kind][0] += int(batch.block_lengths[b, m])
        sums[kind][1] += 1
    return {kind: tuple(pair) for kind, pair in sums.items()}
