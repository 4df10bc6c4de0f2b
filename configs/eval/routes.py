"""One answer round by round, with the visual tokens that each round routed.

python -m tiger_jax.evaluate --config configs/eval/routes.py --config.picture=routes.png
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    """All fields."""
    return ml_collections.ConfigDict({
        "task": "routes",
        "verifier": "",  # a Hugging Face folder; "" = the embedded pair's
        "drafter": "",  # a folder with a router; "" = the embedded TIGER drafter
        "selector": "",  # "" = as the drafter's folder says
        "image": "",  # "" = the embedded picture
        "prompt": "Describe the picture.",
        "max_new_tokens": 96,
        "draft_length": 5,
        "dtype": "",
        "picture": "",  # PNG file to draw the rounds into
        "report": "",  # a JSON file
    })  # fmt: skip
