"""Streams give each scene once an epoch, resume exactly, and pack what a lone prompt would hold."""

import json

import numpy as np
import pytest
from absl import flags

from tiger_jax.data.batches import make_prompt
from tiger_jax.data.clips import Clip, make_clip
from tiger_jax.data.mixtures import PackBranches, SceneSource, branch_ids, scene_batches
from tiger_jax.data.prompts import build_prompt
from tiger_jax.data.scenes import HELD_OUT, make_scene
from tiger_jax.errors import UserError


def numbers(batches) -> list[int]:
    """Scenes of an unshuffled source in a stream, found again by their pictures."""
    return [int(np.abs(tile).sum() * 1000) for batch in batches for tile in batch.tiles]


def equal(first, second) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_source_is_the_scene_stream():
    source = SceneSource(num_scenes=10, seed=3, first_index=HELD_OUT, hard_share=0.5)
    assert len(source) == 10
    hard = 0
    for i in range(10):
        scene = source[i]
        easy = make_scene(3, HELD_OUT + i)
        same = np.array_equal(scene.image, easy.image)
        assert same or np.array_equal(scene.image, make_scene(3, HELD_OUT + i, hard=True).image)
        hard += not same
    assert 4 <= hard <= 6


def test_training_and_held_out_scenes_do_not_mix():
    with pytest.raises(ValueError, match="held out"):
        SceneSource(num_scenes=10, first_index=HELD_OUT - 5)


@pytest.mark.parametrize("grid", [(4, 4), (4, 8)])
def test_prefix_and_branch_are_the_full_prompt_and_answer(processor, grid):
    for index in range(20):
        scene = make_scene(0, index, grid=grid)
        example = PackBranches(processor, branch_length=96).map(scene)
        for b, qa in enumerate(scene.qa):
            text = f"{build_prompt(processor, qa.question, 1)} {qa.answer}</s>"
            whole = make_prompt(processor, processor.config, text, [scene.image])
            length = example.branch_lengths[b]
            branch = example.branch_tokens[b]
            packed = np.concatenate([example.prefix.tokens, branch[:length]])
            assert np.array_equal(packed, whole.tokens)
            rows = whole.image_rows
            assert np.array_equal(example.prefix.image_rows, rows[: len(example.prefix.tokens)])
            assert (branch[length:] == processor.config.pad_token_id).all()


def test_loss_is_on_answer_and_end_only(processor):
    scene = make_scene(0, 1)
    example = PackBranches(processor).map(scene)
    for b, qa in enumerate(scene.qa):
        predicted = example.branch_tokens[b][example.loss_mask[b]]
        assert processor.decode(predicted) == f" {qa.answer}"
        assert predicted[-1] == processor.config.eos_token_ids[0]
        asked, answered = branch_ids(processor, qa)
        assert example.loss_mask[b].nonzero()[0].tolist() == list(
            range(len(asked), len(asked) + len(answered))
        )


def test_batch_shapes(processor):
    batch = next(iter(scene_batches(processor, [(SceneSource(8), 1.0)], batch_size=3)))
    assert batch.prefix_tokens.shape == batch.prefix_image_rows.shape == (3, 140)
    assert batch.prefix_lengths.tolist() == [140] * 3
    assert batch.tiles.shape == (6, 112, 112, 3)
    assert batch.branch_tokens.shape == batch.loss_mask.shape == (3, 4, 56)
    assert batch.prefix_image_rows.max() == 6 * 64  # the newline of the whole batch
    assert batch.prefix_image_rows[1, 3] == 2 * 64  # the second scene starts at its own tiles


def test_tower_batch(processor):
    source = SceneSource(4)
    batch = next(iter(scene_batches(processor, [(source, 1.0)], 4, "tower", shuffle_seed=None)))
    assert batch.tiles.shape == (4, 112, 112, 3)
    for b in range(4):
        assert np.array_equal(batch.content[b], source[b].cell_content)
        assert np.array_equal(batch.color[b], source[b].cell_color)
        np.testing.assert_allclose(
            batch.tiles[b], processor.tiles(source[b].image)[0][0], atol=1e-6
        )


def test_each_scene_once_an_epoch_over_all_processes(processor):
    source = SceneSource(22)
    everything = sorted(numbers(scene_batches(processor, [(source, 1.0)], 2, "tower", None, 1)))
    shards = [
        numbers(scene_batches(processor, [(source, 1.0)], 1, "tower", 7, 1, shard=(i, 3)))
        for i in range(3)
    ]
    assert [len(shard) for shard in shards] == [8, 7, 7]
    assert sorted(shards[0] + shards[1] + shards[2]) == everything
    assert len(set(everything)) == 22


def test_order_follows_the_seed_and_changes_each_epoch(processor):
    source = SceneSource(8)

    def order(seed):
        return numbers(scene_batches(processor, [(source, 1.0)], 4, "tower", seed, num_epochs=2))

    assert order(1) == order(1) != order(2)
    first, second = order(1)[:8], order(1)[8:]
    assert sorted(first) == sorted(second)
    assert first != second


@pytest.mark.parametrize("shard", [(0, 1), (1, 2)])
def test_resume_at_every_batch(processor, shard):
    """Over the end of an epoch too, through JSON as a checkpoint would keep it."""
    stream = scene_batches(processor, [(SceneSource(6), 1.0)], 2, "tower", shard=shard)
    run, states, batches = iter(stream), [], []
    for _ in range(8):
        states.append(json.dumps(run.get_state()))
        batches.append(next(run))
    for start, state in enumerate(states):
        resumed = iter(stream)
        resumed.set_state(json.loads(state))
        assert all(equal(next(resumed), batch) for batch in batches[start:])


def test_too_long_branch_is_refused(processor):
    with pytest.raises(ValueError, match="expected at most 8 tokens"):
        PackBranches(processor, branch_length=8).map(make_scene(0, 0))


def test_shard_out_of_range(processor):
    with pytest.raises(ValueError, match="index below count"):
        scene_batches(processor, [(SceneSource(4), 1.0)], 2, shard=(2, 2))


def test_source_of_clips_is_their_stream():
    source = SceneSource(num_scenes=10, seed=3, first_index=HELD_OUT, hard_share=0.5, clips=True)
    hard = 0
    for i in range(10):
        clip, easy = source[i], make_clip(3, HELD_OUT + i)
        assert isinstance(clip, Clip)
        same = np.array_equal(clip.stills, easy.stills)
        assert same or np.array_equal(clip.stills, make_clip(3, HELD_OUT + i, hard=True).stills)
        hard += not same
    assert 4 <= hard <= 6
    more = SceneSource(3, 3, extra=("order", "order"), clips=True)[2]
    assert [pair.kind for pair in more.qa[-2:]] == ["order", "order"]
    assert more.qa[:-2] == make_clip(3, 2).qa
    with pytest.raises(ValueError, match="held out"):
        SceneSource(num_scenes=10, first_index=HELD_OUT - 5, clips=True)


def test_prefix_and_branch_are_the_full_prompt_and_answer_of_a_clip(qwen_processor):
    config = qwen_processor.config
    for index in range(5):
        clip = make_clip(0, index)
        (example,) = scene_batches(
            qwen_processor, [(SceneSource(1, 0, index, clips=True), 1.0)], 1, num_epochs=1,
            branch_length=96,
        )  # fmt: skip
        for b, pair in enumerate(clip.qa):
            turn = build_prompt(qwen_processor, pair.question, 0, 1)
            whole = make_prompt(qwen_processor, config, turn, videos=[clip.shown])
            answer = qwen_processor.encode_answer(pair.answer)
            n, length = example.prefix_lengths[0], example.branch_lengths[0, b]
            branch = example.branch_tokens[0, b, :length]
            packed = np.concatenate([example.prefix_tokens[0, :n], branch]).tolist()
            assert packed == [*whole.tokens.tolist(), *answer]
            rows = example.prefix_image_rows[0, :n]
            assert np.array_equal(rows, whole.image_rows[:n])
            assert np.array_equal(example.prefix_positions[0, :n], whole.positions[:n])
            # the branch goes on where the last frame ends: fewer positions than tokens
            start, asked = example.text_starts[0], len(whole.tokens) - n
            assert whole.positions[n:].tolist() == [[start + i] * 3 for i in range(asked)]
            assert start < n
            learnt = branch[example.loss_mask[0, b, :length]]
            assert learnt.tolist() == answer


def kinds(batches) -> list[str]:
    """What each batch is of: a clip has three frames, a scene one."""
    return [{3: "clips", 1: "scenes"}[len(batch.tiles) // 2] for batch in batches]


def mixed(processor, **settings):
    """Batches of two: three of scenes for each one of clips."""
    sources = [(SceneSource(12), 0.75), (SceneSource(8, clips=True), 0.25)]
    return scene_batches(processor, sources, 2, branch_length=96, **settings)


def test_scenes_and_clips_take_turns_by_batches(qwen_processor):
    batches = [batch for batch, _ in zip(mixed(qwen_processor), range(16), strict=False)]
    found = kinds(batches)
    assert found.count("clips") == 4
    assert all("clips" in found[i : i + 4] for i in range(0, 16, 4))
    for batch, kind in zip(batches, found, strict=True):
        assert len(set(batch.prefix_lengths.tolist())) == 1  # nothing but one kind, so no padding
        assert batch.prefix_tokens.shape == (2, batch.prefix_lengths[0])
        assert batch.tiles.counts.tolist() == [256] * (6 if kind == "clips" else 2)


def test_held_out_kinds_come_one_after_the_other(qwen_processor):
    """Seven scenes and three clips, two a batch: three full batches and one, each record once."""
    sources = [(SceneSource(7), 0.5), (SceneSource(3, clips=True), 0.5)]
    batches = list(scene_batches(qwen_processor, sources, 2, shuffle_seed=None, num_epochs=1,
                                 branch_length=96))  # fmt: skip
    assert kinds(batches) == ["scenes"] * 3 + ["clips"]
    rows = [row.tobytes() for batch in batches for row in batch.branch_tokens]
    assert len(set(rows)) == 8


def test_no_full_batch_is_refused(qwen_processor):
    sources = [(SceneSource(3), 0.5), (SceneSource(2, clips=True), 0.5)]
    with pytest.raises(UserError, match="expected 4 or more for a batch, got 3, 2"):
        scene_batches(qwen_processor, sources, 4, num_epochs=1)


def test_no_source_is_left_out_for_being_small(qwen_processor):
    sources = [(SceneSource(6), 0.5), (SceneSource(3, clips=True), 0.5)]
    with pytest.raises(UserError, match="expected 4 or more for a batch, got 6, 3"):
        scene_batches(qwen_processor, sources, 4, num_epochs=1)


def test_order_of_a_mixture_follows_the_seed(qwen_processor):
    def tokens(seed):
        stream = mixed(qwen_processor, shuffle_seed=seed)
        return [batch.branch_tokens.tolist() for batch, _ in zip(stream, range(6), strict=False)]

    assert tokens(1) == tokens(1) != tokens(2)


@pytest.mark.parametrize("shard", [(0, 1), (1, 2)])
def test_a_mixture_of_kinds_resumes_at_every_batch(qwen_processor, shard):
    stream = mixed(qwen_processor, shard=shard)
    run, states, batches = iter(stream), [], []
    for _ in range(6):
        states.append(json.dumps(run.get_state()))
        batches.append(next(run))
    assert len(set(kinds(batches))) == 2
    for start, state in enumerate(states):
        resumed = iter(stream)
        resumed.set_state(json.loads(state))
        again = next(resumed)
        for name in ("prefix_tokens", "branch_tokens", "loss_mask", "text_starts"):
            assert np.array_equal(getattr(again, name), getattr(batches[start], name))
        assert np.array_equal(again.tiles.patches, batches[start].tiles.patches)


def test_processes_share_each_kind_out(qwen_processor):
    """In the same step both have a batch of the same kind: one program runs on all of them. Four
    batches are less than an epoch of either kind."""
    shards = [
        [batch for batch, _ in zip(mixed(qwen_processor, shard=(i, 2)), range(4), strict=False)]
        for i in range(2)
    ]
    assert kinds(shards[0]) == kinds(shards[1])
    seen = [{row.tobytes() for batch in shard for row in batch.branch_tokens} for shard in shards]
    assert not seen[0] & seen[1]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2])
def test_workers_lose_and_repeat_nothing(processor, workers):
    flags.FLAGS.mark_as_parsed()  # grain asks absl for its flags; entry points parse them
    source = SceneSource(12)
    expected = sorted(numbers(scene_batches(processor, [(source, 1.0)], 2, "tower", 0, 1)))
    stream = scene_batches(processor, [(source, 1.0)], 2, "tower", 0, 1, num_workers=workers)
    run = iter(stream)
    first = next(run)
    state = run.get_state()
    rest = list(run)
    assert sorted(numbers([first, *rest])) == expected
    resumed = iter(stream)
    resumed.set_state(state)
    assert all(equal(a, b) for a, b in zip(resumed, rest, strict=True))
