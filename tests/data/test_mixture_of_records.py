"""A mixture gives each record as often as its weight says, whoever reads it and wherever it stops.

Grain's own pieces have lost records before: mix by truncated weights, workers at the end of data.
"""

import json
from collections import Counter
from itertools import pairwise

import pytest
from absl import flags
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tiger_jax.data.examples import DroppedExample, Example, PrepareExample
from tiger_jax.data.mixtures import PackTower, SceneSource, mixture
from tiger_jax.errors import UserError

A, B, C = [f"a{i}" for i in range(300)], [f"b{i}" for i in range(500)], ["c0"]
POOL = [(A, 1), (B, 1), (C, 1)]  # 801 records: Grain is slow to shuffle few
BROKEN = {"a5", "a6", "b5", "c0"}


def drop_broken(record: str) -> str | DroppedExample:
    """Stands for a picture that cannot be opened."""
    return DroppedExample(record, record[0], "broken") if record in BROKEN else record


def test_one_epoch_is_every_record_once():
    epoch = list(mixture(POOL, seed=3, num_epochs=1))
    assert sorted(epoch) == sorted(A + B + C)
    assert epoch != sorted(epoch)
    changes = sum(first[0] != second[0] for first, second in pairwise(epoch))
    assert changes > 250  # about 375 in a fair order, 2 or 3 if only the parts were shuffled


def test_order_follows_the_seed_and_changes_each_epoch():
    def order(seed, epochs=2):
        return list(mixture(POOL, seed, num_epochs=epochs))

    assert order(1) == order(1) != order(2)
    first, second = order(1)[:801], order(1)[801:]
    assert sorted(first) == sorted(second)
    assert first != second
    assert order(2, 1) != second  # Grain's seed + epoch would make these the same
    assert order(None) == (A + B + C) * 2


@settings(deadline=None, max_examples=6)
@given(
    st.lists(st.integers(300, 400), min_size=2, max_size=4),
    st.integers(1, 4),
    st.integers(0, 2**32),
)
def test_shards_are_disjoint_and_the_whole(sizes, hosts, seed):
    sources = [([(s, i) for i in range(n)], 1.0) for s, n in enumerate(sizes)]
    records = [record for source, _ in sources for record in source]
    shards = [
        list(mixture(sources, seed, shard=(h, hosts), num_epochs=2)) for h in range(hosts)
    ]  # fmt: skip
    for epoch in range(2):
        parts = [shard[epoch * len(shard) // 2 :][: len(shard) // 2] for shard in shards]
        assert sorted(record for part in parts for record in part) == records
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_weights_are_visits_an_epoch():
    """Twice, half, and two thirds rounded: 600 + 250 + 1 records; the other half of B next time."""
    sources = [(A, 2), (B, 0.5), (C, 0.67)]
    both = list(mixture(sources, seed=0, num_epochs=2))
    assert len(both) == 2 * 851
    first, second = Counter(both[:851]), Counter(both[851:])
    for epoch in (first, second):
        assert all(epoch[record] == 2 for record in A)
        assert epoch["c0"] == 1
        assert sum(epoch[record] for record in B) == 250
    assert all(first[record] + second[record] == 1 for record in B)


@pytest.mark.parametrize("shard", [(0, 1), (1, 2)])
def test_resume_at_every_record(shard):
    """Over the ends of epochs and over what was dropped, through JSON as a checkpoint keeps it."""
    stream = mixture(POOL, seed=5, shard=shard, transform=drop_broken)
    run, states, records = iter(stream), [], []
    for _ in range(820):
        states.append(json.dumps(run.get_state()))
        records.append(next(run))
    assert not BROKEN & set(records)
    for start in [*range(0, 780, 60), *range(780, 820)]:  # an epoch ends after 797, or 399 and 798
        resumed = iter(stream)
        resumed.set_state(json.loads(states[start]))
        ahead = records[start : start + 3]
        assert [next(resumed) for _ in ahead] == ahead


def test_resume_of_batches():
    stream = mixture(POOL, seed=5, num_epochs=2, transform=drop_broken).batch(
        150, drop_remainder=True, batch_fn=tuple
    )
    run = iter(stream)
    batches, states = [], []
    for batch in run:
        batches.append(batch)
        states.append(run.get_state())
    assert len(batches) == 2 * 797 // 150
    for done, state in enumerate(states, start=1):
        resumed = iter(stream)
        resumed.set_state(state)
        assert list(resumed) == batches[done:]


def test_broken_pictures_are_dropped_and_counted(processor, tmp_path):
    """Next to scenes, which need no file."""
    Image.new("RGB", (30, 20)).save(tmp_path / "good.png")
    (tmp_path / "bad.png").write_bytes(b"<html>")
    names = {"1": "good.png", "2": "bad.png", "3": "good.png", "4": "none.png"}
    examples = [
        Example(i, "What is it?", (str(tmp_path / name),), "own") for i, name in names.items()
    ]
    dropped = {}
    prepare = PrepareExample(processor)
    stream = mixture([(examples, 1)], None, num_epochs=2, transform=prepare, dropped=dropped)
    assert sorted(element.example.id for element in stream) == ["1", "1", "3", "3"]
    assert set(dropped) == {("own", "2"), ("own", "4")}  # each once, however often it came
    assert "bad.png" in dropped["own", "2"]

    scenes = mixture([(SceneSource(3), 1)], None, num_epochs=1, transform=PackTower(processor))
    assert [element.tiles.shape for element in scenes] == [(1, 112, 112, 3)] * 3


def test_nothing_usable_is_an_error_and_no_endless_loop():
    stream = mixture([(["a5", "b5"], 1)], None, transform=drop_broken)
    with pytest.raises(UserError, match="no usable record; the last one: broken"):
        next(iter(stream))


@pytest.mark.parametrize(
    ("sources", "shard", "message"),
    [
        ([(A, 1), ([], 1)], (0, 1), "source 1, got 0 records"),
        ([(A, 0)], (0, 1), "source 0, got 300 records with weight 0"),
        ([(A, -1)], (0, 1), "weight -1"),
        ([(A, float("nan"))], (0, 1), "weight nan"),
        ([(C, 1)], (0, 2), "at least 2 records"),
    ],
)
def test_sources_that_cannot_be_mixed(sources, shard, message):
    with pytest.raises(UserError, match=message):
        mixture(sources, 0, shard)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_workers_lose_and_repeat_nothing(workers):
    """31 records do not divide by 3 workers, and four of them are dropped."""
    flags.FLAGS.mark_as_parsed()  # grain asks absl for its flags; entry points parse them
    few = [(A[:10], 1), (B[:20], 1), (C, 1)]
    settings = {"seed": 7, "num_epochs": 1, "transform": drop_broken}
    expected = list(mixture(few, **settings))
    dropped = {}
    stream = mixture(few, **settings, num_workers=workers, dropped=dropped)
    run = iter(stream)
    got = [next(run) for _ in range(8)]
    state = json.dumps(run.get_state())
    rest = list(run)
    run.close()
    assert got + rest == expected
    assert len(expected) == 27
    assert {name for _, name in dropped} == BROKEN
    if workers == 3:  # starting processes is what this test costs
        resumed = iter(stream)
        resumed.set_state(json.loads(state))
        assert list(resumed) == rest
        resumed.close()
