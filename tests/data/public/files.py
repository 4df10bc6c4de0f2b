"""Tiny made-up files in the layouts of the public data sets."""

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from tiger_jax.data.public.record import Fault, PublicRecord


def png(color: str = "red", size: tuple[int, int] = (4, 3)) -> bytes:
    """An encoded picture of one colour."""
    file = io.BytesIO()
    Image.new("RGB", size, color).save(file, "PNG")
    return file.getvalue()


def write_picture(path: Path, color: str = "red") -> Path:
    """A picture file in folders that need not be there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png(color))
    return path


def write_json(path: Path, content: Any) -> Path:
    """A JSON file in folders that need not be there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def write_json_lines(path: Path, rows: Sequence[Any]) -> Path:
    """A JSON Lines file."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def write_parquet(
    path: Path, rows: Sequence[Mapping[str, Any]], row_group: int = 2, types: Mapping | None = None
) -> Path:
    """A shard whose columns are those of its first row.

    Args:
        types: column -> its pyarrow type, where the rows do not tell.
    """
    import pyarrow as pa
    import pyarrow.parquet

    columns = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        columns[name] = pa.array(values, (types or {}).get(name))
    path.parent.mkdir(parents=True, exist_ok=True)
    pa.parquet.write_table(pa.table(columns), path, row_group_size=row_group)
    return path


def cut_in_half(path: Path) -> Path:
    """The file as a broken download leaves it."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    return path


def records_of(items) -> list[PublicRecord]:
    """The records alone."""
    return [item for item in items if isinstance(item, PublicRecord)]


def faults_of(items) -> list[tuple[str, str]]:
    """(uid, kind) of the faults."""
    return [(item.uid, item.kind) for item in items if isinstance(item, Fault)]
