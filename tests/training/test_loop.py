"""The loop on a model of one weight: reports, stops, saves, and refuses to save nonsense."""

import os
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tiger_jax.errors import UserError
from tiger_jax.sharding.rules import ParamRule
from tiger_jax.training import loop, train_state, train_step
from tiger_jax.training.checkpoint import RunCheckpoints
from tiger_jax.training.interruption import StopRequest
from tiger_jax.training.metric_log import MetricLog
from tiger_jax.training.optimizer import OptimizerSettings, make_optimizer
from tiger_jax.training.profile import StepProfile
from tiger_jax.training.progress import Progress, StepCost, format_seconds


class Batch(np.ndarray):
    """A host batch that knows its records."""

    record_ids: list


class Stream:
    """Counts up; batch number n is [n]."""

    def __init__(self, bad: int | None = None):
        self.next, self.bad = 0, bad

    def __next__(self):
        value = float("nan") if self.next == self.bad else float(self.next)
        batch = np.full((1,), value, np.float32).view(Batch)
        batch.record_ids = [f"scene-{self.next}"]
        self.next += 1
        return batch

    def get_state(self):
        return {"next": self.next}

    def set_state(self, state):
        self.next = state["next"]


class Recorder(RunCheckpoints, MetricLog, Progress):
    """Stands for checkpoints, metric log and progress at once."""

    def __init__(self):
        self.saved, self.scalars, self.lines, self.reports = {}, [], [], []
        self.texts, self.scores, self.best_step, self.on_disk = [], {}, None, True

    def save(self, step, state, data_state, scores=None):
        self.saved[step] = (float(state.params["w"][0]), data_state)
        self.scores[step], self.on_disk = scores, False

    def wait(self):
        self.on_disk = True

    def is_best(self, scores):
        return bool(scores) and self.best_step is not None and self.best_step == scores["step"]

    def write_text(self, step, texts):
        self.texts.append((step, texts))

    def write(self, step, scalars, prefix="train"):
        self.scalars.append((prefix, step, dict(scalars)))

    def begin(self, step):
        pass

    def report(self, step, values, units):
        self.reports.append((step, dict(values), units))
        return {"seconds_per_step": 1.0}

    def line(self, text, *, final=True):
        self.lines.append(text)


@pytest.fixture(scope="module")
def parts(one_device):
    """(make_state, train_step): the loss is w * batch summed, of which each record is a unit."""

    def loss(params, batch, key):
        del key
        return train_step.LossSums(loss=(params["w"] * batch).sum(), weight=jnp.ones(()))

    optimizer = make_optimizer(OptimizerSettings(learning_rate=0.1, steps=100, weight_decay=0.0))

    def make_state():
        return train_state.create_state(
            lambda key: {"w": jnp.ones((1,))}, optimizer, 0, one_device, (ParamRule("w", (None,)),)
        )

    return make_state, train_step.make_train_step(loss, optimizer)


def run(parts, stream, settings, *, stop=None, recorder=None, **observed):
    make_state, step = parts
    recorder = recorder or Recorder()
    observers = loop.Observers(recorder, recorder, recorder, **observed)
    try:
        state = loop.run_loop(
            make_state(), step, stream, settings, observers,
            place=lambda batch: jnp.asarray(np.asarray(batch)), stop=stop or StopRequest(),
        )  # fmt: skip
    finally:
        assert recorder.on_disk  # however it ends
    return state, recorder


def test_reports_cover_every_step_once(parts):
    settings = loop.LoopSettings(steps=5, log_every=2, checkpoint_every=3, evaluate_every=4)
    state, seen = run(parts, Stream(), settings, evaluate=lambda params: {"loss": 7.0})
    assert int(state.step) == 5
    assert [(step, units) for step, _, units in seen.reports] == [(2, 2.0), (4, 2.0), (5, 1.0)]
    assert sorted(seen.saved) == [3, 5]
    assert seen.saved[3][1] == {"next": 3}
    held_out = [(step, values) for prefix, step, values in seen.scalars if prefix == "held_out"]
    assert held_out == [(4, {"loss": 7.0}), (5, {"loss": 7.0})]
    assert seen.reports[0][1]["loss"] == pytest.approx(0.5, abs=0.2)  # (0 * w0 + 1 * w1) / 2


def test_accumulation_draws_all_its_batches_before_it_saves(parts):
    settings = loop.LoopSettings(steps=2, accumulate=3)
    _, seen = run(parts, Stream(), settings)
    assert seen.saved[2][1] == {"next": 6}
    assert seen.reports[-1][2] == 6.0


@pytest.mark.parametrize("log_every", [1, 100])
def test_a_loss_that_is_no_number_names_step_and_records_and_is_never_saved(parts, log_every):
    settings = loop.LoopSettings(steps=9, log_every=log_every, checkpoint_every=3)
    with pytest.raises(loop.NonFiniteLoss, match=r"step 6: .* is nan, records \['scene-5'\]"):
        run(parts, Stream(bad=5), settings)


def test_without_record_ids_the_position_of_the_data_is_named(parts):
    class Nameless(Stream):
        def __next__(self):
            return np.asarray(super().__next__())

    with pytest.raises(loop.NonFiniteLoss, match=r"step 6: .* after the step {'next': 6}"):
        run(parts, Nameless(bad=5), loop.LoopSettings(steps=9))


def test_nothing_is_saved_once_the_weights_are_spoilt(parts):
    seen = Recorder()
    settings = loop.LoopSettings(steps=9, log_every=100, checkpoint_every=3)
    with pytest.raises(loop.NonFiniteLoss):
        run(parts, Stream(bad=5), settings, recorder=seen)
    assert list(seen.saved) == [3]


def test_a_failed_save_does_not_hide_why_the_run_ended(parts):
    class FullDisk(Recorder):
        def wait(self):
            super().wait()
            raise UserError("3: could not be written")

    seen = FullDisk()
    with pytest.raises(loop.NonFiniteLoss):
        run(parts, Stream(bad=5), loop.LoopSettings(steps=9), recorder=seen)
    assert seen.lines == ["error: 3: could not be written"]


def test_the_best_evaluation_is_saved_with_its_scores(parts):
    """Steps 3 and 6 are due anyway; 4 is the best so far."""
    seen, steps = Recorder(), iter((2.0, 4.0, 6.0, 7.0))
    seen.best_step = 4
    settings = loop.LoopSettings(steps=7, log_every=0, checkpoint_every=3, evaluate_every=2)
    run(parts, Stream(), settings, recorder=seen, evaluate=lambda params: {"step": next(steps)})
    assert seen.scores == {3: None, 4: {"step": 4}, 6: {"step": 6}, 7: {"step": 7}}


def test_rates_and_texts_are_those_of_their_step(parts):
    """The rate of step n is the schedule's after n - 1 updates."""
    settings = loop.LoopSettings(steps=4, log_every=2, evaluate_every=3)
    _, seen = run(
        parts, Stream(), settings, learning_rate=lambda count: 0.5**count,
        samples=lambda params: {"sample": "[a]b"},
    )  # fmt: skip
    rates = {step: values["learning_rate"] for _, step, values in seen.scalars}
    assert rates == {2: 0.5, 4: 0.125}
    assert seen.texts == [(3, {"sample": "[a]b"}), (4, {"sample": "[a]b"})]


def test_chosen_steps_are_traced(parts, tmp_path, monkeypatch):
    """Both ends included; a run that ends in between still gives its trace."""
    calls = []
    monkeypatch.setattr(jax.profiler, "start_trace", lambda folder: calls.append(folder))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: calls.append("stop"))

    class Watched(Stream):
        def __next__(self):
            calls.append(self.next + 1)
            return super().__next__()

    settings = loop.LoopSettings(steps=4)
    folder = str(tmp_path / "profile")
    run(parts, Watched(), settings, profile=StepProfile.parse("2:3", tmp_path))
    assert calls == [1, 2, folder, 3, "stop", 4]
    calls.clear()
    run(parts, Watched(), settings, profile=StepProfile.parse("4:9", tmp_path))
    assert calls == [1, 2, 3, 4, folder, "stop"]
    calls.clear()
    run(parts, Watched(), settings, profile=StepProfile.parse("5:9", tmp_path))
    assert calls == [1, 2, 3, 4]
    assert StepProfile.parse("", tmp_path) is None
    for wrong in ("3", "3:", ":3", "3:2", "0:2", "a:b", "-1:2"):
        with pytest.raises(UserError, match="profile: expected first:last step such as 10:12"):
            StepProfile.parse(wrong, tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_run_after_its_step_with_a_checkpoint(parts, number):
    class Interrupting(Stream):
        def __next__(self):
            if self.next == 3:
                os.kill(os.getpid(), number)
            return super().__next__()

    before = signal.getsignal(number)
    with StopRequest() as stop:
        settings = loop.LoopSettings(steps=50, evaluate_every=4)
        evaluate = {"evaluate": lambda params: {"loss": 1.0}}
        state, seen = run(parts, Interrupting(), settings, stop=stop, **evaluate)
    assert int(state.step) == 4
    assert not any(prefix == "held_out" for prefix, _, _ in seen.scalars)  # saves at once
    assert seen.saved == {4: (float(state.params["w"][0]), {"next": 4})}
    assert signal.getsignal(number) == before


def test_a_second_signal_does_not_wait():
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.asked
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_metric_sums_over_batches_of_different_size():
    sums = loop.add_metrics([{"a": (jnp.ones(()), jnp.ones(()))},
                             {"a": (jnp.full((), 8.0), jnp.full((), 2.0))}])  # fmt: skip
    assert loop.metric_means(sums) == {"a": 3.0}  # not the mean of 1 and 4
    assert loop.metric_means({"a": (0.0, 0.0)}) == {"a": 0.0}


def test_times_are_readable():
    assert [format_seconds(x) for x in (5.0, 65.4, 3725.0)] == ["0:05", "1:05", "1:02:05"]


def test_the_line_says_what_share_of_the_card_is_used(monkeypatch, tmp_path):
    """Two steps in 4 s: 2 s a step. 3e12 of 1e13 flops a second; bytes are not known."""
    clock = iter((0.0, 10.0, 14.0))
    monkeypatch.setattr("tiger_jax.training.progress.time.perf_counter", lambda: next(clock))
    cost = StepCost(flops=6e12, bytes_moved=0.0, peak_flops=1e13, peak_bandwidth=7e11)
    with (tmp_path / "line").open("w") as file:
        progress = Progress(12, stream=file, cost=cost)
        progress.begin(2)
        rates = progress.report(4, {"loss": 0.5}, units=100.0)
    assert rates == {"seconds_per_step": 2.0, "tokens_per_second": 25.0, "mfu": 0.3}
    line = (tmp_path / "line").read_text()
    assert line == "step 4/12  loss 0.5  2.000 s/step  25 tokens/s  ETA 0:16  MFU 30.0%\n"
    assert StepCost(flops=6e12).shares(1.0) == {}
    assert StepCost(1.0, 6e9, 0.0, 1e10).shares(2.0) == {"bandwidth_use": 0.3}
