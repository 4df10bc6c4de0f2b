"""The verifier's states on disk: types, what half precision cannot hold, and raw shards."""

import json
import pickle

import numpy as np
import pytest

from tiger_jax.data.feature_cache import FeatureCache, FeatureRecord
from tiger_jax.data.teacher_cache import TeacherCache
from tiger_jax.errors import UserError

SETTINGS = {"verifier": "abc", "taps": (1, 2, 4), "kept_rows": 2}


def record(seed: int = 0, prefix: int = 6, visual: int = 4, text: int = 5) -> FeatureRecord:
    """States of the width 3 as a device gives them: float32, int32 ids."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, visual, (text, 2)) if visual else np.full((text, 2), -1)
    return FeatureRecord(
        prefix=rng.normal(size=(prefix, 3)).astype(np.float32),
        visual=rng.normal(size=(visual, 2)).astype(np.float32),
        text=rng.normal(size=(text, 3)).astype(np.float32),
        look_ids=ids.astype(np.int32),
        look_weights=rng.uniform(size=(text, 2)).astype(np.float32),
    )


def test_round_trip_in_half_precision(tmp_path):
    """Rounded once to eleven bits, exactly as numpy rounds; ids whole; no picture, no rows."""
    cache = FeatureCache(tmp_path, SETTINGS)
    written = {"a": record(0), "b": record(1, visual=0), "c": record(2, prefix=9)}
    cache.add_shard([(key, written[key]) for key in "ab"])
    cache.add_shard([("c", written["c"])])
    for reader in (cache, FeatureCache(tmp_path, SETTINGS), pickle.loads(pickle.dumps(cache))):
        assert set(reader.keys()) == set("abc")
        for key, want in written.items():
            got = reader[key]
            assert isinstance(got, FeatureRecord)
            assert got.look_ids.dtype == np.int16
            np.testing.assert_array_equal(got.look_ids, want.look_ids)
            for name in ("prefix", "visual", "text", "look_weights"):
                assert getattr(got, name).dtype == np.float16
                expected = getattr(want, name).astype(np.float16)
                np.testing.assert_array_equal(getattr(got, name), expected, err_msg=name)


def test_a_record_of_another_key(tmp_path):
    """A raw record knows whose it is."""
    cache = FeatureCache(tmp_path, SETTINGS)
    cache.add_shard([("a", record(0)), ("b", record(1))])
    (listing,) = cache.folder.glob("*.keys.json")
    listing.write_text(json.dumps(["b", "a"]))
    with pytest.raises(UserError, match="record 0: expected that of b, got that of a"):
        FeatureCache(tmp_path, SETTINGS)["b"]


def test_a_shard_is_not_compressed(tmp_path):
    """Zeros, which any compression would shrink a hundredfold, take their two bytes each."""
    cache = FeatureCache(tmp_path, SETTINGS)
    zeros = record()._replace(prefix=np.zeros((100_000, 3), np.float32))
    cache.add_shard([("a", zeros)])
    (shard,) = cache.folder.glob("*.array_record")
    assert 600_000 < shard.stat().st_size < 800_000


def test_answers_and_states_of_the_same_settings_stand_apart(tmp_path):
    """The folder is named by the settings alone: one that names the answers differs from theirs."""
    answers = TeacherCache(tmp_path, {"verifier": "abc"})
    states = FeatureCache(tmp_path, {"verifier": "abc", "answers": answers.folder.name})
    assert states.folder != answers.folder
    taps = FeatureCache(tmp_path, SETTINGS), FeatureCache(tmp_path, SETTINGS | {"taps": (4,)})
    assert taps[0].folder != taps[1].folder
    assert json.loads((taps[1].folder / "settings.json").read_text())["taps"] == [4]


@pytest.mark.parametrize("bad", [65520.0, -7e4, np.inf, np.nan])
def test_states_that_half_precision_cannot_hold(tmp_path, bad):
    """65519 still rounds to 65504, the largest; nothing of a refused shard is written."""
    cache = FeatureCache(tmp_path, SETTINGS)
    large = record()
    large.text[2, 1] = 65519.0
    cache.add_shard([("large", large)])
    assert cache["large"].text[2, 1] == 65504
    broken = record()
    broken.text[2, 1] = bad
    with pytest.raises(UserError, match="features: k: text: expected finite numbers below 65520"):
        cache.add_shard([("fine", record()), ("k", broken)])
    assert cache.missing(["fine", "k"]) == [0, 1]
    assert len(list(cache.folder.glob("*.array_record"))) == 1


def test_sizes_that_contradict_each_other(tmp_path):
    cache = FeatureCache(tmp_path, SETTINGS)
    short = record()._replace(look_ids=np.zeros((4, 2), np.int32))
    with pytest.raises(UserError, match="k: expected looks of 5 text tokens, got 4"):
        cache.add_shard([("k", short)])
    beyond = record()
    beyond.look_ids[0, 0] = 4
    with pytest.raises(UserError, match="look_ids: expected bank rows below 4, got 4"):
        cache.add_shard([("k", beyond)])
    many = record()._replace(visual=np.zeros((2**15 + 1, 2), np.float32))
    with pytest.raises(UserError, match="at most 32768 visual tokens, got 32769"):
        cache.add_shard([("k", many)])


def test_bfloat16_states_are_taken(tmp_path):
    """As a verifier that runs in bfloat16 gives them: eight bits, which half precision holds."""
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    cache = FeatureCache(tmp_path, SETTINGS)
    rounded = record()._replace(text=record().text.astype(bfloat16))
    cache.add_shard([("a", rounded)])
    np.testing.assert_array_equal(
        cache["a"].text.astype(np.float32), rounded.text.astype(np.float32)
    )
