"""Acceptance alignment: the verifier's pass, what counts, and that a step learns.

B: examples, M: prefixes, K: sampled blocks, g: draft length.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from draft_cases import (
    blocks_of,
    drafter_parts,
    full_forward,
    make_case,
    make_items,
    prompt_until,
)

from tiger_jax.decoding.engine import Engine
from tiger_jax.routing.router import RouterConfig
from tiger_jax.testing.tiny import tiny_model
from tiger_jax.training import align_step, loop, rollout
from tiger_jax.training.align_step import AlignmentStep, AlignSettings
from tiger_jax.training.draft_blocks import BlockDrafter
from tiger_jax.training.interruption import StopRequest
from tiger_jax.training.optimizer import OptimizerSettings, make_optimizer
from tiger_jax.training.train_state import TrainState
from tiger_jax.training.train_step import make_train_step

ROUTER = RouterConfig("tiger", routed_tokens=3)
G, K, END = 3, 2, (2, 9)
SETTINGS = AlignSettings(samples=K, reward="expected_prefix", route_weight=0.3)


@pytest.fixture(scope="module")
def verifier():
    return tiny_model(0, layers=1)


@pytest.fixture(scope="module")
def drafter():
    """(drafter, params)."""
    model, params = drafter_parts(hidden=16, layers=1)
    return BlockDrafter(model, ROUTER), params


def batch_of(drafter, seed):
    config = drafter[0].model.config
    return make_case(config, ROUTER, make_items(config, seed=seed, g=G), block_multiple=4)


@pytest.fixture(scope="module")
def case(drafter):
    return batch_of(drafter, 0)


def test_verifier_branches_are_its_own_full_forward(verifier, case):
    """Every drafted place against [prompt, response up to the anchor, block] standing alone."""
    shape = (*case.batch.anchors.shape, K, G)
    tokens = np.random.default_rng(1).integers(3, 90, shape).astype(np.int32)
    verify = jax.jit(align_step.verify_blocks, static_argnums=0)
    got = verify(verifier[0], verifier[1], case.batch, jnp.asarray(tokens))
    prompts, found = [], []
    for b, m, q, r in blocks_of(case.items):
        for k in range(K):
            before = prompt_until(case.items[b], q, r + 1)
            prompts.append(before.followed_by(tokens[b, m, k]))
            found.append(got[b, m, k])
    want = full_forward(*verifier, prompts)
    for row, prompt in enumerate(prompts):
        last = len(prompt.tokens) - G - 1
        np.testing.assert_allclose(found[row], want[row, last : last + G], atol=1e-5)


def test_rollout_metrics_by_hand(case):
    """Two prefixes of two blocks, the third a pad. End token 2.

    block [5 6 7] coins 1 1 0 -> A 2;  [5 2 7] coins 1 1 1 -> A 2 (the end rule's third is no token)
    block [5 6 7] coins 0 1 1 -> A 0;  [5 6 7] coins 1 1 1 -> A 3
    """
    batch = case.batch.replace(anchors=jnp.array([[1, 2, -1]]))
    tokens = jnp.array([[[[5, 6, 7], [5, 2, 7]], [[5, 6, 7], [5, 6, 7]], [[5, 5, 5], [5, 5, 5]]]])
    coins = jnp.array(
        [[[[1, 1, 0], [1, 1, 1]], [[0, 1, 1], [1, 1, 1]], [[1, 1, 1], [1, 1, 1]]]], bool
    )
    paid = jnp.array([[[2.0, 3.0], [0.0, 3.0], [9.0, 9.0]]])
    spread = jnp.array([[0.5, 0.0, 7.0]])
    metrics = align_step._rollout_metrics(batch, tokens, coins, paid, spread, (2,))
    got = {name: tuple(map(float, pair)) for name, pair in metrics.items()}
    assert got == {
        "A": (7, 4), "P(A>=2)": (3, 4), "P(A>=4)": (0, 4), "P(A>=8)": (0, 4), "reward": (8, 4),
        "reward_std": (0.5, 2), "frac_zero_std": (1, 2), "token_acceptance": (9, 11),
    }  # fmt: skip


def disturbed(batch):
    """Other values wherever nothing is said: text, prefix and stream padding, laws and tokens
    behind a block's end, blocks that are none."""
    none, live = (batch.anchors < 0)[..., None], batch.live
    prefix = jnp.arange(batch.prefix_tokens.shape[1])[None] >= batch.prefix_lengths[:, None]
    stream = batch.stream
    behind = jnp.arange(stream.tokens.shape[1])[None] >= stream.lengths[:, None]
    changed = batch.replace(
        tokens=jnp.where(batch.segments == 0, 50, batch.tokens),
        prefix_tokens=jnp.where(prefix, 50, batch.prefix_tokens),
        stream=stream.replace(tokens=jnp.where(behind, 50, stream.tokens)),
        block_tokens=jnp.where(live, batch.block_tokens, 50),
        block_logprobs=jnp.where(live, batch.block_logprobs, -9.0),
        law_ids=jnp.where(live[..., None], batch.law_ids, 7),
        law_logprobs=jnp.where(live[..., None], batch.law_logprobs, -1.0),
        route_ids=jnp.where(none, 1, batch.route_ids),
        route_weights=jnp.where(none, 0.2, batch.route_weights),
    )
    assert (changed.tokens != batch.tokens).any()
    assert (changed.block_tokens != batch.block_tokens).any()
    return changed


def same_sums(first, second):
    np.testing.assert_allclose(float(first.weight), float(second.weight))
    np.testing.assert_allclose(*(float(s.metrics["loss"][0]) for s in (first, second)), rtol=1e-6)
    pairs = zip(jax.tree.leaves(first.gradients), jax.tree.leaves(second.gradients), strict=True)
    scale = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(first.gradients))
    for one, two in pairs:
        np.testing.assert_allclose(one, two, atol=1e-6 * scale)


def make_state(drafter, optimizer):
    """A fresh state, with its own arrays: an update gives those of its state away."""
    params = jax.tree.map(jnp.copy, drafter[1])
    return TrainState(
        params=params, opt_state=optimizer.init(params), step=jnp.zeros((), jnp.int32),
        key=jax.random.key_data(jax.random.key(0)),
    )  # fmt: skip


@pytest.fixture(scope="module")
def optimizer():
    return make_optimizer(OptimizerSettings(learning_rate=3e-3, steps=100, weight_decay=0.0))


def test_expected_acceptance_learns(drafter, case, optimizer):
    """E[A] rises on one batch; padding changes nothing; a batch without blocks is no nan."""
    loss = align_step.make_expected_acceptance_loss(drafter[0], SETTINGS)
    step = make_train_step(loss, optimizer)
    state = make_state(drafter, optimizer)
    same_sums(step.start(state, case.batch), step.start(state, disturbed(case.batch)))
    empty = case.batch.replace(
        anchors=jnp.full_like(case.batch.anchors, -1),
        block_lengths=jnp.zeros_like(case.batch.block_lengths),
    )
    nothing = step.start(state, empty)
    assert float(nothing.weight) == 0
    assert all(np.isfinite(x).all() and not x.any() for x in jax.tree.leaves(nothing.gradients))
    values = []
    for _ in range(12):
        state, metrics = step(state, [case.batch])
        value, count = map(float, metrics["expected_A"])
        values.append(value / count)
    assert int(count) == 6
    assert values[-1] > 1.3 * values[0]
    assert values[-1] < G


class Twice:
    """A stream of the same two batches."""

    def __init__(self, batches):
        self.batches, self.place = batches, 0

    def __next__(self):
        self.place += 1
        return self.batches[self.place % len(self.batches)]

    def get_state(self):
        return {"place": self.place}

    def set_state(self, state):
        self.place = state["place"]


class Silent:
    """Stands for checkpoints, metric log and progress."""

    def __init__(self):
        self.written = []

    def write(self, step, scalars, prefix="train"):
        self.written.append(dict(scalars))

    def __getattr__(self, name):
        return lambda *args, **kwargs: {}


def test_grpo_in_the_loop(drafter, verifier, case, optimizer):
    """Two micro-batches a step: sampled and scored with the same weights, one update."""
    batches = [case.batch, batch_of(drafter, 0).batch]
    already = sum(
        program._cache_size()
        for program in (rollout.sample_blocks, align_step.verify_blocks, align_step.score_blocks)
    )
    update = make_train_step(align_step.make_grpo_loss(drafter[0], SETTINGS, END), optimizer)
    step = AlignmentStep(
        drafter=drafter[0], settings=SETTINGS,
        verifier=Engine(*verifier, np.arange(97) < 95, str), end_ids=END,
        reference_params=drafter[1], update=update,
    )  # fmt: skip
    state = make_state(drafter, optimizer)
    scored = step.score(state.params, case.batch, jax.random.key(0))
    check_scores(scored)
    other = dataclasses.replace(scored, batch=disturbed(case.batch))
    same_sums(update.start(state, scored), update.start(state, other))
    # the reference is the drafter itself, so far
    metrics = {name: float(a) / float(b) for name, (a, b) in
               update.start(state, scored).metrics.items()}  # fmt: skip
    assert abs(metrics["kl"]) < 1e-4
    assert 0 < metrics["entropy"] < np.log(97)
    silent = Silent()
    settings = loop.LoopSettings(steps=2, accumulate=2, log_every=1, unit_metric="reward")
    observers = loop.Observers.__new__(loop.Observers)
    observers.__dict__.update(checkpoints=silent, metric_log=silent, progress=silent, evaluate=None)
    before = np.asarray(state.params["router"]["query"]["kernel"])
    state = loop.run_loop(state, step, Twice(batches), settings, observers,
                          place=lambda batch: batch, stop=StopRequest())  # fmt: skip
    assert int(state.step) == 2
    assert np.abs(np.asarray(state.params["router"]["query"]["kernel"]) - before).max() > 0
    assert {"A", "reward", "kl", "entropy", "frac_zero_std", "route"} <= set(silent.written[0])
    assert (
        step.compiled() - already == 6
    )  # sample, verify, score; first and next micro-batch, update


def check_scores(scored):
    """Coins, chances and advantages obey the rules of rewards.py."""
    tokens, coins = np.asarray(scored.tokens), np.asarray(scored.accepted)
    assert tokens.max() < 95
    chances, advantages = np.asarray(scored.probabilities), np.asarray(scored.advantages)
    assert ((chances >= 0) & (chances <= 1 + 1e-6)).all()
    assert not coins[chances == 0].any()
    np.testing.assert_allclose(advantages.sum(axis=-1), 0, atol=1e-5)
    live = np.asarray(scored.batch.anchors) >= 0
    assert (np.abs(advantages[live]).max(axis=-1) > 0).any()
