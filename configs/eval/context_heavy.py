"""tab:context_heavy_eval: Video-MME short, medium and long, NLVR2 and MuirBench.

    python -m tiger_jax.evaluate --config configs/eval/context_heavy.py \\
        --config.root=../shared/data
    python -m tiger_jax.evaluate --config configs/eval/context_heavy.py:qwen3_vl \\
        --config.root=DATA --config.verifier=DIR --config.drafter=DIR --config.tiger=DIR

Short and medium videos at 1 frame a second, long ones at 0.5, as in the paper; its budget of
frames is not given: at most 64 here (--config.max_frames). A LLaVA pair pools its frames to
--config.visual_budget tokens. --config.subtitles=True puts subtitles into the prompts.
"""

import ml_collections

from configs import presets

VIDEOS = tuple(
    {"dataset": "video_mme", "label": f"Video-MME {duration}", "limit": 900,
     "where": {"duration": duration}, "fps": fps}
    for duration, fps in (("short", 1.0), ("medium", 1.0), ("long", 0.5))
)  # fmt: skip
MANY = (
    {"dataset": "nlvr2", "label": "NLVR2", "limit": 1000},
    {"dataset": "muirbench", "label": "MuirBench", "limit": 1000},
)


def get_config(arg: str | None = None) -> ml_collections.ConfigDict:
    """All fields of the benchmark; `arg` is the name of a pair."""
    return presets.benchmark(
        arg, "context_heavy",
        variants=(presets.PLAIN, *presets.heads(arg), presets.VANILLA, presets.TIGER),
        datasets=(*VIDEOS, *MANY), modes=("speed", "score"), max_frames=64,
    )  # fmt: skip
