"""One answer, round by round: which patches the router took, what was drafted, what was accepted.

    python -m tiger_jax.evaluate --config configs/eval/routes.py

A view of one request for people; training and tables never read it.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from tiger_jax import embedded, runtime
from tiger_jax.data.batches import PromptInputs
from tiger_jax.data.images import load_image
from tiger_jax.data.records import Request
from tiger_jax.decoding.drafters.routed import RoutedState
from tiger_jax.decoding.engine import Options
from tiger_jax.errors import UserError
from tiger_jax.evaluation import plots
from tiger_jax.pipeline import Pipeline


@dataclasses.dataclass(frozen=True)
class RoundView:
    """One round of one request."""

    accepted: str
    """Text of the accepted drafts."""
    replacement: str
    """Text of the verifier's own token behind them."""
    places: tuple[tuple[float, float], ...]
    """Centres (y, x in 0..1) of the routed patches in the first picture."""


def evaluate(config: Any) -> tuple[dict, str]:
    """Decode one request with a routed drafter and draw its rounds. Raises UserError."""
    dtype = config.dtype or runtime.default_dtype()
    pipeline = Pipeline.load(
        config.verifier or embedded.verifier(),
        config.drafter or embedded.drafter(kind=embedded.VLM), draft_length=config.draft_length,
        dtype=dtype, selector=config.selector or None,
    )  # fmt: skip
    if pipeline.router is None or not pipeline.router.routes:
        raise UserError(f"drafter: expected one that routes, got selector {config.selector!r}")
    path = config.image or embedded.demo().images[0]
    request = Request(id="1", prompt=config.prompt, images=(path,))
    prepared = pipeline.prepare(request, Options(max_new_tokens=config.max_new_tokens))
    rounds = watch_rounds(pipeline, prepared.inputs, prepared.options)
    if config.picture:
        side = 1 / pipeline.config.vision.grid
        plots.plot_routes(load_image(path), rounds, side, config.picture)
    report = {"rounds": [dataclasses.asdict(view) for view in rounds], "prompt": config.prompt}
    return report, "\n".join(_lines(rounds))


def watch_rounds(pipeline: Pipeline, inputs: PromptInputs, options: Options) -> list[RoundView]:
    """Decode one prompt a round at a time, as streaming does, and look at the state between."""
    engine = pipeline.engine
    prompt = pipeline.arrays([inputs])
    request, limits, room, mode = engine.prepare(prompt, [options])
    state = engine.start(prompt, request, limits, room, mode)
    places = inputs.places[inputs.image_ids >= 0]
    first_picture = inputs.image_ids[inputs.image_ids >= 0] == 0
    seen, views = int(state.counts[0]), []
    while bool(state.active[0]):
        state = engine.decode(state, request, limits, mode, rounds=1)
        count = int(state.counts[0])
        tokens = [int(token) for token in np.asarray(state.tokens[0, seen:count])]
        accepted = int(state.accepted[0, int(state.rounds[0]) - 1])
        chosen = _chosen(jax.device_get(state.drafter), first_picture)
        decode = pipeline.processor.decode
        views.append(
            RoundView(
                accepted=decode(tokens[:accepted]), replacement=decode(tokens[accepted:]),
                places=tuple((float(y), float(x)) for y, x in places[chosen]),
            )
        )  # fmt: skip
        seen = count
    return views


def _chosen(state: RoutedState, of_picture: np.ndarray) -> np.ndarray:
    """Bank rows of the last route that belong to the first picture."""
    rows = np.asarray(state.indices[0])[np.asarray(state.valid[0])]
    return rows[of_picture[rows]]


def _lines(rounds: Sequence[RoundView]) -> list[str]:
    width = max((len(view.accepted) for view in rounds), default=0)
    return [
        f"{number:3}  {view.accepted:{width}} + {view.replacement!r}"
        for number, view in enumerate(rounds, start=1)
    ]
