"""What the two training pools share: every choice that the paper leaves open, with its default.

    python -m tiger_jax.data.build_pool --config configs/data/kd_pool.py \\
        --config.root=DATA --config.out=pools/kd

A data set is looked for in its folder below root (registry.FOLDERS: its name; coco for
coco_captions) unless its own `path` names another place. All fields below but places, `workers` and
what is derived from them stand in the pool's manifest.
"""

from collections.abc import Mapping
from typing import Any

import ml_collections

from tiger_jax.data.filters import PromptFilter

COCO = ("coco/",)
"""Pictures of LLaVA-1.5's mixture that are COCO's (train2017)."""
COCO_2014 = ("train2014/", "val2014/")
"""Pictures of TallyQA that are COCO's; the others are Visual Genome's."""
EVALUATION = ("coco_captions/val", "tallyqa/test", "textvqa/val")
"""Data that the paper reports on and whose pictures have ids that training data share. Who reports
on Karpathy's captions adds "coco_captions/test"."""


def source(count: int, splits: tuple[str, ...], **choices: Any) -> dict[str, Any]:
    """One data set: `count` of its records out of the union of `splits`."""
    return {
        "path": "",  # file or folder; "" = its folder below root
        "splits": splits,
        "count": count,
        "image_prefixes": (),  # how the names of its pictures begin; () = all
        "pictures_only": True,
        "drop_boxes": True,  # records with box coordinates
        "one_per_picture": False,
        "turns": "",  # of conversations: "first" or "all"; "" = the data set has none
    } | choices


def llava(count: int) -> dict[str, Any]:
    """The COCO part of LLaVA-1.5's mixture; the first question of each conversation."""
    return source(count, ("train",), image_prefixes=COCO, turns="first")


def tallyqa(count: int) -> dict[str, Any]:
    """The "COCO-5k subset": no published split. One question of each COCO picture."""
    return source(count, ("train",), image_prefixes=COCO_2014, one_per_picture=True)


def get_pool(pool: str, sources: Mapping[str, Any], filtered: bool) -> ml_collections.ConfigDict:
    """All fields of a pool.

    Args:
        filtered: leave out short, long and yes/no questions, as the alignment pool does.
    """
    defaults = PromptFilter()
    return ml_collections.ConfigDict({
        "pool": pool,
        "root": "",  # the folder with a data set in each subfolder
        "out": "",  # the pool's folder
        "seed": 0,  # which records are taken where there are more
        "scale": 1.0,  # of all counts: 0.001 for a try
        "top_up": "llava",  # gives what the other sources lack; "" = leave the pool smaller
        "answers": pool == "grpo",  # keep the data sets' answers; False = the verifier gives them
        "allow_missing": False,  # True: leave out records whose picture is not there
        "min_side": 3,  # pixels of a picture's shorter side
        "max_aspect": 200.0,  # of its longer to its shorter side, less than this
        "workers": 4,  # threads that open pictures
        "record_bytes": 1 << 26,  # of a file of records
        "picture_bytes": 1 << 30,  # of a file of pictures
        "compare_with": "",  # another pool: what both hold is counted, nothing is left out
        "prompt": {  # data.pool_rules.PoolPrompt
            "form": "question",  # or the benchmarks': "score" (short answers), "speed" (long ones)
            "style": "lmms",  # of "score"
            "choices": True,  # written under a bare question that has any
        },
        "filter": {  # data.filters.PromptFilter: the filter, and how words and tags are found
            "enabled": filtered,
            "min_words": defaults.min_words,
            "max_words": defaults.max_words,
            "count_words_of": defaults.count_words_of,
            "drop_yes_no": defaults.drop_yes_no,
            "yes_no_below": defaults.yes_no_below,
            "yes_no_openers": defaults.yes_no_openers,
            "alternative_words": defaults.alternative_words,
            "format_suffixes": defaults.format_suffixes,
            "hint_prefixes": defaults.hint_prefixes,
            # (tag, pattern, sources): the first that matches
            "tags": tuple((rule.tag, rule.pattern, rule.sources) for rule in defaults.tag_rules),
            "other_tag": defaults.other_tag,
        },
        "evaluation": {  # whose pictures no record may show
            "sets": EVALUATION,  # NAME/SPLIT; () = nothing is excluded
            "paths": dict.fromkeys(
                ("coco_captions", "tallyqa", "textvqa", "scienceqa", "docvqa", "chartqa",
                 "mmbench", "mm_vet", "nlvr2", "muirbench"), "",
            ),  # "" = its folder below root
            "content": False,  # True: also by the bytes of their pictures, which are all read
            "vg_image_data": "",  # Visual Genome's image_data.json: its pictures that are COCO's
        },
        "sources": dict(sources),
    })  # fmt: skip
