"""Small tools that the decoding tests share: prompts, settings, one jitted run."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tiger_jax.decoding import autoregressive, prefill, speculative
from tiger_jax.decoding.drafters.protocol import PromptArrays
from tiger_jax.decoding.state import DecodeState, Limits
from tiger_jax.ops.sampling import Sampling, SamplingMode
from tiger_jax.testing.tiny import tiny_model

VOCAB = 97
ROOM = 32
CAPACITY = 96


def sampling_of(batch, temperature=0.0, top_k=0, top_p=1.0, seeds=None):
    """The same sampling settings for every row; seeds 0 .. B - 1 unless given."""
    seeds = np.arange(batch) if seeds is None else seeds
    return Sampling(
        temperature=jnp.full((batch,), temperature, jnp.float32),
        top_k=jnp.full((batch,), top_k, jnp.int32),
        top_p=jnp.full((batch,), top_p, jnp.float32),
        seeds=jnp.asarray(seeds, jnp.uint32),
    )


def limits_of(batch, max_new=24, stop_ids=(), vocab=VOCAB, undrawable=2):
    """The same limits for every row; `max_new` may be one number per row."""
    stops = np.full((batch, 2), -1, np.int32)
    stops[:, : len(stop_ids)] = stop_ids
    return Limits(
        stop_ids=jnp.asarray(stops),
        max_new_tokens=jnp.asarray(np.broadcast_to(np.asarray(max_new, np.int32), (batch,))),
        drawable=jnp.arange(vocab) < vocab - undrawable,
    )


def prompts_of(batch, seed=0, length=16):
    """Random prompts of different lengths, padded on the right."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(2, length + 1, batch).astype(np.int32)
    tokens = rng.integers(3, VOCAB - 2, (batch, length)).astype(np.int32)
    tokens[np.arange(length)[None] >= lengths[:, None]] = VOCAB - 1
    return PromptArrays(jnp.asarray(tokens), jnp.asarray(lengths), None, None)


def rows_of(prompt, rows):
    """Some rows of a batch of text prompts."""
    rows = jnp.asarray(rows)
    return PromptArrays(prompt.tokens[rows], prompt.lengths[rows], None, None)


@dataclasses.dataclass(frozen=True)
class Runner:
    """A tiny verifier; `run` decodes with it, with or without a drafter."""

    model: object
    params: object

    def start(self, prompt, sampling, limits, mode, drafter=None, drafter_params=None):
        return _start(
            model=self.model, drafter=drafter, params=self.params, drafter_params=drafter_params,
            prompt=prompt, request=sampling, limits=limits, capacity=CAPACITY, room=ROOM, mode=mode,
        )  # fmt: skip

    def run(
        self, prompt, sampling, limits, mode=SamplingMode.GREEDY, drafter=None,
        drafter_params=None,
    ) -> DecodeState:  # fmt: skip
        state = self.start(prompt, sampling, limits, mode, drafter, drafter_params)
        common = {
            "model": self.model, "params": self.params, "state": state, "request": sampling,
            "limits": limits, "mode": mode,
        }  # fmt: skip
        if drafter is None:
            return _plain(**common, steps=jnp.int32(1000))
        return _speculative(
            **common, drafter=drafter, drafter_params=drafter_params, rounds=jnp.int32(1000)
        )


_start = functools.partial(
    jax.jit, static_argnames=("model", "drafter", "capacity", "room", "mode")
)(prefill.start)
_plain = functools.partial(jax.jit, static_argnames=("model", "mode"))(autoregressive.decode)
_speculative = functools.partial(jax.jit, static_argnames=("model", "drafter", "mode"))(
    speculative.decode
)


def emitted(state):
    """Tokens of each row."""
    tokens, counts = np.asarray(state.tokens), np.asarray(state.counts)
    return [tokens[row, : counts[row]].tolist() for row in range(len(counts))]


def accepted(state):
    """Accepted lengths of each row's rounds."""
    lengths, rounds = np.asarray(state.accepted), np.asarray(state.rounds)
    return [lengths[row, : rounds[row]].tolist() for row in range(len(rounds))]


@pytest.fixture(scope="session")
def runner():
    return Runner(*tiny_model(0, vocab=VOCAB))


@pytest.fixture(scope="session")
def small():
    """A random drafter: another model, other weights."""
    return tiny_model(1, vocab=VOCAB, hidden=16)


def run_poisoned(runner, drafter, params, prompt, sampling, limits):
    """24 greedy rounds; between them, what lies behind the committed rows becomes 1e9."""

    def poison(cache, first):
        behind = jnp.arange(cache.capacity)[None] >= first[:, None]
        return jax.tree.map(lambda rows: jnp.where(behind[:, None, :, None], 1e9, rows), cache)

    @jax.jit
    def round_of(state):
        # The drafter writes the row of the last committed token again.
        dirty = state.replace(
            cache=poison(state.cache, state.lengths),
            drafter=poison(state.drafter, state.lengths - 1),
        )
        return speculative.decode_round(
            runner.model, drafter, runner.params, params, dirty, sampling, limits,
            mode=SamplingMode.GREEDY,
        )  # fmt: skip

    state = runner.start(prompt, sampling, limits, SamplingMode.GREEDY, drafter, params)
    for _ in range(24):
        state = round_of(state)
    return state


def assert_plain(state, plain):
    """The tokens, ends and log-probabilities of plain decoding."""
    assert emitted(state) == emitted(plain)
    np.testing.assert_array_equal(state.finish, plain.finish)
    for row, tokens in enumerate(emitted(plain)):
        np.testing.assert_allclose(
            state.logprobs[row, : len(tokens)], plain.logprobs[row, : len(tokens)], atol=2e-5
        )
