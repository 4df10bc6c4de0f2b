"""Imports point downwards only, and third-party interfaces that change stay in their one file."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "tiger_jax"
# A room may import from itself and from the rooms that stand for it here.
BELOW = {
    "ops": set(),
    "sharding": set(),
    "models": {"ops", "sharding"},
    "routing": {"models", "ops"},
    "weights": {"routing", "models", "ops"},
    "decoding": {"routing", "models", "ops", "sharding"},
    "training": {"decoding", "routing", "models", "ops", "sharding", "weights", "data.packing"},
    # Packing is numpy: both the host's batches and training's own layouts are made with it.
    # data needs the sizes of a model and the geometry of its tiles: numbers, no jax.
    "data": {
        "models.config",
        "models.config_reader",
        "models.image_geometry",
        "models.frame_geometry",
        "models.frames",
        "command_line",  # of its own commands: inspect, build_pool
    },
    "testing": {"models", "ops"},
    "metrics": set(),
}
EVERYWHERE = {"errors", "__version__"}
ONLY_IN = {
    "anls_star": {"metrics/anls.py"},
    "pycocoevalcap": {"metrics/captions.py"},
    "orbax": {"training/checkpoint.py", "weights/orbax_io.py"},
    "tensorboardX": {"training/metric_log.py"},
    "grain": {"data/mixtures.py", "data/pool_files.py"},
    "array_record": {"data/record_cache.py", "data/pool_files.py"},
    "torch": {
        "evaluation/peer_transformers.py",
        "export/torch_families.py",
        "export/torch_router.py",
        "export/torch_tiger.py",
    },
}
FILES = sorted(PACKAGE.rglob("*.py"))


def imports(path):
    """(module, names) of every import, also those inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, ()
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, [alias.name for alias in node.names]


def own_targets(path):
    """Dotted names below tiger_jax that a file imports."""
    for module, names in imports(path):
        if module == "tiger_jax":
            yield from names
        elif module.startswith("tiger_jax."):
            yield module.removeprefix("tiger_jax.")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_downwards(path):
    room = path.relative_to(PACKAGE).parts[0]
    if room not in BELOW:
        return  # entry points join everything
    for target in own_targets(path):
        top = target.split(".")[0]
        allowed = top == room or top in EVERYWHERE or top in BELOW[room] or target in BELOW[room]
        assert allowed, f"{path.relative_to(PACKAGE)} imports tiger_jax.{target}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_changing_interfaces_have_one_home(path):
    name = path.relative_to(PACKAGE).as_posix()
    for module, _ in imports(path):
        library = module.split(".")[0]
        if library in ONLY_IN:
            assert name in ONLY_IN[library], f"{name} imports {module}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_no_side_effects_and_no_families_in_decoding(path):
    """jax.config belongs to entry points; decoding and training know no model family by name."""
    source = path.read_text()
    room = path.relative_to(PACKAGE).parts[0]
    if room in BELOW:
        assert "jax.config.update" not in source
    if room in {"decoding", "routing"}:
        assert "llava" not in source.lower()
        assert "qwen" not in source.lower()


def test_no_utils():
    assert not [path for path in FILES if path.stem in {"utils", "helpers", "misc", "common"}]
