"""The loop on a model of one weight: reports, stops, saves, and refuses to save nonsense."""

import os
import signal

import jax.numpy as jnp
import numpy as np
import pytest

from tiger_jax.sharding.rules import ParamRule
from tiger_jax.training import loop, train_state, train_step
from tiger_jax.training.checkpoint import RunCheckpoints
from tiger_jax.training.interruption import StopRequest
from tiger_jax.training.metric_log import MetricLog
from tiger_jax.training.optimizer import OptimizerSettings, make_optimizer
from tiger_jax.training.progress import Progress, format_seconds


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

    def save(self, step, state, data_state):
        self.saved[step] = (float(state.params["w"][0]), data_state)

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


def run(parts, stream, settings, *, stop=None, evaluate=None):
    make_state, step = parts
    recorder = Recorder()
    observers = loop.Observers(recorder, recorder, recorder, evaluate)
    state = loop.run_loop(
        make_state(), step, stream, settings, observers,
        place=lambda batch: jnp.asarray(np.asarray(batch)), stop=stop or StopRequest(),
    )  # fmt: skip
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
    make_state, step = parts
    recorder = Recorder()
    settings = loop.LoopSettings(steps=9, log_every=100, checkpoint_every=3)
    with pytest.raises(loop.NonFiniteLoss):
        loop.run_loop(
            make_state(), step, Stream(bad=5), settings,
            loop.Observers(recorder, recorder, recorder),
            place=lambda batch: jnp.asarray(np.asarray(batch)), stop=StopRequest(),
        )  # fmt: skip
    assert list(recorder.saved) == [3]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_run_after_its_step_with_a_checkpoint(parts, number):
    class Interrupting(Stream):
        def __next__(self):
            if self.next == 3:
                os.kill(os.getpid(), number)
            return super().__next__()

    before = signal.getsignal(number)
    with StopRequest() as stop:
        state, seen = run(parts, Interrupting(), loop.LoopSettings(steps=50), stop=stop)
    assert int(state.step) == 4
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
