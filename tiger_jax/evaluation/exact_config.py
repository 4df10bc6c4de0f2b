"""Fields that all comparisons of drafters share; configs/exact/*.py say what differs."""

from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections

from tiger_jax import embedded

TIGER_AND_FULL = (
    {"name": "tiger", "drafter": "embedded:tiger"},
    {"name": "full, distilled", "drafter": "run:kd_full"},
    {"name": "full, supervised only", "drafter": "embedded:full"},
)
"""The embedded TIGER drafter beside two that see all visual tokens: one distilled for as many
steps, and the one that both began as."""


def drafters_config(
    variants: Sequence[Mapping[str, Any]], **changes: Any
) -> ml_collections.ConfigDict:
    """A config of the task `drafters`.

    Args:
        variants: as evaluation/variants.py describes them.
        changes: other values for fields below.

    Raises:
        KeyError: a change of a field that does not exist.
    """
    config = ml_collections.ConfigDict({
        "task": "drafters",
        "pair": embedded.PAIRS[0],  # embedded pair: whose verifier, and `embedded:NAME` of variants
        "verifier": "",  # a Hugging Face folder; "" = the pair's
        "variants": tuple(dict(variant) for variant in variants),
        "more": (),  # folders (or run:NAME) of further drafters, each run as its folder says
        "runs": "runs",  # where run:NAME looks: RUNS/NAME/export
        "skip_missing": False,  # leave out `variants` without a folder, instead of stopping
        "reference": "",  # name of the variant that the others are compared with; "" = the first
        "dtype": "",  # float32 or bfloat16; "" = float32 on CPU, bfloat16 on accelerators
        "scenes": 300,  # held-out pictures, each with one question of every kind
        "clips": 0,  # held-out videos, likewise
        # The first few hundred held-out pictures were looked at while the recipe was found.
        "first_scene": 1000,  # of the held-out pictures, the first that is reported on
        "hard_share": 0.0,  # of the pictures with clutter behind the items
        "kinds": ("read", "count", "attribute", "describe"),
        "temperatures": (0.0, 1.0),
        "draft_lengths": (5, 8),
        "max_new_tokens": 96,
        "batch_size": 8,  # pictures of an exact pass
        "cache_dir": "runs/teacher",  # the verifier's answers, kept for the next run
        "teacher_batch": 64,  # prompts decoded together where an answer is missing
        "decode": False,  # also decode: measured S, c, v, and A counted
        "decode_scenes": 30,  # of the pictures, for that
        "decode_draft_lengths": (),  # some of draft_lengths; () = all of them
        "decode_batches": (16,),  # prompts decoded together
        "decode_trees": (),  # of heads, beside chains: "NODES,DEPTH,WIDTH"
        "seed": 0,  # of the pictures, and of drawing above temperature 0
        "plot": "",  # a PNG of A by k: the first routed drafter, and a full one
        "report": "",  # a JSON file for everything that was counted
    })  # fmt: skip
    with config.unlocked():
        for name, value in changes.items():
            if name not in config:
                raise KeyError(f"{name}: no such field")
            config[name] = value
    return config
