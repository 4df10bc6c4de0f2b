"""What a run keeps beside its checkpoints: its settings, and the folder that it ends in."""

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from tiger_jax.errors import UserError
from tiger_jax.models.config_reader import read_config, read_json
from tiger_jax.models.interface import build_model
from tiger_jax.sharding import processes
from tiger_jax.training.checkpoint import CHECKPOINTS, check_writable
from tiger_jax.training.profile import PROFILE
from tiger_jax.training.run_facts import write_json
from tiger_jax.weights.export import write_hf_folder
from tiger_jax.weights.load import load_params
from tiger_jax.weights.router_io import read_router

CONFIG_FILE = "config.json"
EXPORT = "export"
MODEL = "model"
TENSORBOARD = "tensorboard"
FREE_FIELDS = frozenset(
    ("mesh", "verifier_mesh", "answer_mesh", "remat", "run_dir", "export_to", "resume", "workers",
     "log_every", "evaluate_every", "held_out_scenes", "checkpoint_every", "keep", "keep_best",
     "profile", "teacher_batch", "held_out_examples", "dry_run_card", "dry_run_devices",
     "dry_run_layers", "dry_run_search")
)  # fmt: skip
"""Settings that a resumed run may change: they do not touch the course of the training."""


def open_run_folder(run_dir: str | Path, settings: Mapping[str, Any], *, resume: bool) -> Path:
    """Make or reopen a run folder for these settings.

    `resume=False` deletes the checkpoints, logs, traces and export that an earlier run left in it.
    Every process calls it; the first one deletes and writes, after all have looked.

    Raises:
        UserError: not writable, or its checkpoints belong to other settings (all are named).
    """
    folder = Path(run_dir)
    check_writable(folder)
    file = folder / f"run_{CONFIG_FILE}"
    settings = json.loads(json.dumps(dict(settings)))  # tuples become lists, as in the file
    if resume and file.exists() and (folder / CHECKPOINTS).exists():
        _check_same(read_json(file), settings, folder)
    processes.barrier("run folder: looked at")
    if processes.is_main():
        for name in (CHECKPOINTS, TENSORBOARD, PROFILE, EXPORT):
            _discard(folder / name, keep=resume)
        write_json(file, settings)
    processes.barrier("run folder: ready")
    return folder


def _discard(target: Path, *, keep: bool) -> None:
    """Delete a folder, first taking its name: half of one must never look like a whole one. What
    an earlier call that was killed left is deleted too."""
    doomed = target.with_name(target.name + ".deleted")
    shutil.rmtree(doomed, ignore_errors=True)
    if not keep and target.exists():
        target.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def initial_params(folder: str | Path, params: Any, only: tuple[str, ...] = ()) -> Any:
    """`params` with the weights of a run or Hugging Face folder in their place, cast and placed as
    they are.

    `only` are regexes on paths, matched from the start; () takes everything.

    Raises:
        UserError: no such folder, a regex that takes nothing, or weights of another shape.
    """
    source = export_folder(folder)
    flat = dict(traverse_util.flatten_dict(params, sep="/"))
    stored = _stored_weights(source, flat)
    if "router" in params and (found := read_router(source)):
        stored |= traverse_util.flatten_dict({"router": found[1]}, sep="/")
    taken = matching_paths(stored, only, f"{source}")
    _check_looks(flat, [path for path in taken if path.startswith("router/")], source)
    faults = [path for path in taken if path not in flat or flat[path].shape != stored[path].shape]
    # A drafter that never had a router keeps the fresh one.
    lacking = {path for path in set(flat) - set(taken) if not path.startswith("router/")}
    if faults or (not only and lacking):
        named = faults[0] if faults else sorted(lacking)[0]
        have = stored[named].shape if named in stored else None
        want = flat[named].shape if named in flat else None
        raise UserError(f"{source}: {named}: expected shape {want}, got {have}")
    for path in taken:
        placed = jax.device_put(stored.pop(path), flat[path].sharding)
        flat[path] = placed.astype(flat[path].dtype)
    return traverse_util.unflatten_dict(flat, sep="/")


def _stored_weights(source: Path, flat: Mapping[str, Any]) -> dict[str, Any]:
    """Weights of a folder by path, each in the sharding of the one that it may replace: no device
    ever holds all of them."""
    config = read_config(source)
    abstract = traverse_util.flatten_dict(build_model(config).abstract_params(), sep="/")
    anywhere = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    shardings = {
        path: flat[path].sharding if path in flat and flat[path].shape == leaf.shape else anywhere
        for path, leaf in abstract.items()
    }
    tree = traverse_util.unflatten_dict(shardings, sep="/")
    weights = load_params(source, config, shardings=tree)
    return dict(traverse_util.flatten_dict(weights, sep="/"))


def _check_looks(flat: Mapping[str, Any], taken: list[str], source: Path) -> None:
    """UserError if the router's weights in `taken` are those of another number of looks."""
    want, got = (
        len({path.split("/")[1] for path in paths if path.startswith("router/look_")})
        for paths in (flat, taken)
    )
    if taken and want != got:
        raise UserError(f"{source}: router: looks: expected {want} as in the config, got {got}")


def matching_paths(flat: Mapping[str, Any], only: tuple[str, ...], what: str) -> list[str]:
    """Paths that a regex of `only` matches at their start; all if there is none."""
    for rule in only:
        if not any(re.match(rule, path) for path in flat):
            raise UserError(f"{what}: no weight matches {rule!r}")
    return [path for path in flat if not only or any(re.match(rule, path) for rule in only)]


def export_folder(folder: str | Path) -> Path:
    """The Hugging Face folder that a run folder ends in, or the folder itself if it is one."""
    folder = Path(folder)
    for candidate in (folder / EXPORT, folder):
        if any(candidate.glob("*.safetensors")):
            return candidate
    raise UserError(
        f"{folder}: expected a finished run or a folder with safetensors, found none there"
    )


def export_params(
    params: Any, model_folder: str | Path, target: str | Path,
    finish: Callable[[Path], None] | None = None,
) -> None:  # fmt: skip
    """Write bfloat16 weights with the model folder's companions; replaces an older export.

    Args:
        finish: writes what else belongs to the export into the folder that it is given.
    """

    flat = traverse_util.flatten_dict(params, sep="/")
    if jax.process_count() > 1:  # gathered by all together, written by one
        flat = {path: processes.fetch(leaf.astype(jnp.bfloat16)) for path, leaf in flat.items()}
    leaves = {path: jax.ShapeDtypeStruct(leaf.shape, jnp.bfloat16) for path, leaf in flat.items()}

    def read(path: str) -> np.ndarray:
        return np.asarray(flat[path]).astype(jnp.bfloat16)

    def write(folder: Path) -> None:
        write_hf_folder(leaves, read, model_folder, folder)
        if finish:
            finish(folder)

    replace_folder(target, write)


def replace_folder(target: str | Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a folder that then takes the target's place: a run that is killed meanwhile
    leaves no export that only looks whole. The first of several processes does it."""
    if processes.is_main():
        _replace(Path(target), write)
    processes.barrier(f"{target}: written")


def _replace(target: Path, write: Callable[[Path], None]) -> None:
    partial = target.with_name(target.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    write(partial)
    if target.exists():
        shutil.rmtree(target)
    partial.rename(target)


def _check_same(before: Mapping[str, Any], now: Mapping[str, Any], folder: Path) -> None:
    changed = [
        f"{name} was {before.get(name)!r}, is {now.get(name)!r}"
        for name in sorted(set(before) | set(now))
        if name not in FREE_FIELDS and before.get(name) != now.get(name)
    ]
    if changed:
        raise UserError(
            f"{folder}: holds checkpoints of a run with other settings ({'; '.join(changed)}); "
            "go on with the same ones, set another run_dir, or --config.resume=False to start anew"
        )
