"""What a distillation step adds up, by hand: the drafter is replaced by given logits and scores.

One example, two blocks of two tokens and one place without a block; vocabulary 3, a bank of 3.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from draft_cases import make_case, make_items

from tiger_jax.ops.kv_cache import Context
from tiger_jax.routing.router import RouterConfig, choose
from tiger_jax.testing.tiny import tiny_model
from tiger_jax.training.distill_step import held_mass, make_distill_loss
from tiger_jax.training.draft_blocks import BlockDrafter, Opened

LOGITS = np.log(np.array([
    [[[0.5, 0.25, 0.25], [0.2, 0.6, 0.2]],
     [[0.25, 0.25, 0.5], [0.9, 0.05, 0.05]],
     [[0.1, 0.1, 0.8], [0.1, 0.1, 0.8]]]
], np.float32))  # fmt: skip
SCORES = np.log(np.array([[[0.5, 0.3, 0.2], [0.1, 0.1, 0.8], [0.6, 0.2, 0.2]]], np.float32))


@dataclasses.dataclass(frozen=True)
class Given(BlockDrafter):
    """Says LOGITS and SCORES whatever it is asked."""

    def open(self, params, stream, tiles, text, anchors, key):
        scores, none = jnp.asarray(SCORES), jnp.zeros((1, 3), jnp.int32)
        nothing = jnp.zeros((1, 3, 0), jnp.int32)
        return Opened(
            context=Context((), ()), visible=nothing.astype(bool), scores=scores,
            routed=choose(scores, 1), embeddings=jnp.zeros((1, 3, 0, 4)), positions=nothing,
            valid=nothing.astype(bool), roots=none, root_positions=none,
        )  # fmt: skip

    def logits(self, params, opened, tokens):
        return jnp.asarray(LOGITS)


@pytest.fixture(scope="module")
def batch():
    """Block 0 drafts tokens 0, 1; block 1 only token 2; block 2 is none."""
    model, _ = tiny_model(hidden=16, layers=1)
    items = make_items(model.config, (((), (2,), (4,)),), g=2)
    made = make_case(model.config, RouterConfig(), items, g=2).batch
    law = np.full((1, 3, 2, 2), -np.inf, np.float32)
    ids = np.full((1, 3, 2, 2), -1, np.int32)
    ids[0, 0], law[0, 0] = [[0, 1], [1, -1]], np.log([[0.5, 0.5], [0.6, 1e-9]])
    ids[0, 1], law[0, 1] = [[2, 0], [0, 1]], np.log([[0.5, 0.25], [0.5, 0.5]])
    return made.replace(
        anchors=jnp.array([[3, 5, -1]]), block_lengths=jnp.array([[2, 1, 0]]),
        block_tokens=jnp.array([[[0, 2], [2, 2], [2, 2]]]),
        law_ids=jnp.asarray(ids), law_logprobs=jnp.asarray(law),
        route_ids=jnp.array([[[0, 2], [1, -1], [0, 1]]]),
        route_weights=jnp.array([[[0.75, 0.25], [0.5, 0.0], [0.5, 0.5]]]),
    )  # fmt: skip


def test_loss_by_hand(batch):
    """KL: (.5 log .5/.5 + .5 log .5/.25) + (.6 against .6, .4 against .4) in block 0, zero at the
    one live token of block 1 (.5, .25 and the rest .25 on both sides). Route: block 0 counts twice,
    block 1 once and its missing half lies on the other rows."""
    loss = make_distill_loss(Given(tiny_model(layers=1)[0], RouterConfig()), 0.3)
    sums = loss({}, batch, jax.random.key(0))
    divergence = 0.5 * np.log(2)
    first = -(0.75 * np.log(0.5) + 0.25 * np.log(0.2))
    second = -(0.5 * np.log(0.1) + 0.5 * np.log(0.9))
    route = 2 * first + second
    np.testing.assert_allclose(float(sums.metrics["kl"][0]), divergence, rtol=1e-4)
    np.testing.assert_allclose(float(sums.metrics["route"][0]), route, rtol=1e-5)
    np.testing.assert_allclose(float(sums.loss), divergence + 0.3 * route, rtol=1e-5)
    assert float(sums.weight) == 3


def test_metrics_by_hand(batch):
    """Block 0: argmax 0 is right, 1 is not 2; block 1: 2 is right. Only block 0 is full: A = 1."""
    loss = make_distill_loss(Given(tiny_model(layers=1)[0], RouterConfig()), 0.3)
    metrics = {name: tuple(map(float, pair)) for name, pair in
               loss({}, batch, jax.random.key(0)).metrics.items()}  # fmt: skip
    assert metrics["agreement"] == (2, 3)
    assert metrics["accepted_greedy"] == (1, 1)
    # routed: row 0, row 2; of their targets they hold .75 (two tokens) and 0 (one)
    np.testing.assert_allclose(metrics["route_mass"], (1.5, 3))
    assert metrics["route"][1] == 3


def test_a_routed_row_that_does_not_exist_holds_nothing(batch):
    routed = choose(jnp.asarray(SCORES)[..., :1], 3)
    assert routed.valid[0].tolist() == [[True, False, False]] * 3
    padded = batch.replace(route_ids=jnp.array([[[0, 1], [3, -1], [-1, 1]]]))
    np.testing.assert_allclose(held_mass(routed, padded), [[0.75, 0.0, 0.0]])
