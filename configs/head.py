"""A draft head on the verifier's own hidden states: one layer, so that a step costs almost nothing.

    python -m tiger_jax.train --config configs/head.py --config.method=tiger_head
    python -m tiger_jax.train --config configs/head.py --config.method=eagle2
    python -m tiger_jax.train --config configs/head.py:llava_next --config.method=tiger_head \\
        --config.verifier=llava-v1.6-vicuna-13b-hf --config.examples="('my/questions.jsonl',)"

A method's name stands for a head's shape and its official loss; each field can be set by hand.
The verifier answers every prompt once, one more pass keeps its hidden states; both stay in
cache_dir and serve every method. The result, run_dir/export, is what `--drafter` of
tiger_jax.decode takes.

    tiger_head   k = 8 visual rows, routed anew at every draft step (--config.route_every=round: the
                 paper's rule), fused states, KL unrolled over its own outputs (ours)
    eagle2       last state, all visual rows, smooth L1 + 0.1 CE, no unrolling
    eagle3       fused states, all visual rows, own lm_head, CE unrolled, 0.8^i
    vispec       last state, two vectors a picture, 10 L1 + 0.1 ListMLE, unrolled twice
    medusa       residual blocks on the last state, CE with the answers' tokens, 0.8^k

The verifier may as well be the 7B: name its folder. Without any weights, what a step takes:
    --config configs/head.py:llava_next --config.method=eagle3 --config.dry_run=13b

The second stage of tiger_head, from the first one's weights:
    --config.loss.objective=expected_acceptance --config.init_from=runs/heads/tiger_head \\
    --config.run_dir=runs/heads/aligned --config.steps=300 --config.learning_rate=5e-4
"""

import ml_collections
from ml_collections import config_dict

from configs import kd, presets


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
    """All fields of a head's training; `arg` is the name of a pair, whose verifier counts."""
    name = arg or presets.EMBEDDED[0]
    config = kd.get_config(arg)
    with config.unlocked():
        # The verifier's states go into the head's step, so both have one mesh.
        for unused in ("online_teacher", "route_weight", "verifier_mesh"):
            del config[unused]
        config.update({
            "objective": "head",
            "keep_best": "agreement",
            "method": "tiger_head",  # or eagle2, eagle3, vispec, medusa
            "model": "",  # always the verifier: its states are what is read
            "freeze": (),
            # None: as the method says (tiger_jax/head_methods.py).
            "head": {  # models.head.HeadConfig
                "layout": config_dict.placeholder(str),
                "features": config_dict.placeholder(str),  # last, or fused: low, middle and high
                "taps": (),  # which ones; () = by the verifier's depth
                "visual": config_dict.placeholder(str),  # none, full, routed or resampler
                "width": 0,  # 0 = the verifier's, as all zeros here
                "num_heads": 0, "num_kv_heads": 0, "head_dim": 0, "intermediate_size": 0,
                "draft_vocab": 0,  # of eagle3; 0 = all
                "resampler_queries": 2,
                "medusa_heads": 4,
            },
            "route_query": "input",  # or hidden
            "route_every": config_dict.placeholder(str),  # round, or step
            "loss": {  # training.head_step.HeadLossSettings
                "objective": config_dict.placeholder(str),
                "decay": config_dict.placeholder(float),
                "route_weight": 1.0,
            },
            "cuts": 0,  # random blocks of an example; 0 = blocks that hold every token once
            "router": config.router.to_dict() | {"width": 128},  # the verifier's would be 40 x that
            "online_features": False,  # True: states from the verifier at each step, not from disk
            "features": {"kept_rows": 16, "power": 3.0},  # training.head_features.FeatureSettings
            "dry_run": "",  # 13b or 7b: only say what a step for LLaVA-1.6 of this size takes
            "learning_rate": 3e-5,
        })  # fmt: skip
        config.draft_length = config_dict.placeholder(int)  # steps that a head is unrolled
        config.run_dir = f"{presets.runs(name)}/heads/{{method}}"  # the method's name in its place
    if name in presets.EMBEDDED:
        config.update({
            "steps": 1200, "batch": 24, "learning_rate": 3e-3, "warmup": 50,
            "evaluate_every": 600,
        })  # fmt: skip
        config.head.update({
            "width": 128, "num_heads": 4, "num_kv_heads": 4, "head_dim": 32,
            "intermediate_size": 96, "draft_vocab": 0, "medusa_heads": 3,
        })  # fmt: skip
        config.router.update({"pooled_tokens": 1, "looks": 0, "width": 64})
    return config
