"""Cost of routing in the drafter: prefill, one round, and bytes held, routed against full.

Both drafters are the same random weights; only how they see pictures differs. A round is what the
drafter does in one: for `full` g steps against a cache with every visual token, for a routed one
the stream over the committed tokens, scoring, top-k, and g steps behind k routed tokens.
"""

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from tiger_jax import runtime
from tiger_jax.command_line import check_at_least
from tiger_jax.data.batches import PromptInputs, make_prompt
from tiger_jax.data.prompts import build_prompt
from tiger_jax.data.scenes import HELD_OUT, make_scene
from tiger_jax.decoding.drafters.protocol import Drafter, PromptArrays, RoundContext
from tiger_jax.decoding.drafters.routed import RoutedDrafter
from tiger_jax.decoding.drafters.vlm import VLMDrafter
from tiger_jax.decoding.engine import Options
from tiger_jax.errors import UserError
from tiger_jax.evaluation import random_pair
from tiger_jax.evaluation.progress import Counter
from tiger_jax.evaluation.tables import markdown
from tiger_jax.models.interface import Params
from tiger_jax.ops.sampling import SamplingMode
from tiger_jax.pipeline import Pipeline
from tiger_jax.routing.router import RouterConfig, init_router

FULL, ROUTED = "full", "routed"
QUESTION = "Describe the picture."
HEADER = (
    "visual tokens", "drafter", "prefill ms", "pictures ms", "round ms", "cache MiB", "bank MiB"
)  # fmt: skip


def evaluate(config: Any) -> tuple[dict, str]:
    """Run the routing_cost config: (report, text to print). Raises UserError."""
    check(config)
    dtype = config.dtype or runtime.default_dtype()
    sizes = config.drafter.to_dict()
    counter, rows = Counter(2 * len(config.visual_tokens), "drafters timed"), []
    with tempfile.TemporaryDirectory() as temporary:
        folder = random_pair.write_model(Path(temporary) / "d", "drafter", sizes, config.seed)
        alone = Pipeline.load(folder, dtype=dtype)
        parameters = random_pair.count_params(folder)
    pairs = _pairs(config, alone)
    for wanted in config.visual_tokens:
        prompt = _prompt(alone, wanted, config.seed)
        for name, pair in pairs.items():
            rows.append({"drafter": name} | _measure(config, pair, prompt))
            counter.add(1)
    report = {
        "settings": config.to_dict(), "parameters": parameters,
        "hardware": str(jax.devices()[0].device_kind), "dtype": str(dtype), "rows": rows,
    }  # fmt: skip
    return report, text(report)


def check(config: Any) -> None:
    """UserError for the first field that no run can have."""
    check_at_least(config, 1, "draft_length", "new_tokens", "rounds", "repeats", "routed_tokens")
    check_at_least(config.drafter, 1, *random_pair.SIZES, "max_position_embeddings")
    if not config.visual_tokens or min(config.visual_tokens) < 1:
        raise UserError(f"visual_tokens: expected positive numbers, got {config.visual_tokens}")
    RouterConfig(routed_tokens=config.routed_tokens, pooled_tokens=config.pooled_tokens)
    if config.dtype not in ("", "float32", "bfloat16"):
        raise UserError(f"dtype: expected float32, bfloat16 or nothing, got {config.dtype!r}")


def text(report: Mapping[str, Any]) -> str:
    """The table, and under it what its numbers mean."""
    settings = report["settings"]
    cells = [
        [
            str(row["visual_tokens"]), row["drafter"], f"{1e3 * row['prefill_seconds']:.1f}",
            f"{1e3 * row['encode_seconds']:.1f}", f"{1e3 * row['round_seconds']:.2f}",
            f"{row['cache_bytes'] / 2**20:.2f}", f"{row['bank_bytes'] / 2**20:.2f}",
        ]
        for row in report["rows"]
    ]  # fmt: skip
    return "\n".join([
        markdown(HEADER, cells),
        "",
        f"A drafter of {report['parameters'] / 1e6:.0f} M random parameters, {report['dtype']}, "
        f"batch 1, g {settings['draft_length']}, k {settings['routed_tokens']}, "
        f"{settings['pooled_tokens']} pooled tokens a picture, {report['hardware']}. Median of "
        f"{settings['repeats']}.",
        "prefill: pictures and prompt, of which `pictures` is encoding them, the same in both. "
        "round: drafting g tokens, the stream and the choice included. cache: keys and values; "
        "bank: visual tokens and their projections, which a routed drafter holds besides.",
    ])  # fmt: skip


def _pairs(config: Any, alone: Pipeline) -> dict[str, Pipeline]:
    """The model drafting for itself, seeing all visual tokens or k."""
    model, params = alone.engine.model, alone.engine.params
    router = RouterConfig(routed_tokens=config.routed_tokens, pooled_tokens=config.pooled_tokens)
    routed = params | {
        "router": init_router(jax.random.key(config.seed), config.drafter.hidden_size)
    }
    drafters = {
        FULL: (VLMDrafter(model, config.draft_length), params),
        ROUTED: (RoutedDrafter(model, config.draft_length, router), routed),
    }
    return {
        name: dataclasses.replace(
            alone,
            engine=dataclasses.replace(alone.engine, drafter=drafter, drafter_params=weights),
        )
        for name, (drafter, weights) in drafters.items()
    }


def _prompt(pipeline: Pipeline, wanted: int, seed: int) -> PromptInputs:
    """One question about as many pictures as have about `wanted` visual tokens, at least one."""

    def ask(count: int) -> PromptInputs:
        pictures = [make_scene(seed, HELD_OUT + i).image for i in range(count)]
        rendered = build_prompt(pipeline.processor, QUESTION, count)
        return make_prompt(pipeline.processor, pipeline.config, rendered, pictures)

    each = int((ask(1).image_ids >= 0).sum())
    return ask(max(round(wanted / each), 1))


def _measure(config: Any, pair: Pipeline, inputs: PromptInputs) -> dict:
    engine, prompt = pair.engine, pair.arrays([inputs])
    drafter, params = engine.drafter, engine.drafter_params
    capacity = prompt.tokens.shape[1] + config.new_tokens + drafter.spec.nodes

    def prefill() -> Any:
        return _prefill(drafter, params, prompt, capacity)

    state, context = jax.block_until_ready(prefill()), _context(pair, prompt)
    rounds = _seconds(config, lambda: _rounds(drafter, params, state, context, config.rounds))
    cache = state.cache if hasattr(state, "cache") else state
    held = _bytes(state.bank) if hasattr(state, "bank") else 0
    return {
        "visual_tokens": int((inputs.image_ids >= 0).sum()),
        "prefill_seconds": _seconds(config, prefill),
        "encode_seconds": _seconds(config, lambda: _encode(drafter, params, prompt.tiles)),
        "round_seconds": rounds / config.rounds,
        "cache_bytes": _bytes(cache),
        "bank_bytes": held,
    }


def _context(pair: Pipeline, prompt: PromptArrays) -> RoundContext:
    """A first round at the end of the prompt."""
    request, limits, _, _ = pair.engine.prepare(prompt, [Options()])
    last = jnp.full(prompt.lengths.shape, pair.config.eos_token_ids[0], jnp.int32)
    return RoundContext(
        pending=last, previous=last, lengths=prompt.lengths, rope_deltas=prompt.rope_deltas,
        active=jnp.ones_like(last, bool), sampling=request, drawable=limits.drawable,
    )  # fmt: skip


@partial(jax.jit, static_argnames=("drafter", "capacity"))
def _prefill(drafter: Drafter, params: Params, prompt: PromptArrays, capacity: int) -> Any:
    taps = jnp.zeros((*prompt.tokens.shape, 0))  # neither drafter reads any
    return drafter.prefill(params, prompt, taps, capacity)


@partial(jax.jit, static_argnames=("drafter",))
def _encode(drafter: Drafter, params: Params, tiles: Array) -> Array:
    return drafter.model.encode_images(params, tiles)


@partial(jax.jit, static_argnames=("drafter", "rounds"))
def _rounds(
    drafter: Drafter, params: Params, state: Any, context: RoundContext, rounds: int
) -> Array:
    """Proposals, each from the last token of the one before."""

    def body(_: Array, carry: tuple[Array, Any]) -> tuple[Array, Any]:
        pending, inner = carry
        tree, inner = drafter.propose(
            params, inner, context.replace(pending=pending), SamplingMode.GREEDY
        )
        return tree.tokens[:, -1], inner

    return lax.fori_loop(0, rounds, body, (context.pending, state))[0]


def _seconds(config: Any, run: Callable[[], Any]) -> float:
    """Median, compilation left out."""
    times = []
    for _ in range(config.repeats + 1):
        begin = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])


def _bytes(tree: Any) -> int:
    return int(sum(np.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree)))
