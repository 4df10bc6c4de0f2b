"""Speed beside transformers: plain against `generate`, speculative against assisted generation.

    python -m tiger_jax.evaluate --config configs/eval/peer_transformers.py
    python -m tiger_jax.evaluate --config configs/eval/peer_transformers.py:tiny_qwen3_vl
    python -m tiger_jax.evaluate --config configs/eval/peer_transformers.py \\
        --config.pairs="('embedded',)" --config.embedded.verifier=DIR --config.embedded.drafter=DIR

Needs torch and transformers (the extra `test`) and a quiet machine.
"""

import ml_collections

from configs import presets


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
    """All fields of the comparison; `arg` is the name of an embedded pair."""
    pair = presets.embedded(arg)
    return ml_collections.ConfigDict({
        "task": "peer_transformers",
        "pair": pair,
        # The random pair is LLaVA-NeXT's: another family decodes with the same programs.
        "pairs": ("embedded", "random") if pair == presets.EMBEDDED[0] else ("embedded",),
        "draft_length": 5,  # of both libraries, constant
        "draft_confidence": 0.0,  # of both: stop drafting below this probability; 0 = never
        "repeats": 5,  # timed, after one to warm up
        "threads": 0,  # of torch; 0 = all cores
        "bandwidth_mib": 1024,  # size of the array that is read to measure memory bandwidth
        "seed": 0,  # of the pictures
        "report": "",  # a JSON file for everything that was measured
        "embedded": {
            "verifier": "",  # a Hugging Face folder; "" = the embedded pair's
            "drafter": "",
            "scenes": 3,  # held-out pictures
            "kinds": ("read", "count", "attribute", "describe"),  # questions asked about each
            "max_new_tokens": 96,
            "bars": {
                "plain_over_generate": 2.0,
                "speculative_over_assisted": 4.0,
                "speculative_over_plain": 1.5,
            },
        },
        "random": {  # random weights, written for the run: memory-bound, nothing is accepted
            "folder": "",  # where to keep them; "" = a temporary folder
            "verifier": {  # 323 M parameters
                "vocab_size": 32000,
                "hidden_size": 1024,
                "intermediate_size": 2816,
                "num_hidden_layers": 20,
                "num_attention_heads": 16,
            },
            "drafter": {  # 59 M parameters
                "vocab_size": 32000,
                "hidden_size": 512,
                "intermediate_size": 1408,
                "num_hidden_layers": 8,
                "num_attention_heads": 8,
            },
            "scenes": 1,
            "kinds": ("describe",),
            "max_new_tokens": 32,
            "bars": {"plain_over_generate": 0.9},
        },
    })  # fmt: skip
