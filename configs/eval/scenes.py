"""Answers, acceptance and speed of a pair on held-out scenes.

    python -m tiger_jax.evaluate --config configs/eval/scenes.py
    python -m tiger_jax.evaluate --config configs/eval/scenes.py:tiny_qwen3_vl    # clips too
    python -m tiger_jax.evaluate --config configs/eval/scenes.py --config.scenes=50 \\
        --config.kinds="('describe',)" --config.temperatures="(0.0, 1.0)"
"""

import ml_collections

from configs import presets


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
    """All fields of the evaluation; `arg` is the name of an embedded pair."""
    pair = presets.embedded(arg)
    return ml_collections.ConfigDict({
        "task": "scenes",
        "pair": pair,
        "verifier": "",  # a Hugging Face or Orbax folder; "" = the embedded pair's
        "drafter": "",  # likewise ("": TIGER's); "none" judges the verifier alone
        "dtype": "",  # float32 or bfloat16; "" = float32 on CPU, bfloat16 on accelerators
        "scenes": 300,  # held-out pictures, each with one question of every kind
        "difficulties": ("easy", "hard"),  # hard pictures have clutter behind the items
        "kinds": presets.QUESTION_KINDS[pair],
        "temperatures": (0.0,),
        "batch_size": 16,
        "max_new_tokens": 96,
        "draft_length": 5,
        "exact": True,  # exact A beside the counted one; none with a draft confidence
        "draft_confidence": 0.0,  # stop drafting where the likeliest token is below it
        "seed": 0,  # of the pictures, and of drawing above temperature 0
        "report": "",  # a JSON file for everything that was counted
    })  # fmt: skip
