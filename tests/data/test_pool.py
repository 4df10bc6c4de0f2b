"""Reading pools: examples by place, mixtures that resume exactly, shards that are a partition."""

import itertools
import json
import pickle
import shutil
from pathlib import Path

import pytest

from tests.data.pool_data import small_config, write_data
from tiger_jax.data.build_pool import build
from tiger_jax.data.examples import open_picture
from tiger_jax.data.mixtures import mixture
from tiger_jax.data.pool import PoolSource, is_pool, manifest_sha256, pool_hashes
from tiger_jax.data.public.record import Picture
from tiger_jax.errors import UserError


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("pool")
    build(small_config("grpo", write_data(root / "data"), root / "grpo"))
    return root / "grpo"


@pytest.fixture(scope="module")
def pool(folder) -> PoolSource:
    return PoolSource.open(folder)


def ids(stream) -> list[str]:
    return [example.id for example in stream]


def test_examples_by_place(pool):
    assert len(pool) == len({example.id for example in pool}) == 19
    example = next(e for e in pool if e.id == "llava/train/cats/0")
    assert (example.prompt, example.source) == ("How many cats lie on it now?", "llava")
    assert (example.response, example.tag) == ("2", "count")
    assert pool[-1] == pool[18]
    with pytest.raises(IndexError):
        pool[19]


def test_pictures_open_from_bytes(pool):
    assert open_picture(pool[0].images[0]).size == (12, 10)
    broken = Picture("pool/0a1b", data=b"<html>")
    with pytest.raises(UserError, match="pool/0a1b: expected an image"):
        open_picture(broken)


def test_an_epoch_is_the_pool_in_a_new_order(pool):
    first = ids(mixture([(pool, 1)], seed=0, num_epochs=2))
    assert sorted(first[:19]) == sorted(first[19:]) == sorted(ids(pool))
    assert first[:19] != first[19:]
    assert first[:19] == ids(mixture([(pool, 1)], seed=0, num_epochs=1))


def test_a_mixture_resumes_at_any_batch(pool):
    def batches():
        return iter(mixture([(pool, 1)], seed=4).batch(4, drop_remainder=True, batch_fn=ids))

    left_alone = batches()
    states, expected = [], []
    for _ in range(20):
        states.append(left_alone.get_state())
        expected.append(next(left_alone))
    after = [next(left_alone) for _ in range(2)]
    for k in range(20):
        resumed = batches()
        resumed.set_state(states[k])
        assert [next(resumed), next(resumed)] == (expected[k:] + after)[:2]


@pytest.mark.parametrize("count", [1, 2, 4])
def test_shards_are_a_partition(pool, count):
    shards = [ids(mixture([(pool, 1)], 0, (i, count), num_epochs=1)) for i in range(count)]
    assert sorted(itertools.chain(*shards)) == sorted(ids(pool))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


def test_worker_processes_receive_it(pool):
    other = pickle.loads(pickle.dumps(pool))
    assert other == pool
    assert other[5] == pool[5]


def test_notes_and_caches_know_pools_by_their_manifest(pool, folder):
    assert manifest_sha256(folder) in repr(pool)
    assert pool_hashes([str(folder), "own.jsonl"]) == {str(folder): manifest_sha256(folder)}
    assert not is_pool("own.jsonl")


def copy(folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(folder, tmp_path / "copy")


def test_a_pool_that_is_not_whole(folder, tmp_path):
    broken = copy(folder, tmp_path)
    name = "pictures-00000-of-00006.array_record"
    (broken / name).write_bytes(b"short")
    with pytest.raises(UserError, match=rf"{name}: expected \d+ bytes, found 5"):
        PoolSource.open(broken)
    (broken / name).unlink()
    with pytest.raises(UserError, match="found none there"):
        PoolSource.open(broken)
    (broken / "manifest.json").write_text('{"format": 1}')
    with pytest.raises(UserError, match="not the manifest of a pool"):
        PoolSource.open(broken)
    (broken / "manifest.json").unlink()
    with pytest.raises(UserError, match="expected the manifest of a pool, found none"):
        PoolSource.open(broken)
    with pytest.raises(UserError, match="expected the manifest of a pool, found none"):
        pool_hashes([str(broken)])


def test_a_picture_that_was_exchanged_is_not_shown(folder, tmp_path):
    broken = copy(folder, tmp_path)
    places = json.loads((broken / "pictures.json").read_text())
    first, second = [sha for sha, (shard, _) in places.items() if shard == 0][:2]
    places[first], places[second] = places[second], places[first]
    (broken / "pictures.json").write_text(json.dumps(places, indent=1, sort_keys=True) + "\n")
    pool = PoolSource.open(broken)
    with pytest.raises(UserError, match="its bytes are others now"):
        list(pool)
