"""Timing in turn, and the arithmetic of bandwidth; no time is ever asserted."""

import numpy as np
import pytest

from tiger_jax.evaluation import bandwidth, progress, speed
from tiger_jax.evaluation.speed import Timing
from tiger_jax.models.interface import build_model
from tiger_jax.testing.tiny import tiny_config


def _timing(seconds: float = 1.0, tokens: tuple[int, ...] = (1, 2, 3)) -> Timing:
    return Timing(tokens, seconds, seconds / 2, len(tokens) - 1, rounds=1)


def test_decoders_take_turns_after_one_warm_up():
    seen = []

    def decoder(name):
        def run(prompt):
            seen.append((name, prompt))
            return _timing()

        return run

    timed = speed.interleave({"A": decoder("A"), "B": decoder("B")}, prompts=2, repeats=2)
    assert seen == [("A", 0), ("A", 1), ("B", 0), ("B", 1)] * 3
    assert [len(runs) for runs in timed.values()] == [2, 2]


def test_medians_are_taken_a_prompt():
    runs = [
        [_timing(1.0), _timing(9.0)],
        [_timing(3.0), _timing(2.0)],
        [_timing(2.0), _timing(4.0)],
    ]
    pooled = speed.summarise(runs)
    assert (pooled.seconds, pooled.decode_seconds) == (2.0 + 4.0, 3.0)
    assert (pooled.tokens, pooled.decode_tokens, pooled.rounds) == (6, 4, 2)
    assert pooled.rate == 1.0
    assert pooled.decode_rate == pytest.approx(4 / 3)
    assert pooled.round_seconds == 1.5
    assert pooled.tokens_a_round == 2.0


def test_answers_of_one_token_have_no_decoding_rate():
    pooled = speed.summarise([[Timing((1,), 1.0, 0.0, 0, 0)]])
    assert (pooled.decode_rate, pooled.round_seconds, pooled.tokens_a_round) == (None, None, None)


def test_same_tokens_looks_at_every_repetition():
    same, other = [_timing()], [_timing(tokens=(1, 2, 4))]
    assert speed.same_tokens([same, same], [same])
    assert not speed.same_tokens([same, other], [same])
    assert not speed.same_tokens([same], [same, other])


def test_bytes_of_a_step_by_hand():
    model = build_model(tiny_config(vocab=97, hidden=32, layers=2, kv_heads=2))
    # a layer: two norms of 32; q and out 32*32, k and v 32*16; three 32*64; and norm, head 32*97
    layer = 2 * 32 + 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64
    cache = 2 * 2 * 2 * 8 * 10  # k and v, layers, heads, head size, positions
    assert bandwidth.step_bytes(model, 10.0) == 4 * (2 * layer + 32 + 32 * 97 + cache)


def test_last_level_cache(tmp_path):
    assert bandwidth.last_level_cache(tmp_path) is None
    for index, size in enumerate(("32K", "1M", "", "odd")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(f"{size}\n")
    assert bandwidth.last_level_cache(tmp_path) == 2**20


def test_bandwidth_names_the_fastest_reader():
    seen = []

    def read(array):
        seen.append(array.nbytes)
        return np.sum(array[:1])

    found = bandwidth.measure(2**20, {"a glance": read})
    assert found.bytes_per_second > 0
    assert set(seen) == {2**20}
    assert found.how in ("a glance", "jnp.sum") or found.how.startswith("numpy dot")


def test_the_counter_ends_with_a_line(capsys):
    counter = progress.Counter(3, "prompts")
    for _ in range(3):
        counter.add(1)
    assert capsys.readouterr().err.startswith("3/3 prompts")
