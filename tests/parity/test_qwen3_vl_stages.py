"""Parity of Qwen3-VL with transformers, stage by stage (models.md 10.1), in float32."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from qwen3_vl_pairs import SIDE, Image, Video, batch_prompts, make_frames, make_prompt
from qwen3_vl_stages import FRAMES, LENGTH, PATCHES, PROGRAM, our_stages, reference_stages
from stages import GATE, first_failure, relative_l2, stage_errors

from tiger_jax.models.frames import pack_tiles
from tiger_jax.ops.attention import BLOCK

CASES = {
    "one image": [3, Image(4, 6), 2],
    "two images": [1, Image(4, 6), 2, Image(6, 4), 2],
    "first and last": [Image(4, 4), 5, Image(2, 6)],
    "video of two": [2, Video(2, 4, 4), 2],
    "video of three": [4, Video(3, 6, 4), 1],
    "two videos": [2, Video(2, 4, 4), 3, Video(1, 2, 8), 2],
    "image then video": [3, Image(4, 6), 2, Video(2, 4, 4), 3],
    "video then image": [2, Video(3, 4, 4), 2, Image(4, 6), 3],
    "video between images": [1, Image(2, 2), 2, Video(2, 4, 6), 1, Image(8, 4), 2],
    "models.md": [5, Image(4, 6), 2, Video(2, 4, 4), Image(4, 4), 2],
    "text": [9],
    "large": [3, Image(16, 24), 2],
    "large and tall": [2, Image(24, 16), 4],
    "narrow": [2, Image(20, 2), 3, Image(2, 20), 1],
    "smallest": [1, Image(2, 2), 1],
}
PAIRS = ["qwen3_vl", "qwen3_vl_wide", "qwen3_vl_4b", "qwen3_vl_8b"]
TOWER = ["patch embed", "position embedding", "embedded", "vision rope", "block 0", "block 1",
         "block 2", "block 3", "tap 0", "tap 1", "tap 2", "merger"]  # fmt: skip
DECODER = ["merged", "positions", "delta", "text rope", "layer 0 before", "layer 0",
           "layer 1 before", "layer 1", "layer 2 before", "layer 2", "layer 3 before", "layer 3",
           "final norm", "logits"]  # fmt: skip


def assert_parity(got, wanted):
    assert list(got) == list(wanted)
    errors = stage_errors(got, wanted)
    assert first_failure(errors) is None, errors
    for name in wanted:  # a single wrong element among many drowns in an L2 norm
        worst = np.abs(got[name] - wanted[name]).max()
        assert worst <= 2e-5 * max(1.0, float(wanted[name].std())), (name, worst)
    for name in ("token ids", "positions", "delta"):
        assert np.array_equal(got[name], wanted[name]), name


@pytest.mark.parametrize("which", PAIRS)
@pytest.mark.parametrize("name", CASES)
def test_every_stage(request, which, name):
    pair = request.getfixturevalue(which)
    prompt = make_prompt(CASES[name])
    (wanted,) = reference_stages(pair, [prompt])
    (got,) = our_stages(pair, [prompt])
    assert_parity(got, wanted)
    assert list(got) == ["token ids", *(TOWER if len(prompt.frames) else []), *DECODER]


def test_the_case_of_models_md():
    """models.md section 10: 38 tokens, delta -9 (its words stand elsewhere)."""
    prompt = make_prompt([5, Image(4, 6), 2, Video(2, 4, 4), Image(4, 4), 2])
    assert prompt.positions.max() + 1 - len(prompt.tokens) == -9


@pytest.mark.parametrize("which", PAIRS)
def test_a_batch_of_unlike_prompts(request, which):
    """Other lengths and frame counts side by side, a text among them: each row as transformers
    runs it in its own batch, padded on the left, and as it runs it alone."""
    pair = request.getfixturevalue(which)
    names = ["image then video", "text", "two images", "video of three", "one image"]
    prompts = [make_prompt(CASES[name], seed=7) for name in names]
    together = reference_stages(pair, prompts)
    frames = sum(len(prompt.frames) for prompt in prompts)
    batch = batch_prompts(prompts, LENGTH, frames)
    for got, prompt, wanted in zip(
        our_stages(pair, prompts, batch=batch), prompts, together, strict=True
    ):
        assert_parity(got, wanted)
        (alone,) = reference_stages(pair, [prompt])
        assert_parity(got, alone)


def test_padding_changes_nothing(qwen3_vl):
    """More patches a frame, more frames, more tokens; garbage behind `counts` is not looked at."""
    prompt = make_prompt(CASES["video then image"])
    (tight,) = our_stages(qwen3_vl, [prompt], batch=batch_prompts([prompt]))
    batch = batch_prompts([prompt], LENGTH, FRAMES, PATCHES)
    (loose,) = our_stages(qwen3_vl, [prompt], batch=batch)
    rng = np.random.default_rng(0)
    behind = np.arange(PATCHES)[None] >= batch.frames.counts[:, None]
    frames = batch.frames
    for values in (frames.patches, frames.places, frames.taps, frames.weights):
        values[behind] = rng.integers(0, SIDE, values[behind].shape)
    (dirty,) = our_stages(qwen3_vl, [prompt], batch=batch)
    for name in tight:
        assert relative_l2(loose[name], tight[name]) <= 2e-6, name
        assert np.array_equal(dirty[name], loose[name]), name


def test_a_frame_of_more_patches_than_one_block_of_queries(qwen3_vl):
    prompt = make_prompt([1, Image(24, 32), 2, Image(2, 4), 1])
    batch = batch_prompts([prompt])
    assert batch.frames.patches.shape[1] > BLOCK
    (wanted,) = reference_stages(qwen3_vl, [prompt])
    (got,) = our_stages(qwen3_vl, [prompt], batch=batch)
    assert_parity(got, wanted)


def test_frames_that_share_a_tile(qwen3_vl):
    """Small ones beside a large one: what each has alone, and how much its own patches look at
    each of them; the transposed grids tell rows from columns."""
    grids = [(4, 6), (16, 24), (6, 4), (2, 2), (12, 10)]
    rng, vision = np.random.default_rng(0), qwen3_vl.config.vision
    parts = [make_frames(rng, [grid]) for grid in grids]
    sizes = [part.patches.shape[1] // vision.merge_size**2 for part in parts]
    packed, begins = pack_tiles(parts, sizes)
    assert packed.counts.tolist() == [24, 384, 24 + 4 + 120]
    for method in ("encode_images", "vision_saliency"):
        run = jax.jit(getattr(qwen3_vl.model, method))
        rows = np.asarray(run(qwen3_vl.params, jax.tree.map(jnp.asarray, packed)))
        rows = rows.reshape(len(packed) * max(sizes), -1)
        for part, size, begin in zip(parts, sizes, begins, strict=True):
            alone = np.asarray(run(qwen3_vl.params, jax.tree.map(jnp.asarray, part)))
            assert relative_l2(rows[begin : begin + size], alone.reshape(size, -1)) <= 2e-6


def test_two_prompts_share_one_program(qwen3_vl):
    """B25: what DeepStack adds is an argument, so other pictures need no other program, and
    nothing of the first prompt stays."""
    prompts = [make_prompt(CASES["large"], seed) for seed in (1, 2)]
    before = our_stages(qwen3_vl, prompts[:1])[0]
    programs = PROGRAM._cache_size()
    other = our_stages(qwen3_vl, prompts[1:])[0]
    again = our_stages(qwen3_vl, prompts[:1])[0]
    assert PROGRAM._cache_size() == programs
    assert np.array_equal(before["logits"], again["logits"])
    assert relative_l2(other["logits"], before["logits"]) > 0.1


@pytest.mark.parametrize("grid", [(4, 6), (2, 2), (20, 2), (8, 8), (16, 24)], ids=str)
def test_position_table_as_torch_interpolates(qwen3_vl, grid):
    """B7: align_corners=True, from torch's own function; the other way is far off unless the grid
    is the table's."""
    h, w = grid
    frames = make_frames(np.random.default_rng(0), [grid])
    got = qwen3_vl.model.module.apply(
        {"params": qwen3_vl.params}, jax.tree.map(jnp.asarray, frames),
        method=lambda module, frames: module.vision_tower.positions(frames),
    )[0]  # fmt: skip
    table = qwen3_vl.reference.model.visual.pos_embed.weight.detach()
    square = table.T.reshape(1, -1, SIDE, SIDE)

    def interpolate(align: bool) -> np.ndarray:
        size = torch.nn.functional.interpolate(square, grid, mode="bilinear", align_corners=align)
        blocks = size[0].reshape(-1, h // 2, 2, w // 2, 2).permute(1, 3, 2, 4, 0)
        return blocks.reshape(h * w, -1).numpy()

    # torch has its shares in float32 from the start
    assert np.abs(np.asarray(got) - interpolate(True)).max() <= 2e-6
    far = np.abs(np.asarray(got) - interpolate(False)).max()
    assert far <= 2e-6 if grid == (SIDE, SIDE) else far > 0.1
    assert relative_l2(np.asarray(got), interpolate(True)) <= GATE
