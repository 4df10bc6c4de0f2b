"""Batches of the longest examples, of which only shapes exist.

B: examples, P: prompt or prefix tokens, L: packed text tokens, M: blocks, g: draft length,
N: tiles, R: bank rows, A: axes of a position.

Shapes are those that data/batches.py and data/draft_batches.py give such examples: one picture, as
large as pictures.py says, and as much text as the run allows.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import ShapeDtypeStruct as Shape
from jax.sharding import Mesh, NamedSharding

from tiger_jax.data.batches import round_tiles, round_width
from tiger_jax.data.draft_batches import BLOCK_MULTIPLE
from tiger_jax.decoding.drafters.protocol import PromptArrays
from tiger_jax.dry_run.pictures import Picture, largest_picture
from tiger_jax.models.config import ModelConfig
from tiger_jax.routing.bank import BankLayout, Stream
from tiger_jax.routing.router import RouterConfig
from tiger_jax.sharding import rules
from tiger_jax.training.block_layout import Prefixes, TextRows
from tiger_jax.training.draft_batch import DraftBatch

LEADING_TEXT = 40
"""Tokens of the system prompt, before the picture."""


@dataclasses.dataclass(frozen=True)
class Longest:
    """Sizes of the longest examples of a run."""

    picture: Picture
    axes: tuple[int, ...]
    """A of the positions of prompts: () or (3,)."""
    prompt: int
    """Tokens of the prompt with its question, padded."""
    prefix: int
    """Tokens up to the last visual one, padded."""
    stream: int
    """Tokens of the drafter's prefix stream, padded."""
    text: int
    """Packed text tokens: question and response."""
    response: int

    @classmethod
    def of(
        cls, model: ModelConfig, router: RouterConfig, max_length: int, response: int
    ) -> "Longest":
        """Sizes for a model and the limits of a run.

        Args:
            max_length: text tokens of a prompt with its response; 0 = the model's positions.
            response: most tokens of a response.
        """
        picture = largest_picture(model)
        visual, sections = picture.visual, model.text.mrope_section
        positions, length = model.text.max_positions, max_length or model.text.max_positions
        pooled = router.pooled_tokens if router.stream_query == "visual" else 0
        stream = LEADING_TEXT + (visual if router.stream_query == "full" else pooled)
        return cls(
            picture=picture, axes=(len(sections),) if sections else (),
            prompt=round_width(min(visual + length - 1, positions)),
            prefix=round_width(visual + LEADING_TEXT), stream=round_width(stream),
            text=round_up(length, 32), response=min(response, length),
        )  # fmt: skip

    @property
    def visual(self) -> int:
        """Visual tokens."""
        return self.picture.visual

    def positions(self, *shape: int) -> Shape:
        """Rotary positions of tokens in a prompt: int32 [*shape, *A]."""
        return ints(*shape, *self.axes)

    def tiles(self, size: int, dtype: Any = jnp.float32) -> Any:
        """What the vision tower takes of `size` examples."""
        return self.picture.shapes(round_tiles(size * self.picture.tiles, size), dtype)

    def blocks(self, draft_length: int, cuts: int = 0) -> int:
        """Blocks of an example: those that hold its whole response, or `cuts`."""
        count = cuts or -(-self.response // draft_length) + 1
        return round_up(count, BLOCK_MULTIPLE)


def round_up(count: int, multiple: int) -> int:
    """The next multiple."""
    return -(-count // multiple) * multiple


def place_batch(tree: Any, mesh: Mesh) -> Any:
    """A batch on a mesh, cut as `sharding.rules.place_batch` cuts a real one."""

    def put(x: Shape) -> Shape:
        axes = ("batch", *[None] * (x.ndim - 1)) if x.ndim else ()
        sharding = NamedSharding(mesh, rules.spec_for(x.shape, axes, mesh))
        return Shape(x.shape, x.dtype, sharding=sharding)

    return jax.tree.map(put, tree)


def draft_batch(
    longest: Longest, size: int, blocks: int, draft_length: int, kept: tuple[int, int],
    pooled: int,
) -> DraftBatch:  # fmt: skip
    """Shapes of one micro-batch of training; `kept` = entries of a law and of an attention."""
    tokens, laws = longest.text, (blocks, draft_length, kept[0])
    return DraftBatch(
        tiles=longest.tiles(size), prefix_tokens=ints(size, longest.prefix),
        prefix_image_rows=ints(size, longest.prefix), prefix_lengths=ints(size),
        prefix_positions=longest.positions(size, longest.prefix),
        stream=stream(longest, size, pooled),
        tokens=ints(size, tokens), segments=ints(size, tokens), positions=ints(size, tokens),
        anchors=ints(size, blocks), block_lengths=ints(size, blocks),
        block_tokens=ints(size, *laws[:2]), block_logprobs=floats(size, *laws[:2]),
        law_ids=ints(size, *laws), law_logprobs=floats(size, *laws),
        route_ids=ints(size, blocks, kept[1]), route_weights=floats(size, blocks, kept[1]),
    )  # fmt: skip


def stream(longest: Longest, size: int, pooled: int) -> Stream:
    """The drafter's reading of the prefixes."""
    rows, bank = longest.stream, round_width(longest.visual)
    layout = BankLayout(
        rows=ints(size, bank), sources=ints(size, bank), positions=longest.positions(size, bank),
        images=ints(size, bank), regions=ints(size, bank),
        region_sizes=floats(size, max(pooled, 1)),
    )  # fmt: skip
    return Stream(
        tokens=ints(size, rows), lengths=ints(size), sources=ints(size, rows),
        positions=longest.positions(size, rows), visual=ints(size, rows), bank=layout,
    )  # fmt: skip


def teacher_batch(longest: Longest, size: int) -> tuple[Prefixes, TextRows]:
    """Prefixes and packed texts of a teacher's pass."""
    prefix, text = (size, longest.prefix), (size, longest.text)
    return (
        Prefixes(
            longest.tiles(size), ints(*prefix), ints(*prefix), ints(size),
            longest.positions(*prefix),
        ),
        TextRows(ints(*text), ints(*text), ints(*text)),
    )  # fmt: skip


def prompts(longest: Longest, size: int, dtype: Any, pooled: int | None = None) -> PromptArrays:
    """A batch of prompts for decoding; `pooled`: with the streams of a routed drafter."""
    return PromptArrays(
        tokens=ints(size, longest.prompt), lengths=ints(size),
        image_rows=ints(size, longest.prompt), tiles=longest.tiles(size, dtype),
        stream=None if pooled is None else stream(longest, size, pooled),
        positions=longest.positions(size, longest.prompt),
    )  # fmt: skip


def ints(*shape: int) -> Shape:
    """int32."""
    return Shape(shape, jnp.int32)


def floats(*shape: int) -> Shape:
    """float32."""
    return Shape(shape, jnp.float32)
