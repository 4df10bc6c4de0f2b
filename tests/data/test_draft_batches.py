"""Where blocks start, and a batch by hand."""

import pickle

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.framed import Shown, framed_prompt
from tests.pictured import pictured_prompt
from tiger_jax.data.draft_batches import (
    BlockPlaces,
    PackDrafts,
    TaughtExample,
    every_block,
    random_blocks,
    stride_blocks,
)
from tiger_jax.data.draft_examples import DraftExample
from tiger_jax.data.packing import pack_texts
from tiger_jax.data.teacher_cache import TeacherRecord
from tiger_jax.testing.tiny import tiny_config


def drafted(blocks: BlockPlaces) -> list[tuple[int, int]]:
    """(question, index in its response) of every drafted token."""
    return [
        (int(q), int(r) + 1 + u)
        for q, r, n in zip(blocks.questions, blocks.roots, blocks.lengths, strict=True)
        for u in range(n)
    ]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=4), st.integers(1, 8),
       st.integers(0, 2**32 - 1))  # fmt: skip
def test_strides_draft_every_token_but_the_first_once(lengths, g, seed):
    blocks = stride_blocks(lengths, g, np.random.default_rng(seed))
    expected = [(q, i) for q, n in enumerate(lengths) for i in range(1, n)]
    assert drafted(blocks) == expected
    assert blocks.lengths.max(initial=1) <= g
    assert (blocks.lengths > 0).all()
    assert blocks.roots.dtype == np.int32


def test_strides_begin_at_every_offset():
    """Length 10, g 3: the first block drafts 3, 1 or 2 tokens, each about a third of the time."""
    first = [stride_blocks([10], 3, np.random.default_rng(s)).lengths[0] for s in range(90)]
    counts = np.bincount(first, minlength=4)
    assert counts[0] == 0
    assert (counts[1:] > 15).all()


def test_every_block_by_hand():
    """Responses of 4, 1 and 2 tokens, g 2."""
    blocks = every_block([4, 1, 2], 2)
    assert list(zip(*(field.tolist() for field in blocks), strict=True)) == [
        (0, 0, 2), (0, 1, 2), (0, 2, 1), (2, 0, 1),
    ]  # fmt: skip
    assert [len(field) for field in every_block([1, 1], 5)] == [0, 0, 0]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=3), st.integers(1, 6),
       st.integers(0, 2**32 - 1))  # fmt: skip
def test_random_blocks_are_different_cuts(lengths, count, seed):
    every = set(zip(*(field.tolist() for field in every_block(lengths, 3)), strict=True))
    blocks = random_blocks(lengths, 3, count, np.random.default_rng(seed))
    chosen = list(zip(*(field.tolist() for field in blocks), strict=True))
    assert len(chosen) == len(set(chosen)) == min(count, len(every))
    assert set(chosen) <= every


def hand_record() -> TeacherRecord:
    """Responses [10 11 12 13] and [20 21]; what is said of token t is t, or t / 100."""
    tokens = np.array([10, 11, 12, 13, 20, 21], np.int32)
    return TeacherRecord(
        lengths=np.array([4, 2], np.int32), tokens=tokens,
        logprobs=(-tokens / 100).astype(np.float32),
        law_ids=np.stack([tokens, tokens + 50], axis=1),
        law_logprobs=np.stack([-tokens / 100, -tokens / 10], axis=1).astype(np.float16),
        route_ids=np.stack([tokens % 7, tokens * 0 - 1], axis=1),
        route_weights=np.stack([tokens / 100, tokens * 0], axis=1).astype(np.float16),
    )  # fmt: skip


def taught(prefix, questions, record, blocks) -> TaughtExample:
    questions = tuple(np.array(q, np.int32) for q in questions)
    places = BlockPlaces(*(np.array(field, np.int32) for field in blocks))
    return TaughtExample(DraftExample("key", prefix, questions), record, places)


def test_a_batch_by_hand():
    """Example 0: one picture of 10 visual tokens behind <s>, questions [3 4] and [5]; example 1:
    text alone, without any block.

        packed    3 4 10 11 12 13 5 20 21 . .
        place     0 1  2  3  4  5 6  7  8
        blocks    root 11 drafts 12 13; root 20 drafts 21
    """
    config = tiny_config()
    picture = pictured_prompt(config, (0,), (1,))
    text = pictured_prompt(config, (), (1, 7, 8))
    short = TeacherRecord(*(field[:1] for field in hand_record()))
    items = [
        taught(picture, [[3, 4], [5]], hand_record(), ([0, 1], [1, 0], [2, 1])),
        taught(text, [[6]], short._replace(lengths=np.array([1], np.int32)), ([], [], [])),
    ]
    pack = PackDrafts(config, 3, 1, "visual", text_multiple=11, block_multiple=3)
    rows = pickle.loads(pickle.dumps(pack))(items)
    pad = config.pad_token_id
    assert rows.prefix_lengths.tolist() == [11, 3]
    assert rows.prefix_tokens[1].tolist() == [1, 7, 8, *[pad] * 13]
    assert (rows.prefix_image_rows[0, 1:11] >= 0).all()
    assert (rows.prefix_image_rows[0, 11:] == -1).all()
    assert (rows.prefix_image_rows[1] == -1).all()
    assert rows.tokens.tolist() == [[3, 4, 10, 11, 12, 13, 5, 20, 21, 0, 0], [6, 10, *[0] * 9]]
    assert rows.segments.tolist() == [[1] * 6 + [2] * 3 + [0] * 2, [1, 1, *[0] * 9]]
    assert rows.positions.tolist() == [
        [11, 12, 13, 14, 15, 16, 11, 12, 13, 0, 0], [3, 4, *[0] * 9],
    ]  # fmt: skip
    assert rows.anchors.tolist() == [[3, 7, -1], [-1, -1, -1]]
    assert rows.block_lengths.tolist() == [[2, 1, 0], [0, 0, 0]]
    assert rows.block_tokens[0].tolist() == [[12, 13, 0], [21, 0, 0], [0, 0, 0]]
    np.testing.assert_allclose(rows.block_logprobs[0, 0], [-0.12, -0.13, 0])
    assert rows.law_ids[0, :2].tolist() == [
        [[12, 62], [13, 63], [-1, -1]], [[21, 71], [-1, -1], [-1, -1]],
    ]  # fmt: skip
    np.testing.assert_allclose(rows.law_logprobs[0, 1, 0], [-0.21, -2.1], rtol=1e-3)
    assert np.isneginf(rows.law_logprobs[0, 1, 1:]).all()
    # of the roots 11 and 20: where the verifier looks from there on
    assert rows.route_ids[0].tolist() == [[4, -1], [6, -1], [-1, -1]]
    np.testing.assert_allclose(rows.route_weights[0, :, 0], [0.11, 0.2, 0], rtol=1e-3)
    assert (rows.anchors[1] == -1).all()
    # the stream: <s> and the pooled token; a bank of ten; everything padded to 16
    assert rows.stream.lengths.tolist() == [2, 3]
    assert rows.stream.visual.tolist() == [[-1, -2, *[-1] * 14], [-1] * 16]
    assert rows.stream.bank_rows.shape == (2, 16)
    np.testing.assert_array_equal(rows.stream.bank_rows[0, :10], rows.prefix_image_rows[0, 1:11])
    assert (rows.stream.bank_rows[0, 10:] == -1).all()
    assert len(rows.tiles) == 2 * -(-len(picture.tiles) // 2)
    assert (rows.stream.bank_rows[1] == -1).all()


def test_texts_go_on_behind_the_prefix_on_every_axis():
    """Example 0: 5 S and a picture of 2 x 3 tokens, which spans 3: its texts begin at 5, and not
    at the 8 tokens that it has; example 1: text alone, both questions at 3."""
    config = tiny_config()
    picture = framed_prompt(5, Shown(2, 3)).cut(8)
    text = framed_prompt(5, 6, 7)
    assert (picture.next_position, len(picture.tokens)) == (5, 8)
    blocks = ([0, 1], [1, 0], [2, 1])
    items = [taught(prefix, [[3, 4], [5]], hand_record(), blocks) for prefix in (picture, text)]
    rows = PackDrafts(config, 3, 1, "visual", text_multiple=11, block_multiple=3)(items)
    assert rows.positions.tolist() == [
        [5, 6, 7, 8, 9, 10, 5, 6, 7, 0, 0], [3, 4, 5, 6, 7, 8, 3, 4, 5, 0, 0],
    ]  # fmt: skip
    assert rows.prefix_positions.shape == (2, 16, 3)
    assert rows.prefix_positions[0, :8].tolist() == picture.positions.tolist()
    assert (rows.prefix_positions[0, 8:] == 0).all()
    assert rows.stream.positions[0, :3].tolist() == [[0, 0, 0], [1, 1, 1], [2, 3, 3]]
    assert rows.stream.bank_positions[0, :6].tolist() == picture.positions[2:].tolist()
    assert rows.tiles.counts.tolist() == [24, 0]  # a tile for each row, so that a mesh cuts both
    # positions of a response are those of the whole prompt with it
    whole = picture.followed_by(np.array([3, 4, 10, 11, 12, 13], np.int32))
    assert whole.positions[8:, 0].tolist() == rows.positions[0, :6].tolist()


def test_packed_texts_know_their_responses():
    """a a | A A A | b | B   and   c | C C"""
    packed = pack_texts([[([1, 1], [2, 2, 2]), ([3], [4])], [([5], [6, 6])]], multiple=4)
    assert packed.tokens.tolist() == [[1, 1, 2, 2, 2, 3, 4, 0], [5, 6, 6, 0, 0, 0, 0, 0]]
    assert packed.responses(0, 0).tolist() == [2, 3, 4]
    assert packed.responses(0, 1).tolist() == [6]
    assert packed.responses(1, 0).tolist() == [1, 2]
