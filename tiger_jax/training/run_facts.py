"""What a run was made with: versions, devices, git state, one entry for each start."""

import datetime
import importlib.metadata
import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax

import tiger_jax

RUN_FACTS = "run_facts.json"
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "transformers", "numpy")


def record_start(run_dir: str | Path, **more: Any) -> dict[str, Any]:
    """Append an entry for this start to `run_dir`/run_facts.json, and return it.

    Call it on one process only. The file is {"starts": [entry, ...]}, the newest last.

    Args:
        more: further facts, such as the step that the run goes on from.
    """
    file = Path(run_dir) / RUN_FACTS
    starts = json.loads(file.read_text())["starts"] if file.exists() else []
    entry = facts() | more
    write_json(file, {"starts": [*starts, entry]})
    return entry


def facts() -> dict[str, Any]:
    """Time (UTC), command, versions, devices and git state of this process."""
    devices = jax.devices()
    return {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "versions": {
            "tiger_jax": tiger_jax.__version__, "python": platform.python_version(),
            **{name: _version(name) for name in PACKAGES},
        },
        "devices": {
            "backend": jax.default_backend(), "kind": devices[0].device_kind,
            "count": len(devices), "processes": jax.process_count(),
        },
        "git": git_state(Path(tiger_jax.__file__).parent),
    }  # fmt: skip


def git_state(folder: Path) -> dict[str, Any] | None:
    """{"commit", "dirty"} of the repository that tracks the code in `folder`; None without one.

    A package that is merely installed somewhere inside a repository is not tracked by it.
    """
    tracked = _git(folder, "ls-files", "__init__.py")
    commit = _git(folder, "rev-parse", "HEAD") if tracked else None
    if not commit:
        return None
    return {"commit": commit, "dirty": bool(_git(folder, "status", "--porcelain", "--", "."))}


def write_json(file: Path, content: Any) -> None:
    """Replace a file as a whole: a run that is killed meanwhile leaves the one before."""
    partial = file.with_name(file.name + ".partial")
    partial.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    partial.replace(file)


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=20,
            check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
