"""The pool for acceptance alignment: 80,000 examples of six data sets, filtered and tagged.

    python -m tiger_jax.data.build_pool --config configs/data/grpo_pool.py \\
        --config.root=DATA --config.out=pools/grpo
    ... --config.scale=0.001 --config.filter.yes_no_below=8

The paper drops questions of less than five or more than sixty words and "short pure yes/no
questions". What a source then lacks of its count comes from LLaVA's COCO part, and is counted in
the manifest.
"""

import ml_collections

from configs.data import pools


def get_config() -> ml_collections.ConfigDict:
    """All fields; the paper's composition."""
    sources = {
        "llava": pools.llava(37_500),
        "textvqa": pools.source(20_000, ("train",)),
        "docvqa": pools.source(10_000, ("val", "test")),
        "chartqa": pools.source(2_500, ("test",)),
        "tallyqa": pools.tallyqa(5_000),
        "scienceqa": pools.source(5_000, ("train",)),
    }
    return pools.get_pool("grpo", sources, filtered=True)
