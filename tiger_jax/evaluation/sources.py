"""Where the questions of a benchmark's data sets come from, by a config."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tiger_jax.data.public import registry
from tiger_jax.errors import UserError
from tiger_jax.evaluation.benchmark_config import (
    EXAMPLES,
    MADE_UP,
    SAMPLES,
    SCENES,
    SCORE,
    SPEED,
)
from tiger_jax.evaluation.questions import ExampleSource, PublicSource, SceneSource, Source

USUAL_SCENES = 100
"""Questions about scenes where no limit is given."""


def sources(config: Any, entry: Mapping[str, Any]) -> Iterator[Callable[[], Source]]:
    """How to open the source of an entry of a config's `datasets`: first its usual place, then the
    sample of it, if the config allows one. Opening raises UserError where nothing of it lies."""
    yield partial(_open, config, entry, config.paths.get(entry["dataset"], ""), {})
    sample = dict(SAMPLES.get(entry["dataset"], {})) if config.samples else {}
    if sample:
        path = sample.pop("path")
        split = sample.pop("split", entry["split"])
        options = {name: str(Path(config.root) / place) for name, place in sample.items()}
        yield partial(_open, config, {**entry, "split": split}, path, options)


def _open(config: Any, entry: Mapping[str, Any], path: str, more: Mapping[str, Any]) -> Source:
    name, mode = entry["dataset"], entry["mode"]
    if name == SCENES:
        # As many pictures as give enough questions of these kinds.
        kinds = tuple(entry["kinds"] or config.kinds)
        count = -(-(entry["limit"] or USUAL_SCENES) // len(kinds))
        tokens = config.max_new_tokens or 96
        return SceneSource(count, config.seed, config.first_scene, kinds, tokens, entry["hard"])
    place = Path(config.root) / path
    if name == EXAMPLES:
        if not place.is_file():
            raise UserError(f"{place}: expected a JSON Lines file of examples, found none there")
        return ExampleSource(place, config.max_new_tokens or 128)
    if place.name.startswith(MADE_UP) and mode == SCORE:
        raise UserError(f"{place.name}: made up, never scored")
    options = dict(entry["options"]) | dict(more)
    if name == "mmbench" and mode == SCORE:
        options.setdefault("circular", True)
    if name == "video_mme" and config.subtitles:
        options.setdefault("subtitles", True)
    dataset = registry.open_dataset(name, place, entry["split"] or None, **options)
    return PublicSource(
        dataset, mode, dict(entry["where"]), config.max_new_tokens if mode == SPEED else 0
    )
