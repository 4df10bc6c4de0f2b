"""Streams give each scene once an epoch, resume exactly, and pack what a lone prompt would hold."""

import json

import numpy as np
import pytest
from absl import flags

from tiger_jax.data.batches import make_prompt
from tiger_jax.data.mixtures import PackBranches, SceneSource, branch_ids, scene_batches
from tiger_jax.data.prompts import build_prompt
from tiger_jax.data.scenes import HELD_OUT, make_scene


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
