"""Supervised training of the embedded pair on questions about scenes (45 minutes on 2 free cores).

    python -m tiger_jax.train --config configs/tower.py
    python -m tiger_jax.train --config configs/sft.py
    python -m tiger_jax.train --config configs/sft.py --config.role=drafter \\
        --config.run_dir=runs/drafter
    python -m tiger_jax.train --config configs/sft.py:tiny_qwen3_vl      # pictures and clips

The same command again goes on where the run stopped; --config.resume=False starts anew. The result
is a Hugging Face folder, run_dir/export. Any field can be set on the command line, for example
--config.mesh.fsdp=8 --config.mesh.data=1 or --config.accumulate=4.
"""

import ml_collections

from configs import presets


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
    """All fields of a supervised run; `arg` is the name of an embedded pair."""
    pair = presets.embedded(arg)
    return ml_collections.ConfigDict({
        "objective": "sft",
        "pair": pair,
        "role": "verifier",  # or "drafter": which of the embedded pair
        "model": "",  # a Hugging Face folder with config and tokenizer; "" = the embedded pair's
        "run_dir": f"{presets.runs(pair)}/verifier",
        "export_to": "",  # "" = run_dir/export
        "resume": True,  # False = delete what run_dir holds and start anew
        "init_from": "",  # run or Hugging Face folder to take all weights from; "" = random
        # then the vision tower from this one; "" = keep
        "tower_from": f"{presets.runs(pair)}/tower",
        "freeze": ("vision_tower/",),  # regexes: weights that stay as they are
        # What a picture is asked besides its own four: short questions are cheap, the picture is
        # not, and finding one thing among many is learnt last.
        "extra_questions": ("attribute", "attribute", "attribute", "count", "read"),
        "clip_share": presets.CLIP_SHARE[pair],  # batches of clips among those of pictures
        "extra_clip_questions": ("event", "event", "order", "state", "state"),
        "steps": 2000,
        "batch": 16,  # pictures a micro-batch, each with its nine questions
        "accumulate": 1,  # micro-batches an update
        "balance": 0.5,  # a token of an answer of n tokens weighs n ** -balance
        "learning_rate": 1.5e-3,
        "warmup": 100,
        "final_fraction": 0.0,
        "weight_decay": 0.02,
        "clip": 1.0,
        "compute_dtype": "float32",  # of activations; weights and moments are always float32
        "mesh": {"data": -1, "fsdp": 1, "tensor": 1},
        "seed": 0,
        "scenes": 1_000_000,  # training pictures; drawn on the fly, so many cost nothing
        "hard_share": 0.0,  # pictures with clutter behind the items
        "held_out_scenes": 96,
        "workers": 0,  # processes that prepare input; 0 = a thread of this one
        "log_every": 10,
        "evaluate_every": 200,
        "checkpoint_every": 100,
        "keep": 2,
        "keep_best": "",  # held-out metric; its best checkpoint stays too
        "profile": "",  # "10:12" = a trace of these steps, in run_dir/profile
    })  # fmt: skip
