"""A head's batch by hand: where states, visual tokens and looks stand, and what is left out."""

import pickle
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from tests.data.test_draft_batches import hand_record, taught
from tests.pictured import pictured_prompt
from tiger_jax.data import mixtures
from tiger_jax.data.draft_batches import PackDrafts
from tiger_jax.data.draft_examples import AskQuestions
from tiger_jax.data.examples import DroppedExample
from tiger_jax.data.feature_cache import FeatureCache, FeatureRecord
from tiger_jax.data.head_batches import PackHeads, TaughtHead, TeachHead
from tiger_jax.data.scenes import Scene, make_scene
from tiger_jax.data.teacher_cache import TeacherCache, TeacherRecord
from tiger_jax.errors import UserError
from tiger_jax.testing.tiny import tiny_config

CONFIG = tiny_config()


def states(prefix: int, visual: int, text: int) -> FeatureRecord:
    """Every state says where it stands: prefix 100 + i, visual 200 + i, text 300 + i; the look of
    text token i is (i, i + 1) modulo the bank, with weights i / 64 and 1 / 64."""
    places, bank = np.arange(text), max(visual, 1)
    ids = np.stack([places % bank, (places + 1) % bank], axis=1)
    weights = np.stack([places / 64, np.full(text, 1 / 64)], axis=1)

    def at(first, count, width):
        return np.repeat(first + np.arange(count)[:, None], width, 1).astype(np.float16)

    return FeatureRecord(
        prefix=at(100, prefix, 3), visual=at(200, visual, 2), text=at(300, text, 3),
        look_ids=(ids if visual else ids * 0 - 1).astype(np.int16),
        look_weights=(weights if visual else weights * 0).astype(np.float16),
    )  # fmt: skip


def items() -> list[TaughtHead]:
    """As test_draft_batches': example 0 with one picture of 10 visual tokens, example 1 without.

    packed    3 4 10 11 12 13 5 20 21 . .        6 10 . .
    place     0 1  2  3  4  5 6  7  8            0  1
    blocks    root 11 drafts 12 13; root 20 drafts 21
    """
    picture = pictured_prompt(CONFIG, (0,), (1,))
    words = pictured_prompt(CONFIG, (), (1, 7, 8))
    short = TeacherRecord(*(field[:1] for field in hand_record()))
    short = short._replace(lengths=np.array([1], np.int32))
    blocks = ([0, 1], [1, 0], [2, 1])
    return [
        TaughtHead(taught(picture, [[3, 4], [5]], hand_record(), blocks), states(11, 10, 9)),
        TaughtHead(taught(words, [[6]], short, ([], [], [])), states(3, 0, 2)),
    ]


@pytest.fixture(scope="module")
def rows():
    pack = PackHeads(CONFIG, 3, text_multiple=11, block_multiple=3)
    return pickle.loads(pickle.dumps(pack))(items())


def test_states_stand_at_their_tokens(rows):
    """Prefixes padded to 16, texts to 11, banks to 16; padding is 0."""
    assert rows.prefix_features.shape == (2, 16, 3)
    assert rows.prefix_features[0, :, 1].tolist() == [*range(100, 111), *[0] * 5]
    assert rows.prefix_features[1, :, 1].tolist() == [100, 101, 102, *[0] * 13]
    assert rows.text_features[0, :, 2].tolist() == [*range(300, 309), 0, 0]
    assert rows.text_features[1, :, 2].tolist() == [300, 301, *[0] * 9]
    assert rows.visual.shape == (2, 16, 2)
    assert rows.visual.dtype == np.float32
    assert rows.visual[0, :, 0].tolist() == [*range(200, 210), *[0] * 6]
    assert (rows.visual[1] == 0).all()


def test_looks_of_every_drafted_token(rows):
    """The root 11 stands at 3 and drafts two: the looks of the places 3 and 4, not 4 and 5. The
    root 20 at 7 drafts one. An entry behind a block's last drafted token is empty, even where the
    response goes on."""
    assert rows.draft.anchors.tolist() == [[3, 7, -1], [-1, -1, -1]]
    empty = [-1, -1]
    assert rows.look_ids[0].tolist() == [
        [[3, 4], [4, 5], empty], [[7, 8], empty, empty], [empty, empty, empty],
    ]  # fmt: skip
    weights = rows.look_weights * 64
    none = [0, 0]
    assert weights[0].tolist() == [
        [[3, 1], [4, 1], none], [[7, 1], none, none], [none, none, none],
    ]  # fmt: skip
    assert (rows.look_ids[1] == -1).all()
    assert (rows.look_weights[1] == 0).all()
    assert rows.look_ids.dtype == np.int32
    assert rows.look_weights.dtype == np.float32


def test_the_draft_keeps_the_prompt_whole(rows):
    """The stream is the prefix itself: bank row i stands at the prompt's place 1 + i, and points
    at the same visual row as the verifier's prefix does there."""
    stream = rows.draft.stream
    assert stream.bank_positions[0, :10].tolist() == list(range(1, 11))
    assert stream.visual[0].tolist() == [-1, *range(10), *[-1] * 5]
    assert stream.lengths.tolist() == [11, 3]
    np.testing.assert_array_equal(stream.tokens, rows.draft.prefix_tokens)
    np.testing.assert_array_equal(stream.bank_rows[0, :10], rows.draft.prefix_image_rows[0, 1:11])
    assert rows.visual.shape[1] == stream.bank_rows.shape[1]
    plain = PackDrafts(CONFIG, 3, 1, "full", 11, 3)([item.taught for item in items()])
    for name in ("tokens", "positions", "anchors", "block_tokens", "law_logprobs", "route_ids"):
        np.testing.assert_array_equal(getattr(rows.draft, name), getattr(plain, name))


def test_two_pictures_around_a_word():
    """Visual tokens of both pictures follow each other in the bank; the word between is left out
    of it, but its state stays at its place in the prefix."""
    prefix = pictured_prompt(CONFIG, (0, 1), (1, 7))
    visual = np.flatnonzero(prefix.image_ids >= 0)
    assert (np.diff(visual) > 1).any() or len(visual) < len(prefix.tokens)
    item = TaughtHead(
        taught(prefix, [[3, 4], [5]], hand_record(), ([0], [0], [3])),
        states(len(prefix.tokens), len(visual), 9),
    )
    rows = PackHeads(CONFIG, 3)([item])
    count = len(visual)
    assert rows.draft.stream.bank_positions[0, :count].tolist() == visual.tolist()
    assert rows.visual[0, :count, 0].tolist() == (200 + np.arange(count)).tolist()
    seen = rows.draft.prefix_image_rows[0] >= 0
    assert rows.prefix_features[0, seen, 0].tolist() == (100 + visual).tolist()
    assert rows.look_ids[0, 0].tolist() == [[2, 3], [3, 4], [4, 5]]  # the root stands at 2


def answers(questions: int) -> TeacherRecord:
    """Three tokens to each question."""
    count = 3 * questions
    return TeacherRecord(
        lengths=np.full(questions, 3, np.int32), tokens=np.arange(count, dtype=np.int32),
        logprobs=np.zeros(count, np.float32),
        law_ids=np.zeros((count, 2), np.int32), law_logprobs=np.zeros((count, 2), np.float32),
        route_ids=np.zeros((count, 2), np.int32), route_weights=np.zeros((count, 2), np.float32),
    )  # fmt: skip


class Kept(NamedTuple):
    """Pictures, and what the caches hold of them."""

    scenes: dict[str, Scene]
    keys: dict[str, str]
    states: FeatureRecord
    """Of the picture "both"."""
    teach: TeachHead


@pytest.fixture
def kept(tmp_path, processor) -> Kept:
    """Answers to "both", "unseen" and "wrong"; states of "both", "silent" and "wrong", of which
    the last miss a token."""
    ask = AskQuestions(processor)
    names = ("both", "unseen", "silent", "wrong")
    scenes = {name: make_scene(5, number) for number, name in enumerate(names)}
    said, seen = TeacherCache(tmp_path, {"of": "answers"}), FeatureCache(tmp_path, {"of": "states"})
    keys, found = {}, {}
    for name, scene in scenes.items():
        example = ask(scene)
        keys[name] = example.key
        record = answers(len(example.questions))
        text = sum(map(len, example.questions)) + len(record.tokens) - (name == "wrong")
        visual = int((example.prefix.image_ids >= 0).sum())
        found[name] = states(len(example.prefix.tokens), visual, text)
        if name != "silent":
            said.add_shard([(example.key, record)])
        if name != "unseen":
            seen.add_shard([(example.key, found[name])])
    return Kept(scenes, keys, found["both"], TeachHead(ask, said, seen, 2))


def test_what_stands_in_one_cache_only_is_dropped(kept):
    teach = pickle.loads(pickle.dumps(kept.teach))
    rng = np.random.default_rng(0)
    got = teach(kept.scenes["both"], rng)
    assert isinstance(got, TaughtHead)
    assert got.taught.example.key == kept.keys["both"]
    np.testing.assert_array_equal(got.features.text, kept.states.text)
    questions = len(got.taught.example.questions)
    assert got.taught.blocks.lengths.sum() == 2 * questions  # each token but the first, once
    for name, source in (("unseen", "features"), ("silent", "teacher")):
        dropped = teach(kept.scenes[name], rng)
        assert isinstance(dropped, DroppedExample)
        assert (dropped.id, dropped.source) == (kept.keys[name], source)
    cut = replace(kept.teach, cuts=2)(kept.scenes["both"], rng)
    assert len(cut.taught.blocks.roots) == 2


def test_states_of_other_answers(kept):
    """One text token less than questions and answers have."""
    with pytest.raises(UserError, match=r"text: expected (\d+) tokens, got \d+; delete the folder"):
        kept.teach(kept.scenes["wrong"], np.random.default_rng(0))


def test_a_stream_of_batches(kept):
    """mixtures.draft_batches takes both in place of a drafter's; what is dropped is reported."""
    records, dropped = [kept.scenes["both"], kept.scenes["unseen"]], {}
    pack = PackHeads(kept.teach.ask.processor.config, 2)
    stream = mixtures.draft_batches(
        [(records, 1)], kept.teach, pack, 2, seed=3, num_epochs=None, dropped=dropped
    )
    batch = next(iter(stream))
    count = len(kept.states.text)
    for b in range(2):  # the one usable picture, twice
        assert batch.text_features[b, :count, 0].tolist() == list(range(300, 300 + count))
    assert (batch.draft.block_lengths.sum(axis=1) == 2 * int(batch.draft.segments.max())).all()
    assert list(dropped) == [("features", kept.keys["unseen"])]
