"""The stage gates can fail: every mistake of models.md 7.1 is seen, at the stage where it is made.

Each mutation breaks our side only, through its configuration, weights, prompt arrays, or a module's
output. The test asks which stage fails first, so the gates also say where to look.
"""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import NamedTuple
from unittest import mock

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pairs import picture, prompt_text
from stages import (
    GATE,
    first_failure,
    fresh_program,
    make_prompts,
    our_stages,
    reference_stages,
    stage_errors,
)

from tiger_jax.data.batches import PromptInputs
from tiger_jax.models import clip_vision
from tiger_jax.models.config import LlavaNextConfig
from tiger_jax.models.interface import build_model
from tiger_jax.ops import rotary

# A square of 2x2 tiles, where rows and columns can be told apart only by their content, and a tall
# picture of another length. 16 rows a base tile; the square has 8x9 more, the tall one 12x3.
CASE = (prompt_text(2, 8), [picture(112, 112), picture(130, 30, 1)])
SQUARE, TALL = 16 + 8 * 9, 16 + 12 * 3


class Mutation(NamedTuple):
    """What goes wrong, the stage that must notice, and how."""

    name: str
    stage: str
    config: Callable[[LlavaNextConfig], LlavaNextConfig] | None = None
    params: Callable[[dict], dict] | None = None
    prompt: Callable[[PromptInputs], PromptInputs] | None = None
    module: Callable[[], contextlib.AbstractContextManager] | None = None


def vision(**changes):
    return lambda c: dataclasses.replace(c, vision=dataclasses.replace(c.vision, **changes))


def text(**changes):
    return lambda c: dataclasses.replace(c, text=dataclasses.replace(c.text, **changes))


def top(**changes):
    return lambda c: dataclasses.replace(c, **changes)


def skip_module(name: str):
    """The module called `name` gives back its input."""

    def interceptor(call, args, kwargs, context):
        own = context.module.name == name and context.method_name == "__call__"
        return args[0] if own else call(*args, **kwargs)

    return lambda: nn.intercept_methods(interceptor)


def zero(params: dict, *path: str) -> dict:
    def one(key_path, leaf):
        return jnp.zeros_like(leaf) if [k.key for k in key_path] == list(path) else leaf

    return jax.tree_util.tree_map_with_path(one, params)


def edit_image_rows(edit: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]):
    """`edit` gets the rows of the square and of the tall picture and gives the new ones."""

    def apply(prompt):
        rows = prompt.image_rows.copy()
        places = np.flatnonzero(rows >= 0)
        own = rows[places]
        assert len(own) == SQUARE + TALL
        rows[places] = np.concatenate(edit(own[:SQUARE], own[SQUARE:]))
        return prompt._replace(image_rows=rows)

    return apply


def swap_middle_tiles(square, tall):
    """Tiles 2 and 3 of base, 1 2 / 3 4: the grid read column by column."""
    tile = square // 16
    moved = np.where(tile == 2, square + 16, np.where(tile == 3, square - 16, square))
    return moved, tall


def base_view_last(square, tall):
    return np.roll(square, -16), np.roll(tall, -16)


def images_reversed(square, tall):
    return tall, square


def without_newline_gaps(square, tall):
    """One newline at the end of the picture where each line has one: rows run on."""
    newline = square[-1]
    lines = square[16:]
    kept = lines[lines != newline]
    gaps = np.full(len(lines) - len(kept), newline)
    return np.concatenate([square[:16], kept, gaps]), tall


def half_half_normalisation(prompt):
    """(x - 0.5) / 0.5 in place of CLIP's mean and deviation, as SigLIP has it."""
    mean = np.float32([0.48145466, 0.4578275, 0.40821073])
    std = np.float32([0.26862954, 0.26130258, 0.27577711])
    return prompt._replace(tiles=(prompt.tiles * std + mean - 0.5) / 0.5)


def bgr(prompt):
    return prompt._replace(tiles=np.ascontiguousarray(prompt.tiles[..., ::-1]))


def patches_column_major(tiles, patch):
    count, side, _, channels = tiles.shape
    grid = side // patch
    rows = tiles.reshape(count, grid, patch, grid, patch, channels).transpose(0, 3, 1, 2, 4, 5)
    return rows.reshape(count, grid * grid, patch * patch * channels)


def rotate_neighbours(x, cos, sin):
    """Rotary pairs (0, 1), (2, 3), ... where Llama pairs (0, d/2), (1, d/2 + 1), ..."""
    half = x.shape[-1] // 2
    first, second = x[..., ::2], x[..., 1::2]
    cos, sin = cos[:, :, None, :half], sin[:, :, None, :half]
    turned = jnp.stack([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.reshape(x.shape)


MUTATIONS = [
    # models.md 7.1
    Mutation("CLIP norm epsilon 1e-6", "pre norm", config=vision(layer_norm_eps=1e-6)),
    Mutation("Llama epsilon 1e-6", "layer 0", config=text(rms_norm_eps=1e-6)),
    Mutation("projector tanh gelu", "projected",
             config=top(projector_activation="gelu_pytorch_tanh")),
    Mutation("CLIP erf gelu", "block 0", config=vision(activation="gelu")),
    Mutation("projector quick gelu", "projected", config=top(projector_activation="quick_gelu")),
    Mutation("newline zero", "packed 0", params=lambda p: zero(p, "image_newline")),
    Mutation("no pre_layrnorm", "pre norm", module=skip_module("pre_norm")),
    Mutation("tiles column-major", "packed 0", prompt=edit_image_rows(swap_middle_tiles)),
    Mutation("base view last", "packed 0", prompt=edit_image_rows(base_view_last)),
    Mutation("half-half normalisation", "tiles", prompt=half_half_normalisation),
    Mutation("feature layer -1", "selected", config=top(feature_layers=(-1,))),
    Mutation("image order reversed", "packed 0", prompt=edit_image_rows(images_reversed)),
    # and a few more that other ports made (section 8)
    Mutation("feature layer -3", "block 1", config=top(feature_layers=(-3,))),
    Mutation("newlines at the end", "packed 0", prompt=edit_image_rows(without_newline_gaps)),
    Mutation("BGR", "tiles", prompt=bgr),
    Mutation("patches column-major", "patch rows",
             module=lambda: mock.patch.object(clip_vision, "patch_rows", patches_column_major)),
    Mutation("rotary theta 5e5", "layer 0", config=text(rope_theta=5e5)),
    Mutation("rotary of neighbours", "layer 0",
             module=lambda: mock.patch.object(rotary, "rotate", rotate_neighbours)),
    Mutation("no final norm", "final norm", module=skip_module("final_norm")),
]  # fmt: skip


@pytest.fixture(scope="module")
def wanted(pair):
    return reference_stages(pair, *CASE)


@pytest.mark.parametrize("program", [None, fresh_program()], ids=["usual", "fresh"])
def test_without_a_mutation_nothing_fails(pair, wanted, program):
    (got,) = our_stages(pair, [CASE], program=program)
    assert first_failure(stage_errors(got, wanted)) is None


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name)
def test_mutation_is_seen(pair, wanted, mutation):
    prompts = make_prompts(pair, [CASE])
    model = build_model(mutation.config(pair.config)) if mutation.config else None
    params = mutation.params(pair.params) if mutation.params else None
    if mutation.prompt:
        prompts = [mutation.prompt(prompts[0])]
    with mutation.module() if mutation.module else contextlib.nullcontext():
        # a changed module needs a program of its own: the usual one may be compiled already
        program = fresh_program() if mutation.module or mutation.config else None
        (got,) = our_stages(
            pair, [CASE], model=model, params=params, prompts=prompts, program=program
        )
    errors = stage_errors(got, wanted)
    assert first_failure(errors) == mutation.stage, errors
    assert errors["logits"] > GATE, errors
