"""Attention against torch's scaled_dot_product_attention, with masks and grouped heads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tiger_jax.ops import attention

attend = jax.jit(attention.attend)
attend_causal = jax.jit(attention.attend_causal, static_argnames="block")
BATCH, LENGTH, ROWS, DIM = 2, 5, 11, 8


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def torch_attention(queries, keys, values, mask) -> np.ndarray:
    """queries [B, T, H, d], keys and values [B, K, S, d], mask [B, T, S] -> [B, T, H * d]."""
    out = torch.nn.functional.scaled_dot_product_attention(
        torch.tensor(queries).transpose(1, 2), torch.tensor(keys), torch.tensor(values),
        attn_mask=torch.tensor(mask)[:, None], enable_gqa=True,
    )  # fmt: skip
    return out.transpose(1, 2).flatten(2).numpy()


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (6, 2), (3, 1)], ids=str)
def test_free_mask_equals_torch(heads):
    """Query head h reads key head h // G; the heads of one group are neighbours."""
    queries = 3 * draw(BATCH, LENGTH, heads[0], DIM)
    keys, values = draw(BATCH, heads[1], ROWS, DIM), draw(BATCH, heads[1], ROWS, DIM, seed=1)
    mask = np.random.default_rng(2).random((BATCH, LENGTH, ROWS)) < 0.5
    mask[..., 3] = True
    got = attend(*map(jnp.asarray, (queries, keys, values, mask)))
    wanted = torch_attention(queries, keys, values, mask)
    np.testing.assert_allclose(got, wanted, atol=2e-6, rtol=0)


def test_hidden_rows_count_for_nothing():
    """Whatever lies in masked cache rows, the result is the same to the last bit."""
    queries, keys, values = draw(1, 3, 2, DIM), draw(1, 2, ROWS, DIM), draw(1, 2, ROWS, DIM, seed=1)
    mask = np.broadcast_to(np.arange(ROWS) < 6, (1, 3, ROWS))
    clean = attend(*map(jnp.asarray, (queries, keys, values, mask)))
    keys[:, :, 6:], values[:, :, 6:] = 1e4, -1e4
    dirty = attend(*map(jnp.asarray, (queries, keys, values, mask)))
    assert np.array_equal(clean, dirty)


def test_a_row_that_sees_nothing_is_finite():
    queries, keys, values = draw(1, 2, 2, DIM), draw(1, 2, ROWS, DIM), draw(1, 2, ROWS, DIM)
    out = attend(*map(jnp.asarray, (queries, keys, values, np.zeros((1, 2, ROWS), bool))))
    assert np.isfinite(out).all()


@pytest.mark.parametrize(("heads", "block"), [((4, 4), 1), ((4, 2), 4), ((4, 2), 9), ((4, 2), 512)])
def test_causal_blocks_equal_torch(heads, block):
    length = 9
    queries = 3 * draw(BATCH, length, heads[0], DIM)
    keys, values = draw(BATCH, length, heads[1], DIM), draw(BATCH, length, heads[1], DIM, seed=1)
    got = attend_causal(*map(jnp.asarray, (queries, keys, values)), block=block)
    causal = np.broadcast_to(np.tri(length, dtype=bool), (BATCH, length, length))
    wanted = torch_attention(queries, keys.swapaxes(1, 2), values.swapaxes(1, 2), causal)
    np.testing.assert_allclose(got, wanted, atol=2e-6, rtol=0)


def test_bfloat16_scores_stay_in_float32():
    """As close to the float32 result of the same inputs as torch is."""
    arrays = [4 * draw(1, 64, 2, 16), draw(1, 2, 64, 16), draw(1, 2, 64, 16, seed=1)]
    mask = np.tri(64, dtype=bool)[None]
    rounded = [jnp.asarray(a, jnp.bfloat16) for a in arrays]
    out = attend(*rounded, jnp.asarray(mask))
    assert out.dtype == jnp.bfloat16
    exact = torch_attention(*(np.array(a, np.float32) for a in rounded), mask)
    half = [torch.tensor(np.float32(a)).bfloat16() for a in rounded]
    theirs = torch.nn.functional.scaled_dot_product_attention(
        half[0].transpose(1, 2), *half[1:], attn_mask=torch.tensor(mask)[:, None]
    )
    theirs = theirs.transpose(1, 2).flatten(2).float().numpy()
    error = np.linalg.norm(np.float32(out) - exact)
    assert error <= 1.3 * np.linalg.norm(theirs - exact)


@pytest.mark.parametrize(("branches", "length"), [(5, 3), (1, 7)])
def test_blocks_of_branches_change_nothing(branches, length):
    """Against one dense softmax over [shared | own] with a block-diagonal mask; gradients too."""
    rng = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    queries = normal(2, branches, length, 4, 8)
    shared, own = (
        (normal(2, 6, 2, 8), normal(2, 6, 2, 8)),
        tuple(normal(2, branches, length, 2, 8) for _ in range(2)),
    )
    shared_mask = jnp.asarray(rng.random((2, branches, 1, 6)) < 0.7)
    own_mask = jnp.tril(jnp.ones((length, length), bool))[None, None]

    def dense(queries):
        flat = [x.reshape(2, branches * length, *x.shape[3:]) for x in (queries, *own)]
        same = jnp.kron(jnp.eye(branches), own_mask[0, 0].astype(jnp.float32)) > 0
        outer = jnp.broadcast_to(shared_mask, (2, branches, length, 6)).reshape(2, -1, 6)
        mask = jnp.concatenate([outer, jnp.broadcast_to(same[None], (2, *same.shape))], axis=2)
        keys, values = (
            jnp.concatenate([a, b], axis=1) for a, b in zip(shared, flat[1:], strict=True)
        )
        return attention.attend_dense(flat[0], keys, values, mask).reshape(queries.shape)

    def branched(queries, block):
        return attention.attend_branches(
            queries, shared, own, shared_mask, own_mask, block=block
        )[0]  # fmt: skip

    want, pull = jax.vjp(dense, queries)
    for block in (512, 6, 2):
        got, back = jax.vjp(lambda q, block=block: branched(q, block), queries)
        np.testing.assert_allclose(got, want, atol=2e-6)
        np.testing.assert_allclose(back(want)[0], pull(want)[0], atol=5e-6)


@pytest.mark.parametrize(("scores", "block"), [(2**40, 512), (3 * 16 * 7, 4), (1, 1)])
def test_rows_look_at_their_own_segment_in_blocks_of_any_size(monkeypatch, scores, block):
    """Whole, four queries at a time, one at a time."""
    monkeypatch.setattr(attention, "SCORES", scores)
    blocks, over_queries = [], attention._over_queries

    def noted(some, block, *rows):
        blocks.append(block)
        return over_queries(some, block, *rows)

    monkeypatch.setattr(attention, "_over_queries", noted)
    rng = np.random.default_rng(0)
    queries, keys, values = rng.normal(size=(3, 3, 16, 2, 4)).astype(np.float32)
    sizes = [[16], [5], [4, 9, 1]]
    segments = np.full((3, 16), -1, np.int32)
    for b, own in enumerate(sizes):
        segments[b, : sum(own)] = np.repeat(np.arange(len(own)), own)
    mixed = attention.attend_segments(*map(jnp.asarray, (queries, keys, values, segments)))
    received = attention.attention_received(*map(jnp.asarray, (queries, keys, segments)))
    assert blocks == [block] * 2
    for b, own in enumerate(sizes):
        for number in range(len(own)):
            at = np.flatnonzero(segments[b] == number)
            logits = np.einsum("thd,shd->hts", queries[b, at], keys[b, at]) / 2
            weights = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
            expected = np.einsum("hts,shd->thd", weights, values[b, at]).reshape(len(at), 8)
            np.testing.assert_allclose(mixed[b, at], expected, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(received[b, at], weights.mean(axis=(0, 1)), rtol=1e-5)
    np.testing.assert_array_equal(np.asarray(received)[segments < 0], 0.0)
    assert np.isfinite(mixed).all()
