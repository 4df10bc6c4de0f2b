"""The pool for knowledge distillation: 92,500 examples of six data sets, unfiltered.

    python -m tiger_jax.data.build_pool --config configs/data/kd_pool.py \\
        --config.root=DATA --config.out=pools/kd
    ... --config.scale=0.001 --config.evaluation.sets="()" --config.sources.llava.path=FILE

DocVQA's validation and ChartQA's test questions are trained on because the paper does; the clean
choice: --config.sources.docvqa.splits="('train',)" --config.sources.chartqa.splits="('train',)"
The verifier gives the target responses when training starts; --config.answers=True keeps the data
sets' own, for --config.response=reference of configs/kd.py.
"""

import ml_collections

from configs.data import pools


def get_config() -> ml_collections.ConfigDict:
    """All fields; the paper's composition."""
    sources = {
        "llava": pools.llava(40_000),
        "textvqa": pools.source(34_000, ("train",)),
        "scienceqa": pools.source(6_000, ("train",)),
        "docvqa": pools.source(5_000, ("val",)),
        "tallyqa": pools.tallyqa(5_000),
        "chartqa": pools.source(2_500, ("test",)),
    }
    return pools.get_pool("kd", sources, filtered=False)
