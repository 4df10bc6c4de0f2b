"""Training curves of runs in one figure.

python -m tiger_jax.evaluate --config configs/eval/curves.py --config.picture=docs/curves.png
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    """All fields."""
    return ml_collections.ConfigDict({
        "task": "curves",
        "runs": "runs",  # the folder that holds the runs
        "names": ("kd", "kd_full"),  # run folders in it
        "metric": "train/accepted_greedy",  # or any other of their logs; held_out/NAME too
        "quantity": "",  # what the axis is called; "" = the metric
        "picture": "",  # PNG, PDF or SVG file
        "report": "",  # a JSON file
    })  # fmt: skip
