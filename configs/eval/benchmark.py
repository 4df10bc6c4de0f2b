"""All public data sets, held-out scenes, and a user's own file, in both modes.

    python -m tiger_jax.evaluate --config configs/eval/benchmark.py \\
        --config.root=../shared/data
    python -m tiger_jax.evaluate --config configs/eval/benchmark.py:llava_next \\
        --config.root=DATA --config.verifier=DIR --config.drafter=DIR --config.tiger=DIR

--config.only="('textvqa', 'docvqa')" asks some of them; --config.paths.textvqa=PLACE says where one
lies below the root. A user's own file, JSON Lines of {"prompt", "images", "answer"}:

    python -m tiger_jax.evaluate --config configs/eval/benchmark.py \\
        --config.only="('examples',)" --config.paths.examples=my.jsonl --config.limit=100
"""

import ml_collections

from configs import presets
from tiger_jax.evaluation.benchmark_config import PLACES


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
    """All fields of the benchmark; `arg` is the name of a pair."""
    sets = [{"dataset": name, "limit": 1000} for name in PLACES if name != "llava"]
    return presets.benchmark(
        arg, "benchmark", variants=(presets.PLAIN, presets.VANILLA, presets.TIGER),
        datasets=sets, modes=("speed", "score"),
    )  # fmt: skip
