"""What a GPU would do with draft heads at LLaVA-1.6's sizes: bytes, kernels, copies; needs no GPU.

    JAX_PLATFORMS=cpu python -m tiger_jax.evaluate --config configs/eval/head_compile.py \\
        --config.report=head_compile.json
    ... --config.targets="('13b',)" --config.batches="(1,)" --config.cards="('a40',)"

Compiles for described cards with XLA's own GPU compiler, which ".[cuda12]" brings; a minute a
batch and card. Arrays are abstract: no weights are made or read. Times are not known this way.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    """All fields of the measurement."""
    return ml_collections.ConfigDict({
        "task": "head_compile",
        "targets": ("13b", "7b"),  # verifiers: LLaVA-1.6 with Vicuna 13B or 7B
        "cards": ("a40", "h200"),
        "batches": (1, 8, 16),
        "whole_batches": (1, 16),  # compiled with all layers; the others with few_layers
        "few_layers": 2,  # enough to see a layer's kernels, and copies of caches
        "visual_tokens": 2928,  # of one picture of 672 x 672 pixels
        "text_rows": 576,  # prompt and answer
        "routed_tokens": 8,
        "route_every": "step",  # the router inside every head step; or round
        # Of the router's queries and keys; 0 = that of the layer's input, which is 10,240 for the
        # 13B: 120 MB of projections a picture, read for every route.
        "router_width": 128,
        "width": 0,  # of the head; 0 = the verifier's
        "draft_length": 5,  # of the chain
        "tree": (60, 5, 10),  # nodes, expansions, width
        "report": "",  # a JSON file for everything that was read
    })  # fmt: skip
