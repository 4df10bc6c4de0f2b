"""The embedded pair learns from a pool: a stopped run goes on exactly, and only with that pool."""

import json
import shutil
from pathlib import Path

import pytest

from configs import kd
from tests.data.pool_data import small_config, write_data
from tests.shared_programs import compiled_once
from tiger_jax import drafting, train
from tiger_jax.data.build_pool import build
from tiger_jax.data.pool import PoolSource
from tiger_jax.errors import UserError

SMALL = {
    "scenes": 0, "response": "reference", "held_out_scenes": 0, "steps": 2, "warmup": 1, "batch": 4,
    "draft_length": 2, "checkpoint_every": 1, "log_every": 1, "teacher_batch": 32,
    "learning_rate": 0.03, "mesh": {"data": -1, "fsdp": 1, "tensor": 1},
}  # fmt: skip


@pytest.fixture(scope="module")
def pool(tmp_path_factory) -> Path:
    """Eight records of LLaVA with their answers, which no verifier has to write then."""
    root = tmp_path_factory.mktemp("pool")
    config = small_config("kd", write_data(root / "data"), root / "kd", top_up="", answers=True)
    for source in config.sources.values():
        source.count = 0
    config.sources.llava.count = 8
    config.filter.update({"enabled": True, "min_words": 6, "max_words": 6})  # few shapes
    build(config)
    return root / "kd"


@pytest.fixture(scope="module", autouse=True)
def programs_compiled_once(tmp_path_factory):
    with compiled_once(tmp_path_factory.mktemp("xla")):
        yield


def config_of(pool: Path, run: Path, cache: Path, **changes):
    config = kd.get_config()
    config.update(SMALL | {"run_dir": str(run), "cache_dir": str(cache)} | changes)
    config.examples = (str(pool),)
    config.filter.enabled = True  # of JSON Lines files: a pool is read as it is
    config.teacher.max_new_tokens = 8
    return config


def test_pools_are_read_as_they_are(pool, tmp_path):
    (source,) = drafting.read_sources(config_of(pool, tmp_path, tmp_path))
    assert isinstance(source, PoolSource)
    assert len(source) == 8


def test_training_goes_on_exactly_with_the_same_pool_alone(pool, tmp_path, capsys):
    config = config_of(pool, tmp_path / "whole", tmp_path / "cache")
    assert train.train(config) == 2
    assert "verifier answered 8 of 8 examples" in capsys.readouterr().err
    # The folder of a run that was killed behind its first step:
    killed = shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    for later in (killed / "export", killed / "checkpoints" / "2"):
        shutil.rmtree(later)
    config.run_dir = str(killed)
    manifest = pool / "manifest.json"
    before = manifest.read_bytes()
    manifest.write_text(json.dumps(json.loads(before) | {"seed": 1}))
    with pytest.raises(UserError, match=r"holds checkpoints of a run with other settings \(pools"):
        train.train(config)
    manifest.write_bytes(before)
    assert train.train(config) == 2
    assert f"resumed {killed} at step 1" in capsys.readouterr().err
    for file in ("model.safetensors", "tiger_router.safetensors"):
        first, second = (tmp_path / name / "export" / file for name in ("whole", "killed"))
        assert first.read_bytes() == second.read_bytes(), file
