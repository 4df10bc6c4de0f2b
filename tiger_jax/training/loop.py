"""The training loop: draw, step, look at the step before, now and then log, evaluate and save.

It knows no objective: an objective is a TrainStep, or what wraps one, and a stream of batches. The
host never waits for the step that it has just started; the metrics of a step are read after the
next one is under way, and a checkpoint is written while the steps behind it run.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import jax

from tiger_jax.errors import UserError
from tiger_jax.training.checkpoint import RunCheckpoints
from tiger_jax.training.interruption import StopRequest
from tiger_jax.training.metric_log import MetricLog
from tiger_jax.training.profile import StepProfile
from tiger_jax.training.progress import Progress
from tiger_jax.training.train_state import TrainState
from tiger_jax.training.train_step import Metrics


class NonFiniteLoss(ArithmeticError):
    """The loss or the gradient of a step is not a number; names the step and its records."""


@runtime_checkable
class BatchStream(Protocol):
    """An endless input that can say and take its position, as grain's iterators do."""

    def __next__(self) -> Any: ...

    def get_state(self) -> dict: ...

    def set_state(self, state: dict) -> None: ...


@dataclasses.dataclass(frozen=True)
class LoopSettings:
    """How long, and how often what. All intervals are in steps; 0 = only at the end."""

    steps: int
    accumulate: int = 1
    """Batches of the stream that make one step."""
    log_every: int = 10
    checkpoint_every: int = 200
    evaluate_every: int = 200
    unit_metric: str = "loss"
    """The metric whose count is the work done, for the throughput."""


@dataclasses.dataclass
class Observers:
    """Where a run reports to."""

    checkpoints: RunCheckpoints
    metric_log: MetricLog
    progress: Progress
    evaluate: Callable[[Any], dict[str, float]] | None = None
    """params -> held-out metrics."""
    samples: Callable[[Any], dict[str, str]] | None = None
    """params -> texts to look at, when it evaluates."""
    learning_rate: Callable[[int], Any] | None = None
    """Updates made before -> learning rate, as an optax schedule."""
    profile: StepProfile | None = None


@dataclasses.dataclass
class _Pending:
    """A step that is running on the device."""

    step: int
    records: str
    """Which records it saw, for an error message."""
    metrics: Metrics


def run_loop(
    state: TrainState, train_step: Callable[[TrainState, list], tuple[TrainState, Metrics]],
    stream: BatchStream, settings: LoopSettings, observers: Observers, *,
    place: Callable[[Any], Any], stop: StopRequest,
) -> TrainState:  # fmt: skip
    """Train from state.step to settings.steps or until `stop` asks; either way save a checkpoint
    and wait until it is on disk.

    A checkpoint is also made where an evaluation is the best so far by `keep_best`.
    `place(batch)` puts a host batch on the mesh. Error messages name a step's records by its
    batches' `record_ids`, or by the position of the data where they have none.

    Raises:
        NonFiniteLoss: at the latest one step after it happened, and never after a checkpoint of it.
        UserError: a checkpoint could not be written; those before are still there.
    """
    try:
        state = _train(state, train_step, stream, settings, observers, place, stop)
    except Exception:
        try:
            observers.checkpoints.wait()  # the last good state may be on its way to the disk
        except UserError as failure:
            observers.progress.line(f"error: {failure}")
        raise
    finally:
        if observers.profile:
            observers.profile.close()
    observers.checkpoints.wait()
    return state


def _train(
    state: TrainState, train_step: Callable, stream: BatchStream, settings: LoopSettings,
    observers: Observers, place: Callable[[Any], Any], stop: StopRequest,
) -> TrainState:  # fmt: skip
    step = int(state.step)
    window = MetricWindow()
    pending: _Pending | None = None
    observers.progress.begin(step)
    stopping = stop.agreed()
    while step < settings.steps and not stopping:
        host = [next(stream) for _ in range(settings.accumulate)]
        state, metrics = _traced(observers.profile, train_step, step + 1, state, map(place, host))
        step += 1
        stopping = stop.agreed()
        window.settle(pending)
        pending = _Pending(step, _describe_records(host, stream), metrics)
        last, scores = step == settings.steps or stopping, None
        if last or _due(step, settings.log_every):
            window.settle(pending)
            pending = None
            _report(observers, step, *window.take(settings.unit_metric))
        # Who sends a signal may not wait: a run that stops saves at once.
        if step == settings.steps or (_due(step, settings.evaluate_every) and not stopping):
            scores = _evaluate(observers, step, state)
        checkpoints = observers.checkpoints
        if last or _due(step, settings.checkpoint_every) or checkpoints.is_best(scores):
            window.settle(pending)
            pending = None
            checkpoints.save(step, state, stream.get_state(), scores)
    return state


def _traced(
    profile: StepProfile | None, train_step: Callable, step: int, state: TrainState, batches: Any
) -> tuple[TrainState, Metrics]:
    if profile:
        profile.before(step, state)
    state, metrics = train_step(state, list(batches))
    if profile:
        profile.after(step, state)
    return state, metrics


class MetricWindow:
    """Sums of the metrics since the last report."""

    def __init__(self) -> None:
        self.sums: dict[str, tuple[float, float]] = {}

    def settle(self, pending: _Pending | None) -> None:
        """Wait for a step, check it and add its metrics. Raises NonFiniteLoss."""
        if pending is None:
            return
        for name, (total, count) in jax.device_get(pending.metrics).items():
            total, count = float(total), float(count)
            if not math.isfinite(total):
                raise NonFiniteLoss(f"step {pending.step}: {name} is {total}, {pending.records}")
            before = self.sums.get(name, (0.0, 0.0))
            self.sums[name] = (before[0] + total, before[1] + count)

    def take(self, unit_metric: str) -> tuple[dict[str, float], float]:
        """Means since the last call, and the count of `unit_metric`."""
        means = metric_means(self.sums)
        units = self.sums.get(unit_metric, (0.0, 0.0))[1]
        self.sums = {}
        return means, units


def metric_means(sums: dict[str, tuple[float, float]]) -> dict[str, float]:
    """sum / count of each metric; 0 / 0 is 0."""
    return {name: total / count if count else 0.0 for name, (total, count) in sums.items()}


def add_metrics(parts: Sequence[Metrics]) -> dict[str, tuple[float, float]]:
    """Add up the (sum, count) pairs of several batches, on the host."""
    sums: dict[str, tuple[float, float]] = {}
    for part in jax.device_get(list(parts)):
        for name, (total, count) in part.items():
            before = sums.get(name, (0.0, 0.0))
            sums[name] = (before[0] + float(total), before[1] + float(count))
    return sums


def _report(observers: Observers, step: int, means: dict[str, float], units: float) -> None:
    rates = observers.progress.report(step, means, units)
    if observers.learning_rate:
        rates["learning_rate"] = float(observers.learning_rate(step - 1))
    observers.metric_log.write(step, means | rates)


def _evaluate(observers: Observers, step: int, state: TrainState) -> dict[str, float] | None:
    if observers.samples:
        observers.metric_log.write_text(step, observers.samples(state.params))
    if observers.evaluate is None:
        return None
    scores = observers.evaluate(state.params)
    observers.metric_log.write(step, scores, prefix="held_out")
    text = "  ".join(f"{name} {value:.4g}" for name, value in scores.items())
    observers.progress.line(f"step {step}  held-out: {text}")
    observers.progress.begin(step)
    return scores


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _describe_records(batches: Sequence[Any], stream: BatchStream) -> str:
    """Ids of all records of a step; else where the data stood after them, which finds them too."""
    if all(hasattr(batch, "record_ids") for batch in batches):
        return f"records {[item for batch in batches for item in batch.record_ids]}"
    return f"data position after the step {stream.get_state()}"
