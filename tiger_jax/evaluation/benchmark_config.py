"""Fields of the task `benchmark`; configs/eval/*.py say which table of the paper one fills."""

from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections

from tiger_jax import embedded
from tiger_jax.command_line import check_at_least, check_subset
from tiger_jax.data import clip_language, scene_language
from tiger_jax.data.public.registry import FOLDERS, READERS
from tiger_jax.data.videos import SAMPLING_CHECKS
from tiger_jax.errors import UserError

SCENES, EXAMPLES = "scenes", "examples"
"""Beside the public data sets: the project's held-out scenes, and a user's own file."""
SCORE, SPEED = "score", "speed"
KINDS = (*scene_language.KINDS, *clip_language.CLIP_KINDS)
"""Of questions about scenes and clips."""
PLACES = FOLDERS | {EXAMPLES: "examples.jsonl"}
"""Where a data set lies below `root`."""
SAMPLES = {
    "textvqa": {"path": "textvqa/TextVQA_0.5.1_val.partial5.json"},
    "docvqa": {"path": "docvqa/val_v1.0_withQT.sample2.json"},
    "tallyqa": {"path": "tallyqa/MADEUP_from_coco_instances.json", "images": "coco"},
    "chartqa": {"path": "chartqa/hf_layout", "split": "train"},
    "mmbench": {"path": "mmbench/mmbench_dev_en.readme_samples.tsv"},
    "video_mme": {"path": "video-mme/MADEUP_test-00000-of-00001.parquet", "videos": "video"},
    "nlvr2": {"path": "nlvr2/STANDIN_hf_layout.parquet", "split": "dev"},
    "muirbench": {"path": "muirbench/MADEUP_test-00000-of-00001.parquet"},
}  # fmt: skip
"""Cut or made-up files of shared/data, below `root`, with options of their readers: what a config
with `samples` asks about where the usual place holds nothing. Never a benchmark's numbers."""
MADE_UP = ("MADEUP", "STANDIN")
"""How the names of files start that are no records of their data set: they are never scored."""
ENTRY = {
    "dataset": "", "label": "", "split": "", "limit": 0, "mode": SCORE, "where": {}, "kinds": (),
    "hard": False, "fps": 0.0, "options": {},
}  # fmt: skip
"""Fields of an entry of `datasets` and what they are by default: the reader's own split; no limit;
short prompts; records whose `meta` has these values; of scenes the kinds of questions; 0 = the
run's frames a second; options of the reader."""
PLAIN = "plain"
"""The variant without a drafter."""


def benchmark_config(
    table: str, variants: Sequence[Mapping[str, Any]], datasets: Sequence[Mapping[str, Any]],
    **changes: Any,
) -> ml_collections.ConfigDict:  # fmt: skip
    """A config of the task `benchmark`.

    Args:
        table: the layout of benchmark_tables.TABLES, which is also the config's file name.
        variants: as evaluation/variants.py describes them, each perhaps with "alone": True (the
            drafter's own answers); {"name": "plain"} is the verifier alone. `drafter` may also be
            model:tiger or model:full, the fields `tiger` and `drafter` below.
        datasets: as ENTRY has them.
        changes: other values for fields below.

    Raises:
        KeyError: a change of a field that does not exist.
    """
    config = ml_collections.ConfigDict({
        "task": "benchmark",
        "table": table,
        "pair": embedded.PAIRS[0],
        "verifier": "",  # a Hugging Face folder; "" = the embedded pair's
        "drafter": "",  # model:full of variants, which sees all visual tokens; "" = embedded
        "tiger": "",  # model:tiger of variants, a trained drafter with its router; "" = embedded
        "variants": tuple(dict(variant) for variant in variants),
        "runs": "runs",  # where run:NAME looks: RUNS/NAME/export
        "skip_missing": True,  # leave out variants without a folder and data sets without files
        "root": "",  # folder of the data sets
        "paths": dict(PLACES),  # of each data set below it, a folder or a file
        "samples": False,  # where a data set's files are missing, ask about SAMPLES of it
        "datasets": tuple(ENTRY | dict(entry) for entry in datasets),
        "only": (),  # names of data sets; () = all of `datasets`
        "limit": 0,  # questions of each data set; 0 = as `datasets` say
        "kinds": ("read", "count", "attribute", "describe"),  # of questions about scenes
        "first_scene": 1000,  # of the held-out scenes, the first that is asked about
        "temperatures": (0.0,),
        "draft_lengths": (5,),  # all of them in speed mode, the first in score mode
        "batch_sizes": (8,),
        "routed_tokens": (),  # k of variants that route and do not say; () = as trained
        "max_new_tokens": 0,  # of long answers, and of scenes and examples; 0 = as the prompts say
        "seed": 0,  # of the choice of questions, and of drawing above temperature 0
        "fps": 0.0,  # frames of a second of video; 0 = as the model's folder says
        "max_frames": 0,  # most of a video; 0 = as the model's folder says
        "subtitles": False,  # of videos, in the prompt
        "visual_budget": 0,  # visual tokens of a prompt's pictures; 0 = as the processor says
        "dtype": "",  # float32 or bfloat16; "" = float32 on CPU, bfloat16 on accelerators
        "costs": "each",  # c and v of long answers: of each data set, of the first one, or "none"
        "out": "",  # run folder: journal, lists of ids, reports; "" = runs/benchmark/TABLE
        "report": "",  # another place for the report's JSON
    })  # fmt: skip
    with config.unlocked():
        for name, value in changes.items():
            if name not in config:
                raise KeyError(f"{name}: no such field")
            config[name] = value
    return config


def check(config: Any) -> None:
    """UserError for the first field that no run can have; looks at no folder."""
    from tiger_jax.decoding.engine import Options  # reading a config needs no jax

    for name in ("temperatures", "draft_lengths", "batch_sizes", "datasets", "variants"):
        if not config[name]:
            raise UserError(f"{name}: expected at least one, got none")
    for name in ("draft_lengths", "batch_sizes", "routed_tokens"):
        if config[name] and min(config[name]) < 1:
            raise UserError(f"{name}: expected at least 1, got {min(config[name])}")
    for temperature in config.temperatures:
        Options(temperature=temperature)
    check_at_least(config, 0, "limit", "max_new_tokens", "first_scene", "visual_budget")
    check_at_least(config, 0, "fps", "max_frames")
    for name in ("fps", "max_frames"):
        if config[name]:
            try:
                SAMPLING_CHECKS[name](name, config[name])
            except ValueError as error:
                raise UserError(str(error)) from None
    check_subset(config, "kinds", KINDS)
    if config.dtype not in ("", "float32", "bfloat16"):
        raise UserError(f"dtype: expected float32, bfloat16 or nothing, got {config.dtype!r}")
    if config.costs not in ("each", "first", "none"):
        raise UserError(f"costs: expected each, first or none, got {config.costs!r}")
    given = [ENTRY | dict(entry) for entry in config.datasets]
    for entry in given:
        check_entry(entry)
    names = [(entry["label"] or entry["dataset"], entry["mode"]) for entry in given]
    if twice := [
        f"{label} in mode {mode}" for label, mode in names if names.count((label, mode)) > 1
    ]:
        raise UserError(f"datasets: expected different labels, got {twice[0]} twice")
    known = [entry["dataset"] for entry in given]
    if wrong := sorted(set(config.only) - set(known)):
        raise UserError(
            f"only: expected some of {', '.join(dict.fromkeys(known))}, got {wrong[0]!r}"
        )


def check_entry(entry: Mapping[str, Any]) -> None:
    """UserError for an entry of `datasets` that is written wrongly."""
    if unknown := sorted(set(entry) - set(ENTRY)):
        raise UserError(
            f"datasets: expected only the fields {', '.join(ENTRY)}, got {', '.join(unknown)}"
        )
    names = (SCENES, EXAMPLES, *READERS)
    if entry["dataset"] not in names:
        raise UserError(f"datasets: expected one of {', '.join(names)}, got {entry['dataset']!r}")
    if entry["mode"] not in (SCORE, SPEED):
        raise UserError(f"datasets: expected mode {SCORE} or {SPEED}, got {entry['mode']!r}")
    if entry["limit"] < 0:
        raise UserError(f"datasets: expected a limit of at least 0, got {entry['limit']}")


def entries(config: Any) -> list[dict]:
    """The entries of `datasets` that are asked about, each with its label and limit."""
    chosen = [ENTRY | dict(entry) for entry in config.datasets]
    chosen = [entry for entry in chosen if not config.only or entry["dataset"] in config.only]
    return [
        entry
        | {"label": entry["label"] or entry["dataset"], "limit": config.limit or entry["limit"]}
        for entry in chosen
    ]
