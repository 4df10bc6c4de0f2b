"""Knowledge distillation: a drafter learns to draft from k routed visual tokens (method 4.1).

    python -m tiger_jax.train --config configs/kd.py
    python -m tiger_jax.train --config configs/kd.py:llava_next \\
        --config.verifier=llava-v1.6-vicuna-13b-hf --config.model=llava-v1.6-vicuna-7b-hf \\
        --config.examples="('pools/kd',)"

The verifier first answers every prompt; its answers stay in cache_dir. Without a pair's name: the
embedded pair on scenes. The result is a Hugging Face folder with the router beside it,
run_dir/export, which `--drafter` of tiger_jax.decode takes.
"""

import ml_collections

from configs import presets


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
    """All fields of a distillation run; `arg` is the name of a pair."""
    name = arg or presets.EMBEDDED[0]
    pair = presets.pair(name)
    config = ml_collections.ConfigDict({
        "objective": "distill",
        "verifier": pair["verifier"],  # Hugging Face or run folder
        "model": pair["drafter"],  # Hugging Face folder of the drafter
        "init_from": "",  # run or Hugging Face folder to take the weights from; "" = model
        "tower_from": "",
        "run_dir": f"{presets.runs(name)}/kd",
        "export_to": "",  # "" = run_dir/export
        "resume": True,  # False = delete what run_dir holds and start anew
        "freeze": ("vision_tower/",),  # regexes: weights that stay as they are
        # What is learnt from: scenes; as examples pools (data.build_pool) and JSON Lines files
        # ({"images": [..], "prompt": ..}).
        "scenes": 0,
        "hard_share": 0.0,  # scenes with clutter behind the items
        "clip_share": 0.0,  # of the scenes: short videos instead of pictures
        "examples": (),
        "filter": {  # of JSON Lines files, not of pools: data.filters.PromptFilter
            "enabled": True, "min_words": 5, "max_words": 60, "drop_yes_no": True,
            "yes_no_below": 10,
        },
        "max_length": 2048,  # text tokens of a prompt with its response; 0 = the model's positions
        "response": "verifier",  # or "reference": the answers that the records hold
        "cache_dir": f"{presets.runs(name)}/teacher",  # the verifier's answers
        "teacher": {  # training.teacher_pass.TeacherSettings
            "temperature": 1.0, "seed": 0, "max_new_tokens": 512, "kept_tokens": 32,
            "kept_rows": 32, "window": 5, "power": 3.0,
        },
        "teacher_batch": 8,  # prompts that the verifier answers at a time
        "online_teacher": False,  # True: laws from the verifier at each step, not from the cache
        "router": {  # routing.router.RouterConfig
            "selector": "tiger", "routed_tokens": 8, "pooled_tokens": 1, "query": "visual",
            "looks": 0, "gate": "none", "width": 0,
        },
        "route_weight": 0.3,  # of the verifier's attention as the router's teacher
        "draft_length": 32,
        "steps": 23_125,  # 92,500 examples, once
        "batch": 4,  # examples a micro-batch
        "accumulate": 1,
        "learning_rate": 5e-6,
        "warmup": 100,
        "final_fraction": 0.0,
        "weight_decay": 0.01,
        "clip": 1.0,
        "compute_dtype": "bfloat16",
        "remat": True,  # scan the layers of training passes; keep no activations inside them
        "mesh": {"data": 1, "fsdp": 4, "tensor": -1},  # the batch is cut over data x fsdp
        "verifier_mesh": {"data": 1, "fsdp": 4, "tensor": -1},  # in training, on the same devices
        "answer_mesh": {"data": 1, "fsdp": 1, "tensor": -1},  # for its answers, of each process
        "seed": 0,
        "held_out_scenes": 0,
        "held_out_examples": (),  # pools and JSON Lines files, like examples
        "workers": 2,
    } | _watching())  # fmt: skip
    if name in presets.EMBEDDED:
        _fit_to_scenes(config, name)
    return config


def _watching() -> dict:
    """How often a run looks at itself and saves, and what --dry_run compiles."""
    return {
        "log_every": 10,
        "evaluate_every": 500,
        "checkpoint_every": 200,
        "keep": 2,
        "keep_best": "accepted_greedy",  # held-out metric; its best checkpoint stays too
        "dry_run_card": "a40",  # or h200: what --dry_run compiles for
        "dry_run_devices": 8,
        "dry_run_layers": 0,  # > 0: both models that shallow
        "dry_run_search": False,  # True: also the largest micro-batch that fits
        "profile": "",  # "10:12" = a trace of these steps, in run_dir/profile
    }


def _fit_to_scenes(config: ml_collections.ConfigDict, name: str) -> None:
    """An embedded pair: scenes as data, sizes for two CPU cores."""
    config.update({
        "clip_share": presets.CLIP_SHARE[name],
        "remat": False, "max_length": 0, "teacher_batch": 64,
        "mesh": {"data": 1, "fsdp": -1, "tensor": 1},
        "verifier_mesh": {"data": 1, "fsdp": -1, "tensor": 1},
        "answer_mesh": {"data": -1, "fsdp": 1, "tensor": 1},
        "scenes": 6000, "held_out_scenes": 96, "workers": 0, "draft_length": 8, "steps": 1800,
        "batch": 24, "accumulate": 1, "learning_rate": 2e-3, "warmup": 30,
        "compute_dtype": "float32", "evaluate_every": 600, "checkpoint_every": 200,
        "route_weight": 1.0,
    })  # fmt: skip
    config.filter.enabled = False
    config.teacher.max_new_tokens = 96
    config.router.update({"pooled_tokens": 9, "looks": 1})
