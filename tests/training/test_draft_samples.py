"""Held-out drafts as text: a question, its blocks in order, the accepted part in brackets."""

import jax.numpy as jnp
import numpy as np
from draft_cases import drafter_parts, make_case, make_items

from tiger_jax import draft_samples
from tiger_jax.routing.router import RouterConfig
from tiger_jax.training.draft_blocks import BlockDrafter

ROUTER = RouterConfig("tiger", routed_tokens=3)


def decode(ids):
    return " ".join(map(str, ids))


def case():
    model, params = drafter_parts(hidden=16, layers=1)
    items = make_items(model.config)
    return BlockDrafter(model, ROUTER), params, items, make_case(model.config, ROUTER, items).batch


def test_samples_show_the_question_and_what_is_accepted(monkeypatch):
    """Two of three drafted tokens are accepted in every block, whatever the drafter says."""
    drafter, params, items, batch = case()
    twos = jnp.full(batch.anchors.shape, 2.0)
    monkeypatch.setattr(draft_samples, "_accepted", lambda *_: twos)
    texts = draft_samples.accepted_texts(drafter, decode, params, batch)
    assert list(texts) == ["sample_0", "sample_1"]
    question, said = items[0].example.questions[0], items[0].record.tokens[:5]
    first, *blocks = texts["sample_0"].splitlines()
    roots = [int(r) for q, r in zip(*items[0].blocks[:2], strict=True) if q == 0]
    assert first.strip() == decode([*question, *said[: roots[0] + 1]])
    lengths = [int(n) for q, n in zip(*items[0].blocks[::2], strict=True) if q == 0]
    for line, root, length in zip(blocks, roots, lengths, strict=True):
        drafted = said[root + 1 : root + 1 + length]
        assert line.strip() == f"[{decode(drafted[:2])}]{decode(drafted[2:])}"


def test_accepted_is_where_the_argmax_goes_along(monkeypatch):
    drafter, params, _, batch = case()
    logits = jnp.zeros((*batch.block_tokens.shape, 97)).at[..., 5].set(1.0)
    monkeypatch.setattr(BlockDrafter, "logits", lambda *_: logits)
    fives = batch.replace(block_tokens=jnp.where(batch.live, 5, 7).at[0, 0, 1].set(6))
    got = np.asarray(draft_samples._accepted(drafter, params, fives))
    assert got[0, 0] == 1
    np.testing.assert_array_equal(got[0, 1:], np.asarray(batch.block_lengths)[0, 1:])
