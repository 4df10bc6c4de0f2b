"""A short name for the contents of a checkpoint folder."""

import hashlib
import os
from pathlib import Path

from tiger_jax.errors import UserError

_BLOCK = 1 << 16
_BLOCKS = 256
"""Blocks read of each weights file: all of a small one, 16 MiB of a large one, evenly spread."""


def fingerprint(folder: str | os.PathLike, config_name: str = "config.json") -> str:
    """16 hexadecimal digits that change with config.json or with the weights.

    Args:
        config_name: the file that is read as config.json; a draft head's has another name.

    Raises:
        UserError: no weights or no such file lie there.
    """
    files = sorted(Path(folder).glob("*.safetensors"))
    if not files:
        raise UserError(f"{folder}: expected *.safetensors, found none")
    config = Path(folder) / config_name
    if not config.is_file():
        raise UserError(f"{folder}: expected {config_name}, found none")
    digest = hashlib.sha256(config.read_bytes())
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        step = max(size // _BLOCKS, _BLOCK)
        with path.open("rb") as file:
            for start in range(0, size, step):
                file.seek(start)
                digest.update(file.read(_BLOCK))
            file.seek(max(size - _BLOCK, 0))
            digest.update(file.read(_BLOCK))
    return digest.hexdigest()[:16]
