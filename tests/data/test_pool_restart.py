"""A build that is killed goes on with its source, and ends in the bytes of an undisturbed one."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.data.pool_data import contents, small_config, write_data
from tiger_jax.data import build_pool

KILLED = """
import os, signal, sys
from pathlib import Path
from tests.data.pool_data import small_config
from tiger_jax.data import build_pool, pool_files, pool_writing

where, number, data, out = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4])
owner, name = {"picture": (pool_files.Shards, "add"), "rename": (os, "replace")}[where]
original, calls = getattr(owner, name), []

def counted(*arguments):
    calls.append(0)
    if len(calls) == number:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*arguments)

setattr(owner, name, counted)
build_pool.build(small_config("grpo", data, out))
"""
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_data(tmp_path_factory.mktemp("public"))


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("whole") / "pool"
    build_pool.build(small_config("grpo", data, out))
    return contents(out)


def kill(where: str, number: int, data: Path, out: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", KILLED, where, str(number), str(data), str(out)],
        cwd=REPOSITORY, capture_output=True, text=True, env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    assert run.returncode == -signal.SIGKILL, run.stderr


@pytest.mark.parametrize(
    ("where", "number", "left"),
    [
        # chartqa writes 2 pictures, docvqa 2, scienceqa 2; the seventh is tallyqa's first
        ("picture", 7, ["tallyqa", "textvqa", "llava"]),
        # identity.json; source.json and the folder of each of 6; counts.json and its folder;
        # then the files get their names: the records' one, and one of pictures of each source
        ("rename", 18, []),
        ("rename", 24, []),
    ],
)
def test_a_killed_build_goes_on(where, number, left, data, whole, tmp_path, monkeypatch):
    out = tmp_path / "pool"
    kill(where, number, data, out)
    assert not (out / "manifest.json").exists()
    again = []
    write = build_pool.write_source

    def watched(source, *arguments):
        again.append(source.name)
        return write(source, *arguments)

    monkeypatch.setattr(build_pool, "write_source", watched)
    build_pool.build(small_config("grpo", data, out))
    assert again == left
    assert contents(out) == whole


def test_what_another_build_left_is_not_taken(data, whole, tmp_path):
    """Other settings, other inputs: the stage of the killed build is deleted."""
    out = tmp_path / "pool"
    kill("rename", 18, data, out)
    build_pool.build(small_config("grpo", data, out, seed=7))
    other = contents(out)
    assert other.keys() == whole.keys()
    assert other != whole
    undisturbed = tmp_path / "undisturbed"
    build_pool.build(small_config("grpo", data, undisturbed, seed=7))
    assert contents(undisturbed) == other
