"""The verifier's answers on disk: what goes in comes out, and what was cut off does not count."""

import io
import json
import pickle

import numpy as np
import pytest

from tiger_jax.data.teacher_cache import TeacherCache, TeacherRecord
from tiger_jax.errors import UserError

SETTINGS = {"verifier": "abc", "temperature": 1.0}


def record(seed: int) -> TeacherRecord:
    rng = np.random.default_rng(seed)
    return TeacherRecord(
        lengths=np.array([2, 3], np.int32),
        tokens=rng.integers(0, 99, 5).astype(np.int32),
        logprobs=rng.uniform(-3, 0, 5).astype(np.float32),
        law_ids=rng.integers(0, 99, (5, 4)).astype(np.int32),
        law_logprobs=rng.uniform(-30, 0, (5, 4)).astype(np.float32),
        route_ids=rng.integers(-1, 9, (5, 3)).astype(np.int32),
        route_weights=rng.uniform(0, 1, (5, 3)).astype(np.float32),
    )


def check(got: TeacherRecord, want: TeacherRecord) -> None:
    for name, value in want._asdict().items():
        # half precision: eleven bits
        np.testing.assert_allclose(getattr(got, name), value, rtol=5e-4, err_msg=name)
        if name in ("lengths", "tokens", "logprobs", "law_ids", "route_ids"):
            np.testing.assert_array_equal(getattr(got, name), value)


@pytest.fixture
def cache(tmp_path) -> TeacherCache:
    """Two shards: a, b and c."""
    cache = TeacherCache(tmp_path, SETTINGS)
    cache.add_shard([("a", record(0)), ("b", record(1))])
    cache.add_shard([("c", record(2))])
    return cache


def test_round_trip_in_the_same_and_a_new_process(cache, tmp_path):
    for reader in (cache, TeacherCache(tmp_path, SETTINGS), pickle.loads(pickle.dumps(cache))):
        assert len(reader) == 3
        for seed, key in enumerate("abc"):
            check(reader[key], record(seed))


def test_pickling_leaves_open_files_behind(cache):
    assert cache["a"] is not None
    assert cache._readers
    assert not pickle.loads(pickle.dumps(cache))._readers


def test_missing_keys_in_their_order(cache):
    assert "b" in cache
    assert "z" not in cache
    assert cache.missing(["z", "c", "a", "y"]) == [0, 3]
    assert sorted(cache.keys()) == ["a", "b", "c"]
    with pytest.raises(KeyError, match="z"):
        cache["z"]


@pytest.mark.parametrize("left", [".array_record", ".unfinished"])
def test_a_shard_without_its_keys_does_not_count(cache, tmp_path, left):
    """Killed while the third shard was written: lost, and not in the way of the next one."""
    (cache.folder / f"00002{left}").write_bytes(b"half a record")
    (cache.folder / f"00002-0badcafe{left}").write_bytes(b"half a record")
    again = TeacherCache(tmp_path, SETTINGS)
    assert len(again) == 3
    again.add_shard([("d", record(3))])
    for reader in (again, TeacherCache(tmp_path, SETTINGS)):
        check(reader["d"], record(3))
        check(reader["a"], record(0))


def test_two_runs_write_at_the_same_time(tmp_path):
    """No shard is written over; of a key that both brought, the first in the folder counts."""
    one, two = (TeacherCache(tmp_path, SETTINGS) for _ in range(2))
    one.add_shard([("a", record(0)), ("b", record(1))])
    two.add_shard([("b", record(7)), ("c", record(2))])
    check(one["b"], record(1))
    check(two["b"], record(7))
    assert one.missing("abc") == [2]
    one.refresh()
    assert one.missing("abc") == []
    check(one["b"], record(1))
    first = min(one.folder.glob("*.keys.json"))
    again = TeacherCache(tmp_path, SETTINGS)
    assert len(again) == 3
    check(again["a"], record(0))
    check(again["c"], record(2))
    check(again["b"], record(1 if json.loads(first.read_text())[0] == "a" else 7))


def test_shards_of_early_runs(cache, tmp_path):
    """Named by their number alone, their records without a key."""
    for number, listing in enumerate(sorted(cache.folder.glob("*.keys.json"))):
        shard = listing.name.removesuffix(".keys.json")
        listing.rename(cache.folder / f"{number:05d}.keys.json")
        (cache.folder / f"{shard}.array_record").rename(cache.folder / f"{number:05d}.array_record")
    again = TeacherCache(tmp_path, SETTINGS)
    again.add_shard([("d", record(3))])
    for seed, key in enumerate("abcd"):
        check(TeacherCache(tmp_path, SETTINGS)[key], record(seed))


def test_records_without_a_key_are_taken(cache):
    arrays = record(4)._asdict()
    file = io.BytesIO()
    np.savez(file, **arrays)
    key, got = cache._unpack(file.getvalue())
    assert key is None
    check(got, record(4))


def test_a_record_of_another_key(cache, tmp_path):
    """As two runs that wrote over each other's files would leave it."""
    listing = next(
        f for f in cache.folder.glob("*.keys.json") if len(json.loads(f.read_text())) > 1
    )
    listing.write_text(json.dumps(["b", "a"]))
    again = TeacherCache(tmp_path, SETTINGS)
    with pytest.raises(UserError, match="record 0: expected that of b, got that of a"):
        again["b"]
    check(again["c"], record(2))


def test_other_settings_have_another_folder(cache, tmp_path):
    """Order of the settings does not matter, any value does."""
    same = TeacherCache(tmp_path, dict(reversed(SETTINGS.items())))
    assert same.folder == cache.folder
    for change in ({"verifier": "abd"}, {"temperature": 0.7}, {"seed": 1}):
        other = TeacherCache(tmp_path, SETTINGS | change)
        assert other.folder != cache.folder
        assert len(other) == 0


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        TeacherCache(tmp_path / "file", SETTINGS)
