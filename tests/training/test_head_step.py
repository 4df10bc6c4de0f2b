"""What a head is taught at which step: targets, weights and routes, held against the prompts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.training import draft_cases
from tests.training.test_head_blocks import (
    CHECKED,
    FULL,
    checked,
    lively,
    make_head,
    prompt_states,
)
from tiger_jax.decoding.engine import Engine
from tiger_jax.feature_teacher import FeatureTeacher
from tiger_jax.models.head import shared_weights
from tiger_jax.testing.tiny import tiny_model
from tiger_jax.training import head_step
from tiger_jax.training.head_blocks import BlockHead, Unrolled
from tiger_jax.training.head_features import FeatureSettings, with_features
from tiger_jax.training.head_step import HeadLossSettings, make_head_loss

TAPS, KEPT = (1, 2), 40
"""More rows than any bank holds: nothing of a look is cut off."""


@pytest.fixture(scope="module")
def case():
    model, params = tiny_model(3)
    made = draft_cases.make_case(model.config, FULL)
    settings = FeatureSettings(TAPS, kept_rows=KEPT, power=1.0)
    shared = shared_weights(params)
    return model, params, made, with_features(model, settings, params, made.batch, shared)


def test_a_states_target_is_the_one_that_the_verifier_has_there(case):
    """Step u stands for the state of the token before the u-th drafted one: y_{root + u}."""
    batch = case[3]
    got = np.asarray(batch.next_features())
    for b, m, item, question, root in checked(case):
        length = int(batch.draft.block_lengths[b, m])
        prompt = draft_cases.prompt_until(item, question, root + length)
        _, tapped = prompt_states(case[:3], prompt, TAPS)
        np.testing.assert_allclose(got[b, m, :length], tapped[0, -length:], atol=1e-4)


def test_looks_are_the_verifiers_attention_and_end_with_the_block(case):
    _, _, made, batch = case
    looks = np.asarray(batch.looks())
    for b, m in CHECKED:
        length = int(batch.draft.block_lengths[b, m])
        bank = int((made.items[b].example.prefix.image_ids >= 0).sum())
        np.testing.assert_allclose(looks[b, m, :length].sum(-1), 1, atol=1e-5)
        assert (looks[b, m, :length, :bank] > 0).all()
        assert not looks[b, m, :, bank:].any()
        assert not looks[b, m, length:].any()


def routes(batch, steps):
    """Scores that name another row at each step, and what was routed."""
    shape = (*batch.draft.anchors.shape, steps)
    rng = np.random.default_rng(0)
    scores = jnp.asarray(rng.normal(size=(*shape, batch.visual.shape[1])), jnp.float32)
    indices = jnp.broadcast_to(jnp.asarray([0, 2, 10**6]), (*shape, 3))
    return Unrolled(jnp.zeros((*shape, 1)), scores, indices)


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("steps", [1, draft_cases.G])
def test_routes_are_taught_where_the_verifier_looks(case, steps, blocks):
    """A route a step by the look of its own token, one a block by their mean."""
    batch = case[3]
    unrolled = routes(batch, steps)
    loss, metrics = head_step._route_loss(unrolled, batch, blocks)
    looks, live = np.asarray(batch.looks()), np.asarray(batch.draft.live)
    logs = np.asarray(jax.nn.log_softmax(unrolled.scores, axis=-1))
    total, held, units = 0.0, 0.0, 0.0
    for b, m in np.argwhere(live.any(-1)):
        count = live[b, m].sum()
        for u in range(count):
            target = looks[b, m, :count].mean(0) if steps == 1 else looks[b, m, u]
            unit = 1 / count if blocks else 1.0
            total -= unit * (target * logs[b, m, 0 if steps == 1 else u]).sum()
            held += unit * (target[0] + target[2])
            units += unit
    assert float(loss) == pytest.approx(total, rel=1e-4)
    assert float(metrics["route_mass"][0]) == pytest.approx(held, rel=1e-4)
    assert float(metrics["route_mass"][1]) == pytest.approx(units)


def test_later_steps_count_less(case):
    """decay^u: with one loss for all steps the total is the geometric sum over live tokens."""
    block = BlockHead(make_head(case[0], features=TAPS))
    head = lively(block.init_params(jax.random.key(0)))
    batch = case[3]
    parts = {}
    for decay in (1.0, 0.5):
        loss = make_head_loss(block, HeadLossSettings("medusa", decay=decay))
        parts[decay] = loss(head, batch, jax.random.key(0))
    assert float(parts[1.0].weight) == float(parts[0.5].weight) == float(batch.draft.live.sum())
    unrolled = block.unroll(head, batch, jax.random.key(0))
    logs = jax.nn.log_softmax(block.logits(head, batch, unrolled), axis=-1)
    tokens = batch.draft.block_tokens
    losses = -np.asarray(jnp.take_along_axis(logs, tokens[..., None], axis=-1)[..., 0])
    losses = losses * np.asarray(batch.draft.live)
    assert float(parts[1.0].loss) == pytest.approx(losses.sum(), rel=1e-4)
    halved = (losses * np.array([1.0, 0.5, 0.25])).sum()
    assert float(parts[0.5].loss) == pytest.approx(halved, rel=1e-4)


def test_kept_states_are_those_asked_online(case):
    """One pass for the cache and one in training, packed with other neighbours."""
    drawable = np.ones(case[0].config.text.vocab_size, bool)
    engine = Engine(*case[:2], drawable, detokenize=str)
    items = case[2].items
    settings = FeatureSettings(TAPS, kept_rows=KEPT, power=1.0)
    teacher = FeatureTeacher(engine, settings, batch=2)
    batch = case[3]
    for b, item in enumerate(items):
        (kept,) = teacher.read([item.example], [item.record])
        prefix, text = len(item.example.prefix.tokens), len(kept.text)
        bank = len(kept.visual)
        np.testing.assert_allclose(kept.prefix, batch.prefix_features[b, :prefix], atol=1e-4)
        np.testing.assert_allclose(kept.text, batch.text_features[b, :text], atol=1e-4)
        np.testing.assert_allclose(kept.visual, batch.visual[b, :bank], atol=1e-4)
