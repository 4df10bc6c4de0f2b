"""What routing costs and saves in the drafter: prefill, a round, and its cache.

    python -m tiger_jax.evaluate --config configs/eval/routing_cost.py --config.report=cost.json

Random weights: time and memory do not depend on what the drafter knows. Needs a quiet machine.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    """All fields of the measurement."""
    return ml_collections.ConfigDict({
        "task": "routing_cost",
        "dtype": "",  # float32 or bfloat16; "" = float32 on CPU, bfloat16 on accelerators
        "drafter": {  # 59 M parameters
            "vocab_size": 32000,
            "hidden_size": 512,
            "intermediate_size": 1408,
            "num_hidden_layers": 8,
            "num_attention_heads": 8,
            "max_position_embeddings": 8192,
        },
        "visual_tokens": (300, 3000),  # about: whole pictures are added until there are as many
        "routed_tokens": 8,
        "pooled_tokens": 1,
        "draft_length": 5,
        "new_tokens": 128,  # room in the caches
        "rounds": 16,  # timed in one program
        "repeats": 5,  # of which the median is taken, after one to warm up
        "seed": 0,  # of the weights and of the pictures
        "report": "",  # a JSON file for everything that was measured
    })  # fmt: skip
