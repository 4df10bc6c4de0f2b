"""The stage gates of Qwen3-VL can fail: every mistake of models.md 7.1 is seen where it is made.

Each mutation breaks our side only, through its configuration, weights, prompt arrays, or a module's
function. The test asks which stage fails first, so the gates also say where to look. A changed
program is not compiled as a whole: most of its operations are those of the others.
"""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import NamedTuple
from unittest import mock

import jax.numpy as jnp
import numpy as np
import pytest
from qwen3_vl_pairs import (
    MERGE,
    SIDE,
    Image,
    Prompt,
    Video,
    batch_prompts,
    make_prompt,
)
from qwen3_vl_stages import PROGRAM, our_stages, reference_stages, run_stages
from stages import GATE, first_failure, stage_errors

from tiger_jax.models import layers, qwen3_vision
from tiger_jax.models.config import Qwen3VLConfig
from tiger_jax.models.frame_geometry import frame_places, position_taps
from tiger_jax.models.interface import build_model
from tiger_jax.models.text_decoder import TextDecoder
from tiger_jax.ops import rotary

# 8 x 12 visual tokens, so that positions that count wrongly lie far off; a video before pictures;
# two of its frames and two pictures side by side, small enough to be taken for one.
CASE = [3, Image(16, 24), 2, Video(2, 4, 6), 1, Image(4, 6), 1, Image(6, 4), 3]
VIDEO_FRAME, SECOND_IMAGE, COUNT = 1, 3, 5


class Mutation(NamedTuple):
    """What goes wrong, the stage that must notice, and how."""

    name: str
    stage: str
    config: Callable[[Qwen3VLConfig], Qwen3VLConfig] | None = None
    params: Callable[[dict], dict] | None = None
    prompt: Callable[[Prompt], Prompt] | None = None
    module: Callable[[], contextlib.AbstractContextManager] | None = None


def vision(**changes):
    return lambda c: dataclasses.replace(c, vision=dataclasses.replace(c.vision, **changes))


def text(**changes):
    return lambda c: dataclasses.replace(c, text=dataclasses.replace(c.text, **changes))


def swap(place, name: str, new: Callable):
    """The function `name` of a module or class is another one."""
    return lambda: mock.patch.object(place, name, new)


def head_in_bfloat16(params: dict) -> dict:
    kernel = params["language_model"]["lm_head"]["kernel"]
    rounded = kernel.astype(jnp.bfloat16).astype(jnp.float32)
    return params | {"language_model": params["language_model"] | {"lm_head": {"kernel": rounded}}}


def deepstack(change: Callable[[list], list]):
    """What is added after the first layers is `change` of what should be."""
    split = TextDecoder._split

    def changed(self, x):
        x, deep = split(self, x)
        return x, change(deep)

    return swap(TextDecoder, "_split", changed)


def one_late(deep: list) -> list:
    return [jnp.zeros_like(deep[0]), *deep]


def mrope(axes: Callable):
    """The axis that turns each frequency, from the section."""
    return swap(rotary, "mrope_axes", lambda section: np.asarray(axes(np.arange(3), section)))


def positions(change: Callable[[Prompt], np.ndarray]):
    return lambda prompt: prompt._replace(positions=change(prompt).astype(np.int32))


def no_axes(prompt: Prompt) -> np.ndarray:
    return np.repeat(np.arange(len(prompt.tokens))[:, None], 3, axis=1)


def axes_swapped(prompt: Prompt) -> np.ndarray:
    return prompt.positions[:, [0, 2, 1]]


def time_of_frames(prompt: Prompt) -> np.ndarray:
    """Qwen2-VL's way: frames of a video count up in time."""
    moved = prompt.positions.copy()
    per_frame = prompt.frames.patches.shape[1] // MERGE**2
    moved[prompt.image_rows // per_frame == VIDEO_FRAME + 1, 0] += 1
    return moved


def frames(**changes: Callable[[Prompt], np.ndarray]):
    """Arrays of the frames, each by its own function of the prompt."""

    def apply(prompt):
        new = {name: change(prompt) for name, change in changes.items()}
        return prompt._replace(frames=dataclasses.replace(prompt.frames, **new))

    return apply


def of_each_frame(make: Callable[[int, int], np.ndarray]):
    """[n, P, ..] from what `make` gives for each frame's (h, w)."""

    def build(prompt):
        size = prompt.frames.patches.shape[1]
        parts = (make(h, w) for h, w in prompt.grids)
        return np.stack([np.pad(part, ((0, size - len(part)), (0, 0))) for part in parts])

    return build


def half_pixel_taps(h: int, w: int) -> tuple[np.ndarray, np.ndarray]:
    """align_corners=False: pixel centres on pixel centres, clamped at the border."""
    low, share = [], []
    for at, count in zip(frame_places(h, w, MERGE).T, (h, w), strict=True):
        source = np.clip((at + 0.5) * SIDE / count - 0.5, 0, SIDE - 1)
        low.append(np.floor(source).astype(np.int32))
        share.append(source - low[-1])
    taps, weights = [], []
    for dy, dx in np.ndindex(2, 2):
        y, x = np.minimum(low[0] + dy, SIDE - 1), np.minimum(low[1] + dx, SIDE - 1)
        taps.append(y * SIDE + x)
        weights.append(np.abs(1 - dy - share[0]) * np.abs(1 - dx - share[1]))
    return np.stack(taps, -1), np.stack(weights, -1).astype(np.float32)


def values(change: Callable[[np.ndarray], np.ndarray]):
    """`change` of the patches as [n, P, channel, picture, pixel]."""

    def apply(prompt):
        patches = prompt.frames.patches
        return change(patches.reshape(*patches.shape[:2], 3, 2, -1)).reshape(patches.shape)

    return frames(patches=apply)


def taken_for_one(first: int):
    """Frame `first` and the next share a tile."""

    def apply(prompt):
        old = prompt.frames
        counts, size = old.counts, old.patches.shape[1]
        head, tail = counts[first], counts[first + 1]

        def join(array: np.ndarray) -> np.ndarray:
            if array.ndim == 1:
                return np.concatenate([array[:first], [head + tail], array[first + 2 :], [0]])
            new = np.concatenate([array[: first + 1], array[first + 2 :], 0 * array[:1]])
            new[first, head : head + tail] = array[first + 1, :tail]
            return new

        frame, row = np.divmod(prompt.image_rows, size // MERGE**2)
        row = np.where(frame == first + 1, row + head // MERGE**2, row)
        frame = np.where(frame > first, frame - 1, frame)
        rows = np.where(prompt.image_rows >= 0, frame * (size // MERGE**2) + row, -1)
        new = type(old)(**{name: join(array) for name, array in vars(old).items()})
        return prompt._replace(frames=new, image_rows=rows)

    return apply


def one_segment():
    """All patches of a tile see each other."""
    segments_of = qwen3_vision.segments_of
    return swap(qwen3_vision, "segments_of", lambda tiles: jnp.minimum(segments_of(tiles), 0))


def pictures_before_videos(prompt: Prompt) -> Prompt:
    """Rows of all pictures, then those of all videos, whatever the prompt's order is."""
    (at,) = np.nonzero(prompt.image_rows >= 0)
    rows = prompt.image_rows.copy()
    own = rows[at]
    of_video = np.isin(own // (prompt.frames.patches.shape[1] // MERGE**2), prompt.videos[0])
    rows[at] = np.concatenate([own[~of_video], own[of_video]])
    return prompt._replace(image_rows=rows)


MUTATIONS = [
    # models.md 7.1
    Mutation("RMS epsilon 1e-5", "layer 0 before", config=text(rms_norm_eps=1e-5)),
    Mutation("tower erf gelu", "block 0", config=vision(activation="gelu")),
    Mutation("mergers tanh gelu", "tap 0", module=swap(
        qwen3_vision, "activation", lambda _: layers.activation("gelu_pytorch_tanh"))),
    Mutation("lm_head in bfloat16", "logits", params=head_in_bfloat16),
    Mutation("contiguous sections", "text rope", module=mrope(np.repeat)),
    Mutation("only time", "text rope", module=mrope(lambda axes, s: 0 * np.repeat(axes, s))),
    Mutation("text theta a tenth", "text rope", config=text(rope_theta=10.0)),
    Mutation("tower rope raster order", "vision rope", prompt=frames(
        places=of_each_frame(lambda h, w: frame_places(h, w, 1)))),
    Mutation("tower rope swapped", "vision rope",
             prompt=frames(places=lambda prompt: prompt.frames.places[..., ::-1].copy())),
    Mutation("no query and key norm", "layer 0 before", config=text(qk_norm=False)),
    Mutation("plain positions", "positions", prompt=positions(no_axes)),
    Mutation("positions swapped", "positions", prompt=positions(axes_swapped)),
    Mutation("attention across frames", "block 0", prompt=taken_for_one(VIDEO_FRAME),
             module=one_segment()),
    Mutation("attention across images", "block 0", prompt=taken_for_one(SECOND_IMAGE),
             module=one_segment()),
    Mutation("table not align_corners", "position embedding", prompt=frames(
        taps=of_each_frame(lambda h, w: half_pixel_taps(h, w)[0]),
        weights=of_each_frame(lambda h, w: half_pixel_taps(h, w)[1]))),
    Mutation("table raster order", "position embedding", prompt=frames(
        taps=of_each_frame(lambda h, w: position_taps(h, w, SIDE, 1)[0]),
        weights=of_each_frame(lambda h, w: position_taps(h, w, SIDE, 1)[1]))),
    Mutation("DeepStack one layer late", "layer 0", module=deepstack(one_late)),
    Mutation("values (picture, channel)", "patch embed",
             prompt=values(lambda x: x.swapaxes(2, 3))),
    Mutation("pictures of a frame swapped", "patch embed",
             prompt=values(lambda x: x[..., ::-1, :])),
    Mutation("no DeepStack", "layer 0", module=deepstack(lambda deep: [])),
    Mutation("DeepStack reversed", "layer 0", module=deepstack(lambda deep: deep[::-1])),
    # and a few more that other ports made (section 8)
    Mutation("DeepStack before the block", "tap 1", config=vision(deepstack_layers=(0, 1, 2))),
    Mutation("one picture of a frame", "patch embed",
             prompt=values(lambda x: x * np.array([1, 0], np.float32)[:, None])),
    Mutation("frames count in time", "positions", prompt=positions(time_of_frames)),
    Mutation("pictures before videos", "merged", prompt=pictures_before_videos),
    Mutation("tower norm epsilon 1e-5", "block 0",
             module=lambda: mock.patch.object(qwen3_vision, "EPS", 1e-5)),
]  # fmt: skip


@pytest.fixture(scope="module")
def prompt():
    prompt = make_prompt(CASE)
    assert len(prompt.frames) == COUNT
    return prompt


@pytest.fixture(scope="module")
def wanted(qwen3_vl, prompt):
    return reference_stages(qwen3_vl, [prompt])[0]


@pytest.mark.parametrize("program", [PROGRAM, run_stages], ids=["compiled", "by operation"])
def test_without_a_mutation_nothing_fails(qwen3_vl, prompt, wanted, program):
    batch = batch_prompts([prompt])
    (got,) = our_stages(qwen3_vl, [prompt], batch=batch, program=program)
    assert first_failure(stage_errors(got, wanted)) is None


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name)
def test_mutation_is_seen(qwen3_vl, prompt, wanted, mutation):
    model = build_model(mutation.config(qwen3_vl.config)) if mutation.config else None
    params = mutation.params(qwen3_vl.params) if mutation.params else None
    wrong = mutation.prompt(prompt) if mutation.prompt else prompt
    program = run_stages if mutation.module or mutation.config else PROGRAM
    with mutation.module() if mutation.module else contextlib.nullcontext():
        (got,) = our_stages(
            qwen3_vl, [wrong], model=model, params=params, batch=batch_prompts([wrong]),
            program=program,
        )  # fmt: skip
    errors = stage_errors(got, wanted)
    assert first_failure(errors) == mutation.stage, errors
    assert errors["logits"] > GATE, errors
