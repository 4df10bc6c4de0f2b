"""Acceptance alignment: reward the drafter with the prefix that the verifier accepts (method 4.2).

    python -m tiger_jax.train --config configs/grpo.py
    python -m tiger_jax.train --config configs/grpo.py:llava_next \\
        --config.verifier=llava-v1.6-vicuna-13b-hf --config.model=llava-v1.6-vicuna-7b-hf \\
        --config.examples="('pools/grpo',)"

It starts where configs/kd.py ended. For the paper's pairs objective and numbers are the paper's;
the embedded pair uses `expected_acceptance`, which measured best (docs/results.md). Another one:
--config.align.objective=grpo --config.learning_rate=1e-4
"""

import ml_collections

from configs import kd, presets


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
    """All fields of an alignment run; `arg` is the name of a pair."""
    config = kd.get_config(arg)
    name = arg or presets.EMBEDDED[0]
    with config.unlocked():
        del config.online_teacher
        config.update({
            "objective": "align",
            "keep_best": "A",
            "init_from": f"{presets.runs(name)}/kd",  # the KD checkpoint; also q_ref
            "run_dir": f"{presets.runs(name)}/grpo",
            "align": {  # training.align_step.AlignSettings
                "objective": "grpo",  # or grpo_exact, expected_acceptance
                # The rest, and prefixes, count only for grpo and grpo_exact.
                "reward": "accepted_prefix",  # or binary, token_agreement, expected_prefix
                "credit": "block",  # or prefix: up to and including the first rejection
                "samples": 4,  # K blocks of a prefix
                "temperature": 1.0,  # of the rollouts and of the acceptance rule
                "beta": 0.02,  # of KL(q || q_ref)
                "eps": 1e-6,  # beside the standard deviation of a group
            },
            "prefixes": 1,  # random cuts of an example's responses, K blocks at each
            "steps": 10_000,  # 80,000 examples, once
            "accumulate": 2,
            "learning_rate": 1e-5,
        })  # fmt: skip
    if name in presets.EMBEDDED:
        config.update({
            "steps": 300, "batch": 24, "accumulate": 1, "learning_rate": 5e-4, "prefixes": 4,
            "evaluate_every": 150,
        })  # fmt: skip
        config.align.objective = "expected_acceptance"
    return config
