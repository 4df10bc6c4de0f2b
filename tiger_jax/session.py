"""One run of the decode command: requests in, answers and a report out."""

import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

import tiger_jax
from tiger_jax import runtime
from tiger_jax.data.examples import USUAL_SAMPLING
from tiger_jax.data.records import RecordError, Request, read_requests
from tiger_jax.data.videos import VideoSampling
from tiger_jax.decoding import costs, statistics
from tiger_jax.decoding.drafters.tree import DynamicTree, StaticTree
from tiger_jax.decoding.engine import BatchOutput, Options, Output
from tiger_jax.decoding.programs import compiles
from tiger_jax.errors import UserError
from tiger_jax.pipeline import Answer, Pipeline, Prepared, batches
from tiger_jax.routing.router import RouterConfig
from tiger_jax.streaming import Stream
from tiger_jax.traces.tracer import Tracer

CALIBRATION_LENGTH = 8
"""Draft length while `auto` learns the acceptance; the longest that it may choose."""
CALIBRATION_REQUESTS = 4
WINDOW = 16
"""Batches whose requests are looked through for those of one shape."""
WINDOW_BYTES = 2**30
"""Of pictures in memory at once, and one request more: a video takes up to 2 GB (base tiles of
1,536 frames, LLaVA)."""
MEASURED_LENGTHS = (1, 2, 3, 5, 8)

Records = Sequence[Request | RecordError]


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the command line asks for."""

    draft_length: int | None = 5
    """None: chosen from measured costs and acceptance."""
    confidence: float = 0.0
    selector: str | None = None
    """How the drafter sees pictures; None: as its folder says."""
    routed_tokens: int | None = None
    tree: DynamicTree | StaticTree | None = None
    """What a head drafts; None: chains."""
    mesh: Mesh | None = None
    """Where the models are placed; None: the default device."""
    dtype: str | None = None
    batch_size: int = 1
    compare: bool = False
    video: VideoSampling = USUAL_SAMPLING
    video_prompt: str = "v5"
    """How a video stands in a prompt: data.processor.VIDEO_PROMPTS."""
    visual_budget: int | None = None
    """Most visual tokens of a prompt, for a family that knows a budget; None: its default."""
    options: Options = dataclasses.field(default_factory=Options)


@dataclasses.dataclass
class Tally:
    """What was timed over the batches of a run."""

    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    plain_prefill_seconds: float = 0.0
    plain_decode_seconds: float = 0.0
    identical: bool | None = None
    compiled: bool = False
    """Whether the times hold compilation."""

    def add_plain(self, plain: BatchOutput, timed: BatchOutput, same: bool | None) -> None:
        """Add a warmed-up pair of runs of one batch."""
        self.plain_prefill_seconds += plain.prefill_seconds
        self.plain_decode_seconds += plain.decode_seconds
        self.prefill_seconds += timed.prefill_seconds
        self.decode_seconds += timed.decode_seconds
        if same is not None:
            self.identical = same and self.identical is not False


class Session:
    """Loads a pair and answers requests with it."""

    def __init__(
        self, verifier: str | Path, drafter: str | Path | None, settings: Settings,
        tracer: Tracer | None = None,
    ) -> None:  # fmt: skip
        self.settings = settings
        self._tracer = tracer
        self.pipeline = Pipeline.load(
            verifier, drafter,
            draft_length=settings.draft_length or CALIBRATION_LENGTH,
            confidence=settings.confidence,
            dtype=settings.dtype or runtime.default_dtype(),
            selector=settings.selector, routed_tokens=settings.routed_tokens, tree=settings.tree,
            mesh=settings.mesh, video_prompt=settings.video_prompt,
            visual_budget=settings.visual_budget,
        )  # fmt: skip
        self.pipeline = dataclasses.replace(self.pipeline, video=settings.video)
        if settings.draft_length == 0:
            self.pipeline = self.pipeline.plain()
        self._tally = Tally()
        self._costs: costs.Costs | None = None
        self._rounds: list[list[int]] = []
        """Accepted lengths of the answers at the present draft length."""
        self._compared: list[Prepared] = []
        """The first batch that was decoded plainly too; costs are measured on it."""
        self._calibration: dict | None = None

    def answer_one(self, images: list[str], videos: list[str], prompt: str, stream: Stream) -> dict:
        """Answer one request, streaming; unlike in a file of requests, its fault ends the run."""
        if self.settings.draft_length is None:  # one request leaves nothing to calibrate for
            self.pipeline = self.pipeline.with_draft_length(Settings.draft_length)
        request = Request(id="1", prompt=prompt, images=tuple(images), videos=tuple(videos))
        prepared = self.pipeline.prepare(request, self.settings.options)

        def update(_: int, tokens: list[int]) -> None:
            stream.update(self.pipeline.processor.decode(tokens))

        output = self._timed([prepared], update)
        self._rounds.append(output.outputs[0].accepted_lengths)
        stream.end(output.outputs[0].text)
        report = self._report([_answer(prepared, output.outputs[0])])
        return report | {"first_token_seconds": stream.first_token_seconds}

    def answer(self, records: Records, show: Callable[[Answer], None] | None = None) -> dict:
        """Answer many requests in batches; a bad record only spoils its own answer.

        Ctrl-C ends it early: `interrupted` of the report, which has the answers until then.
        """
        answers: dict[int, Answer] = {}
        interrupted = False
        try:
            while len(answers) < len(records):
                self._answer_window(records, answers, show)
        except KeyboardInterrupt:
            interrupted, self._compared = True, []  # costs would take their time
        report = self._report([answers[i] for i in sorted(answers)])
        return report | {"interrupted": interrupted}

    def _answer_window(
        self, records: Records, answers: dict[int, Answer], show: Callable[[Answer], None] | None
    ) -> None:
        """Add the answers to the next records.

        Pictures are read for some batches at a time, and let go batch by batch.
        """
        prepared: dict[int, Prepared] = {}
        first, used = len(answers), 0
        last = min(first + WINDOW * self.settings.batch_size, len(records))
        for index, record in enumerate(records[first:last], first):
            try:
                if isinstance(record, RecordError):
                    raise UserError(f"line {record.line}: {record.message}")
                prepared[index] = self.pipeline.prepare(record, self.settings.options)
                used += prepared[index].inputs.picture_bytes
                if used > WINDOW_BYTES:
                    break
            except UserError as error:
                answers[index] = Answer(record.id, error=str(error))
                if self._tracer is not None:
                    self._tracer.failed.append((record, str(error)))
                if show:
                    show(answers[index])
        places = list(prepared)
        groups = list(batches(list(prepared.values()), self.settings.batch_size))
        for group in groups:
            said = self._answer_group([prepared.pop(places[i]) for i in group], show)
            answers.update(zip((places[i] for i in group), said, strict=True))

    def _answer_group(
        self, group: list[Prepared], show: Callable[[Answer], None] | None
    ) -> list[Answer]:
        """Answers to requests that are decoded together."""
        outputs = self._timed(group).outputs
        answers = [_answer(item, output) for item, output in zip(group, outputs, strict=True)]
        if show:
            for answer in answers:
                show(answer)
        self._rounds += [output.accepted_lengths for output in outputs]
        if self._calibrating and len(self._rounds) >= CALIBRATION_REQUESTS:
            self._choose_draft_length(group)
        return answers

    @property
    def _calibrating(self) -> bool:
        return self.settings.draft_length is None and self._costs is None and self._speculative

    @property
    def _comparing(self) -> bool:
        return self.settings.compare and self._speculative

    @property
    def _speculative(self) -> bool:
        return self.pipeline.engine.drafter is not None

    def _timed(
        self, group: list[Prepared], update: Callable[[int, list[int]], None] | None = None
    ) -> BatchOutput:
        """Decode a group; when comparing, time warm runs of it with and without the drafter."""
        size = self.settings.batch_size
        run = self.pipeline.run if self._tracer is None else self._tracer.recorded(self.pipeline)
        output = run(group, size, update)
        if not self._comparing:
            self._tally.prefill_seconds += output.prefill_seconds
            self._tally.decode_seconds += output.decode_seconds
            self._tally.compiled |= output.compiled
            return output
        self._compared = self._compared or group
        plain = _warm(self.pipeline.plain(), group, size)
        timed = _warm(self.pipeline, group, size)
        # Above temperature 0 the law is the same, the draws are not: there is nothing to compare.
        greedy = [i for i, item in enumerate(group) if item.options.temperature == 0]
        same = all(plain.outputs[i].tokens == output.outputs[i].tokens for i in greedy)
        self._tally.add_plain(plain, timed, same if greedy else None)
        return output

    def _choose_draft_length(self, group: list[Prepared]) -> None:
        """Pick the draft length with the best predicted speed; none if plain decoding wins."""
        arrays = self.pipeline.arrays([p.inputs for p in group], self.settings.batch_size)
        options = [p.options for p in group]
        seen = statistics.pool(self._rounds, 0)
        self._costs = costs.measure(self.pipeline.engine, arrays, options)
        v = costs.verification_costs(self.pipeline.engine, arrays, options, MEASURED_LENGTHS)
        best, speedup = statistics.best_draft_length(seen, self._costs.c, v, self._costs.c_route)
        print(
            f"draft length {best} (predicted speedup {speedup:.2f} at c {self._costs.c:.3f}, "
            f"v {v.get(best, 1.0):.2f})", file=sys.stderr,
        )  # fmt: skip
        self._calibration = {
            "draft_length": CALIBRATION_LENGTH, "A": seen.mean, "requests": len(self._rounds),
            "c": self._costs.c, "c_route": self._costs.c_route,
            "v": {str(length): cost for length, cost in v.items()},
            "chosen": best, "predicted_speedup": speedup,
        }  # fmt: skip
        self._rounds = []
        self.pipeline = self.pipeline.with_draft_length(best)

    def _report(self, answers: list[Answer]) -> dict:
        """Everything counted and timed in this run; null where it was not measured."""
        tally, outputs = self._tally, [a.output for a in answers if a.output]
        seen = statistics.pool(
            self._rounds if self._speculative else [],
            sum(len(o.tokens) for o in outputs),
        )
        measured = self._measured_costs()
        compare = self._comparing and tally.decode_seconds > 0
        report = {
            "requests": [_request_entry(a) for a in answers],
            "A": seen.mean,
            "tau": seen.tau,
            "rounds": sum(o.rounds for o in outputs),
            "tokens": seen.tokens,
            **{f"p_ge_{n}": seen.share_at_least(n) for n in (2, 4, 8)},
            "drafter_kind": self.pipeline.kind,
            "draft_length": self.pipeline.engine.drafter.spec.depth if self._speculative else 0,
            "draft_nodes": self.pipeline.engine.drafter.spec.nodes if self._speculative else 0,
            **_routing_entry(self.pipeline.router),
            "visual_budget": self.pipeline.processor.visual_budget,
            "batch_size": self.settings.batch_size,
            "calibration": self._calibration,
            "dtype": str(jnp.dtype(self.pipeline.engine.model.dtype)),
            "times_include_compilation": tally.compiled,
            "times_include_trace": self._tracer is not None and not compare,
            "c": measured.c if measured else None,
            "c_route": measured.c_route if measured else None,
            "v": measured.v if measured else None,
            "predicted_speedup": None,
            "measured_speedup": (
                tally.plain_decode_seconds / tally.decode_seconds if compare else None
            ),
            "measured_speedup_with_prefill": (
                (tally.plain_prefill_seconds + tally.plain_decode_seconds)
                / (tally.prefill_seconds + tally.decode_seconds) if compare else None
            ),
            "ceiling": 1 / measured.c if measured else None,
            "identical_to_plain": tally.identical,
            "compiles": compiles(),
            "prefill_seconds": tally.prefill_seconds,
            "decode_seconds": tally.decode_seconds,
            "plain_prefill_seconds": tally.plain_prefill_seconds if compare else None,
            "plain_decode_seconds": tally.plain_decode_seconds if compare else None,
            "device": str(jax.devices()[0].device_kind),
            "versions": {"tiger_jax": tiger_jax.__version__, "jax": jax.__version__},
            "interrupted": False,
        }  # fmt: skip
        if measured and seen.tau:
            report["predicted_speedup"] = statistics.predicted_speedup(
                seen.tau, measured.draft_length, measured.c, measured.v, measured.c_route
            )
        return report

    def _measured_costs(self) -> costs.Costs | None:
        """c, c_route and v at the run's own draft length and batch."""
        if not (self._speculative and self._compared):
            return None
        group = self._compared
        arrays = self.pipeline.arrays([p.inputs for p in group], self.settings.batch_size)
        return costs.measure(self.pipeline.engine, arrays, [p.options for p in group])


def read_records(path: str) -> list[Request | RecordError]:
    """Requests of a JSON Lines file, paths taken relative to it."""
    folder = Path(path).parent

    def beside(paths: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(str(folder / path) for path in paths)

    return [
        record if isinstance(record, RecordError) else dataclasses.replace(
            record, images=beside(record.images), videos=beside(record.videos)
        )
        for record in read_requests(path)
    ]  # fmt: skip


def _answer(prepared: Prepared, output: Output) -> Answer:
    return Answer(
        prepared.request.id, output, tokens_per_frame=prepared.inputs.tokens_per_frame
    )  # fmt: skip


def print_answer(answer: Answer) -> None:
    """One line per request."""
    text = f"error: {answer.error}" if answer.error else answer.output.text
    print(f"{answer.id or '?'}\t{text}", flush=True)


def _warm(pipeline: Pipeline, group: list[Prepared], size: int) -> BatchOutput:
    """The median of three runs in which nothing was compiled."""
    runs: list[BatchOutput] = []
    while len(runs) < 3:
        output = pipeline.run(group, size)
        if not output.compiled:
            runs.append(output)
    return sorted(runs, key=lambda run: run.decode_seconds)[1]


def _routing_entry(router: RouterConfig | None) -> dict:
    """How the drafter saw pictures; null without a drafter, and without routing."""
    routes = router is not None and router.routes
    return {
        "selector": router.selector if router else None,
        "routed_tokens": router.routed_tokens if routes else None,
        "pooled_tokens": router.pooled_tokens if routes else None,
    }


def _request_entry(answer: Answer) -> dict:
    output = answer.output
    return {
        "id": answer.id,
        "text": output.text if output else None,
        "tokens": output.tokens if output else [],
        "rounds": output.rounds if output else 0,
        "drafted": output.drafted if output else 0,
        "accepted": sum(output.accepted_lengths) if output else 0,
        "accepted_lengths": output.accepted_lengths if output else [],
        "finish_reason": output.finish_reason if output else None,
        "logprobs": output.logprobs if output else [],
        "frames": len(answer.tokens_per_frame),  # and pictures
        "visual_tokens": sum(answer.tokens_per_frame),
        "tokens_per_frame": sorted(set(answer.tokens_per_frame)),
        "error": answer.error,
    }
