"""A pool's config as what is to be built: sources with their rules, evaluation data, settings."""

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiger_jax.data.filters import PromptFilter, TagRule
from tiger_jax.data.pool_files import MANIFEST, input_facts, read_manifest
from tiger_jax.data.pool_rules import ANSWERS, PoolPrompt, PoolRules, SourceRules, picture_ids
from tiger_jax.data.pool_selection import Item
from tiger_jax.data.pool_writing import Recipe, Source, Watch
from tiger_jax.data.public.record import PublicRecord
from tiger_jax.data.public.registry import FOLDERS, open_dataset
from tiger_jax.errors import UserError

PLACES = ("root", "out", "compare_with", "workers")
"""Fields that say where or how fast; a pool does not depend on them."""
_SOURCE_RULES = ("image_prefixes", "pictures_only", "drop_boxes", "one_per_picture")


@dataclass(frozen=True)
class Evaluation:
    """Pictures of evaluation data: their ids, and hashes where these were asked for."""

    ids: Mapping[str, str]
    """id -> the data set; of several the first."""
    hashes: Mapping[str, str]
    counts: Mapping[str, dict[str, int]]
    """Data set -> {records, pictures, faults}."""


def settings_of(config: Any) -> dict[str, Any]:
    """Every choice that a pool depends on, as JSON has it; no places."""
    fields = config.to_dict()
    for name in PLACES:
        del fields[name]
    for choices in fields["sources"].values():
        del choices["path"]
    del fields["evaluation"]["paths"]
    fields["evaluation"]["vg_image_data"] = bool(config.evaluation.vg_image_data)
    return json.loads(json.dumps(fields))


def check_config(config: Any) -> None:
    """UserError for the first field that no pool can have."""
    if config.pool not in ANSWERS:
        raise UserError(f"pool: expected one of {', '.join(ANSWERS)}, got {config.pool!r}")
    if not config.out:
        raise UserError("out: expected the folder for the pool, got none")
    used = [name for name, choices in config.sources.items() if choices.count]
    if config.top_up and config.top_up not in used:
        raise UserError(f"top_up: expected one of {', '.join(used)}, or '', got {config.top_up!r}")
    if not 0 < config.scale < math.inf:
        raise UserError(f"scale: expected a finite number above 0, got {config.scale}")
    lowest = {"min_side": 1, "max_aspect": 1, "workers": 0}
    lowest |= {"record_bytes": 1, "picture_bytes": 1}
    for name, low in lowest.items():
        if not config[name] >= low:
            raise UserError(f"{name}: expected at least {low}, got {config[name]}")
    for name, choices in config.sources.items():
        if choices.count < 0:
            raise UserError(f"sources.{name}.count: expected at least 0, got {choices.count}")


def place_of(config: Any, name: str, own: str) -> Path:
    """Where a data set lies. Raises UserError where nothing is there."""
    if not own and not config.root:
        raise UserError(f"root: expected the folder of the data sets (for {name}), got none")
    path = Path(own) if own else Path(config.root) / FOLDERS[name]
    if not os.path.exists(path):
        raise UserError(f"{path}: expected the files of {name}, found nothing there")
    return path


def prompt_filter(config: Any) -> PromptFilter:
    """The filter of a pool, which also counts words and finds tags. Raises UserError."""
    fields = config.filter.to_dict()
    del fields["enabled"]
    rules = fields.pop("tags")
    fields = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
    try:
        tags = tuple(TagRule(tag, pattern, tuple(sources)) for tag, pattern, sources in rules)
    except UserError:  # a ValueError too
        raise
    except (TypeError, ValueError):
        raise UserError(
            f"filter.tags: expected (tag, pattern, sources) of each, got {rules!r}"
        ) from None
    return PromptFilter(**fields, drop_text_only=False, tag_rules=tags)


def recipe_of(config: Any, evaluation: Evaluation) -> Recipe:
    """What all sources share. Raises UserError."""
    return Recipe(
        pool=config.pool, seed=config.seed, prompt=PoolPrompt(**config.prompt.to_dict()),
        tags=prompt_filter(config), keep_answers=config.answers,
        allow_missing=config.allow_missing, min_side=config.min_side,
        max_aspect=config.max_aspect, picture_bytes=config.picture_bytes,
        workers=config.workers, evaluation_hashes=evaluation.hashes,
    )  # fmt: skip


def sources_of(config: Any, evaluation: Evaluation) -> dict[str, Source]:
    """The sources by name, in the config's order.

    Raises:
        UserError: a data set that is not there or has no such split.
    """
    prompts = prompt_filter(config) if config.filter.enabled else None
    sources = {}
    for name, choices in config.sources.items():
        if not choices.count:
            continue
        own = SourceRules(**{
            field: tuple(choices[field]) if field == "image_prefixes" else choices[field]
            for field in _SOURCE_RULES
        })  # fmt: skip
        sources[name] = Source(
            name, max(1, round(choices.count * config.scale)),
            PoolRules(own, prompts, evaluation.ids), _items(config, name, choices),
            place_of(config, name, choices.path),
        )  # fmt: skip
    return sources


def _items(config: Any, name: str, choices: Any) -> Callable[[], Iterator[Item]]:
    path = place_of(config, name, choices.path)
    # Boxes are counted by the pool's own rule.
    options = {"turns": choices.turns, "drop_boxes": False} if choices.turns else {}
    splits = [open_dataset(name, path, split, **options) for split in choices.splits]
    if not splits:
        raise UserError(f"sources.{name}.splits: expected at least one, got none")
    return lambda: (item for split in splits for item in split)


def inputs_of(config: Any, watch: Watch) -> dict[str, dict]:
    """Data set -> name and hash of each of its files that is no picture."""
    places = {
        name: place_of(config, name, choices.path)
        for name, choices in config.sources.items() if choices.count
    }  # fmt: skip
    for name, _ in _evaluation_sets(config):
        path = place_of(config, name, config.evaluation.paths[name])
        if places.get(name) != path:
            places[f"evaluation/{name}"] = path
    if config.evaluation.vg_image_data:
        path = Path(config.evaluation.vg_image_data)
        places["evaluation/vg_image_data"] = place_of(config, "Visual Genome", str(path))
    if config.compare_with:
        places["compare_with"] = Path(config.compare_with) / MANIFEST
        read_manifest(Path(config.compare_with))
    return {
        label: input_facts(path, lambda file, label=label: watch(f"hashing {label}/{file}", 0, 0))
        for label, path in places.items()
    }


def _evaluation_sets(config: Any) -> list[tuple[str, str]]:
    """(data set, split) of each. Raises UserError."""
    known, sets = config.evaluation.paths, []
    for entry in config.evaluation.sets:
        name, slash, split = entry.partition("/")
        if name not in known or not slash:
            raise UserError(
                f"evaluation.sets: expected NAME/SPLIT, NAME one of {', '.join(known)}, "
                f"got {entry!r}"
            )
        sets.append((name, split))
    return sets


def read_evaluation(config: Any, watch: Watch) -> Evaluation:
    """The pictures that no record of the pool may show.

    Raises:
        UserError: a data set that is not there; the message says how to go without it.
    """
    ids: dict[str, str] = {}
    hashes: dict[str, str] = {}
    counts = {}
    also = _coco_of_genome(config)
    for name, split in _evaluation_sets(config):
        label = f"{name}/{split}"
        try:
            path = place_of(config, name, config.evaluation.paths[name])
        except UserError as error:
            raise UserError(f"{error}; it is evaluation data whose pictures are excluded: set "
                            f"--config.evaluation.paths.{name}=PATH, or take {label!r} out of "
                            f"--config.evaluation.sets") from None  # fmt: skip
        own: set[str] = set()
        read = faults = 0
        for item in open_dataset(name, path, split):
            if not isinstance(item, PublicRecord):
                faults += 1
                continue
            read += 1
            watch(f"evaluation {label}: read", read, 0)
            own |= picture_ids(item)
            if config.evaluation.content:
                hashes |= {sha: hashes.get(sha, label) for sha in _hashes(item)}
        own |= {also[name] for name in own if name in also}
        ids |= {name: ids.get(name, label) for name in own}
        counts[label] = {"records": read, "picture_ids": len(own), "faults": faults}
    return Evaluation(ids, hashes, counts)


def _hashes(record: PublicRecord) -> Iterator[str]:
    for picture in record.images:
        try:
            yield picture.sha256()
        except UserError:  # counted where the data set is evaluated
            continue


def _coco_of_genome(config: Any) -> dict[str, str]:
    """Visual Genome's id -> COCO's, of the pictures that both have; {} without image_data.json."""
    path = config.evaluation.vg_image_data
    if not path:
        return {}
    try:
        rows = json.loads(place_of(config, "Visual Genome", path).read_text(encoding="utf-8"))
        pairs = ((row["image_id"], row.get("coco_id")) for row in rows)
        return {f"vg:{own}": f"coco:{coco}" for own, coco in pairs if coco is not None}
    except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path}: expected Visual Genome's image_data.json ({' '.join(str(error).split())})"
        ) from None
