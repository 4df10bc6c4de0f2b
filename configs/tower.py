"""Pre-training of the embedded pair's vision tower on the contents of picture cells (3 minutes).

    python -m tiger_jax.train --config configs/tower.py
    python -m tiger_jax.train --config configs/tower.py:tiny_qwen3_vl

Its tower is what configs/sft.py starts from. Any field can be set on the command line, for example
--config.steps=100 --config.run_dir=/tmp/tower.
"""

import ml_collections

from configs import presets


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
    """All fields of a tower run; `arg` is the name of an embedded pair."""
    pair = presets.embedded(arg)
    return ml_collections.ConfigDict({
        "objective": "tower",
        "pair": pair,
        "role": "verifier",  # both roles have the same tower
        "model": "",  # a Hugging Face folder with the sizes; "" = the embedded pair's
        "run_dir": f"{presets.runs(pair)}/tower",
        "export_to": "",  # "" = run_dir/export
        "resume": True,  # False = delete what run_dir holds and start anew
        "init_from": "",
        "tower_from": "",  # run or Hugging Face folder to go on from; "" = random
        "freeze": (),
        "steps": 700,
        "batch": 48,
        "accumulate": 1,
        "learning_rate": 2e-3,
        "warmup": 50,
        "final_fraction": 0.0,
        "weight_decay": 0.02,
        "clip": 1.0,
        "compute_dtype": "float32",
        "mesh": {"data": -1, "fsdp": 1, "tensor": 1},
        "seed": 0,
        "scenes": 1_000_000,  # training pictures; drawn on the fly, so many cost nothing
        "hard_share": 0.25,  # pictures with clutter behind the items
        "held_out_scenes": 192,
        "workers": 0,  # processes that prepare input; 0 = a thread of this one
        "log_every": 20,
        "evaluate_every": 200,
        "checkpoint_every": 200,
        "keep": 2,
        "keep_best": "",  # held-out metric; its best checkpoint stays too
        "profile": "",  # "10:12" = a trace of these steps, in run_dir/profile
    })  # fmt: skip
