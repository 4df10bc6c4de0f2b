"""The end of a build: sources become one pool, and the manifest that says what is in it."""

import os
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tiger_jax.data import pool_files
from tiger_jax.data.pool import contents_of
from tiger_jax.data.pool_files import FAULTS, MANIFEST, PICTURES
from tiger_jax.data.pool_plan import Evaluation
from tiger_jax.data.pool_writing import PICTURE_STEM, RECORDS, Watch

PART = ".part"
"""Ending of a folder that is not whole yet."""
_POOL = "pool"
Summaries = Mapping[str, dict[str, Any]]
"""`source.json` of each source."""


def describe(config: Any, summaries: Summaries, evaluation: Evaluation) -> dict[str, Any]:
    """What the manifest says of the pool's records."""
    sources, tags, excluded = {}, Counter(), {}
    for name, summary in summaries.items():
        paper = config.sources[name].count
        own = max(1, round(paper * config.scale))
        sources[name] = {key: value for key, value in summary.items() if key != "pictures"} | {
            "count": paper, "scaled_count": own,
            "shortfall": max(0, own - summary["written"]),
            "top_up": max(0, summary["written"] - own),
        }  # fmt: skip
        tags.update(summary["tags"])
        excluded[name] = summary["leaks_excluded"]
    return {
        "records": sum(summary["written"] for summary in summaries.values()),
        "count": sum(choices.count for choices in config.sources.values()),
        "sources": sources,
        "tags": dict(tags),
        "leaks": {"evaluation": evaluation.counts, "excluded": excluded},
    }


def shared_with(config: Any, stage: Path, summaries: Summaries) -> dict[str, dict[str, int]] | None:
    """By source, how many records and pictures the pool `compare_with` holds too; None without."""
    if not config.compare_with:
        return None
    uids, pictures = contents_of(config.compare_with)
    return {
        name: {
            "records": sum(
                row["uid"] in uids for row in pool_files.read_json_lines(stage / name / RECORDS)
            ),
            "pictures": sum(sha in pictures for file in summary["pictures"] for sha in file),
        }
        for name, summary in summaries.items()
    }


def finish(
    config: Any, out: Path, stage: Path, summaries: Summaries,
    manifest: dict[str, Any], watch: Watch,
) -> dict[str, Any]:  # fmt: skip
    """Name the files, list the pictures, write the manifest. May be killed and done again."""
    counts = _write_records(config, stage, summaries)
    moves = [
        (stage / _POOL / f"{_POOL}-{i:05d}.array_record",
         out / pool_files.shard_name(f"pool-{config.pool}", i, len(counts)))
        for i in range(len(counts))
    ]  # fmt: skip
    rows: dict[str, int] = {
        file.name: count for (_, file), count in zip(moves, counts, strict=True)
    }
    shards = [
        (stage / name / f"{PICTURE_STEM}-{i:05d}.array_record", shas)
        for name, summary in summaries.items() for i, shas in enumerate(summary["pictures"])
    ]  # fmt: skip
    places = {}
    for i, (file, shas) in enumerate(shards):
        moves.append((file, out / pool_files.shard_name(PICTURE_STEM, i, len(shards))))
        rows[moves[-1][1].name] = len(shas)
        places.update({sha: [i, row] for row, sha in enumerate(shas)})
    for start, end in moves:
        if start.exists():  # else an earlier call has moved it
            os.replace(start, end)
    pool_files.write_json(out / PICTURES, places)
    faults = (
        {"source": name} | fault
        for name in summaries for fault in pool_files.read_json_lines(stage / name / FAULTS)
    )  # fmt: skip
    pool_files.write_json_lines(out / FAULTS, faults)
    outputs = {}
    for name in [*rows, PICTURES, FAULTS]:
        watch(f"hashing {name}", 0, 0)
        outputs[name] = pool_files.file_facts(out / name)
        outputs[name] |= {"records": rows[name]} if name in rows else {}
    manifest = manifest | {"pictures": len(places), "outputs": outputs}
    pool_files.write_json(out / MANIFEST, manifest)
    shutil.rmtree(stage)
    return pool_files.read_manifest(out)


def _write_records(config: Any, stage: Path, summaries: Summaries) -> list[int]:
    """The records of all sources as ArrayRecord files in the stage; how many each holds."""
    folder, part = stage / _POOL, stage / f"{_POOL}{PART}"
    if not folder.exists():
        part.mkdir()
        shards = pool_files.Shards(part, _POOL, config.record_bytes, compress=True)
        for name in summaries:
            with (stage / name / RECORDS).open("rb") as lines:
                for line in lines:
                    shards.add(line.rstrip(b"\n"))
        shards.close()
        pool_files.write_json(part / "counts.json", shards.counts)
        os.replace(part, folder)
    return pool_files.read_json(folder / "counts.json")


def report(manifest: Mapping[str, Any]) -> str:
    """The counts of a pool for a reader."""
    lines = [
        f"{manifest['records']} records of {manifest['count']}, {manifest['pictures']} pictures"
    ]
    for name, source in manifest["sources"].items():
        left_out = [
            f"{step['rule'].replace('_', ' ')} {step['before'] - step['after']}"
            for step in source["rules"] if step["before"] > step["after"]
        ]  # fmt: skip
        notes = {"bad": source["bad_pictures"], "short of": source["shortfall"],
                 "top-up": source["top_up"]}  # fmt: skip
        left_out += [f"{what} {n}" for what, n in notes.items() if n]
        lines.append(f"{name}: {source['written']} of {source['read']}"
                     + "".join(f", {part}" for part in left_out))  # fmt: skip
    tags = sorted(manifest["tags"].items(), key=lambda pair: (-pair[1], pair[0]))
    return "\n".join([*lines, "tags: " + ", ".join(f"{tag} {n}" for tag, n in tags)])
