"""One answer, round by round: which patches the router took, what was drafted, what was accepted.

    python -m tiger_jax.evaluate --config configs/eval/routes.py

A view of one request for people; training and tables never read it. `decode --trace` shows the same
for any request (tiger_jax/traces).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tiger_jax import embedded, runtime
from tiger_jax.data.records import Request
from tiger_jax.decoding.engine import Options
from tiger_jax.decoding.trace import Recorder
from tiger_jax.errors import UserError
from tiger_jax.pipeline import Pipeline
from tiger_jax.traces.round_pictures import write_sheet
from tiger_jax.traces.story import ACCEPTED, RoundStory, Story, tell


def evaluate(config: Any) -> tuple[dict, str]:
    """Decode one request with a routed drafter and draw its rounds. Raises UserError."""
    if config.picture and Path(config.picture).suffix.lower() != ".png":
        raise UserError(f"picture: expected a name that ends in .png, got {config.picture}")
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
    story = trace(pipeline, request, Options(max_new_tokens=config.max_new_tokens))
    if config.picture:
        try:
            write_sheet(Path(config.picture), story)
        except OSError as error:
            raise UserError(f"picture: expected a file that can be written, got {error}") from None
    report = {"rounds": [_entry(round_) for round_ in story.rounds], "prompt": config.prompt}
    return report, "\n".join(_lines(story.rounds))


def trace(pipeline: Pipeline, request: Request, options: Options) -> Story:
    """One answer with its rounds. Raises UserError."""
    prepared, recorder = pipeline.prepare(request, options), Recorder(1)
    output = pipeline.run([prepared], 1, recorder=recorder).outputs[0]
    return tell(pipeline, prepared, output, recorder.rounds[0])


def _entry(round_: RoundStory) -> dict:
    """A round for the JSON report: texts, and boxes (top, left, bottom, right) in pixels."""
    accepted, own = _texts(round_)
    marks = [
        {"score": mark.score, "place": mark.place, "box": mark.box} for mark in round_.marks or ()
    ]
    return {"accepted": accepted, "replacement": own, "routed": marks}


def _texts(round_: RoundStory) -> tuple[str, str]:
    """Text of the accepted drafts, and of the verifier's own token."""
    accepted = "".join(token.text for token in round_.tokens if token.fate == ACCEPTED)
    return accepted.strip(), "".join(token.text for token in round_.tokens if token.is_own)


def _lines(rounds: Sequence[RoundStory]) -> list[str]:
    width = max((len(_texts(round_)[0]) for round_ in rounds), default=0)
    return [
        "{:3}  {:{}} + {!r}".format(round_.number, _texts(round_)[0], width, _texts(round_)[1])
        for round_ in rounds
    ]
