"""From checkpoint folders and requests to answers: where data, weights and decoding meet.

Entry points, drafting and evaluation import this module; none of the rooms that it joins does.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.typing import DTypeLike

from tiger_jax.data.batches import (
    SEQ_BUCKETS,
    PromptInputs,
    batch_prompts,
    make_prompt,
    round_up,
)
from tiger_jax.data.examples import USUAL_SAMPLING, load_pictures
from tiger_jax.data.processor import MOST_TILES, Processor
from tiger_jax.data.prompts import build_prompt
from tiger_jax.data.records import Request
from tiger_jax.data.videos import VideoSampling
from tiger_jax.data.visual_stream import batch_streams
from tiger_jax.decoding.drafters.medusa import MedusaDrafter
from tiger_jax.decoding.drafters.protocol import Drafter, PromptArrays, prompt_arrays
from tiger_jax.decoding.drafters.routed import RoutedDrafter
from tiger_jax.decoding.drafters.tree import DynamicTree, StaticTree
from tiger_jax.decoding.drafters.vlm import VLMDrafter
from tiger_jax.decoding.engine import BatchOutput, Engine, Options, Output
from tiger_jax.decoding.trace import Recorder
from tiger_jax.embedded import VLM
from tiger_jax.errors import UserError
from tiger_jax.head_loading import fit_tree, load_head
from tiger_jax.models.config import ModelConfig
from tiger_jax.models.interface import Params, build_model
from tiger_jax.routing.bank import Stream, make_stream
from tiger_jax.routing.router import LEARNED, SELECTORS, RouterConfig
from tiger_jax.sharding.rules import ROUTER_RULES, param_shardings, place_params
from tiger_jax.weights.head_io import is_head
from tiger_jax.weights.load import load_params
from tiger_jax.weights.original_config import read_config
from tiger_jax.weights.router_io import WEIGHTS_FILE, read_router


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A request ready to be batched."""

    request: Request
    inputs: PromptInputs
    options: Options


@dataclasses.dataclass(frozen=True)
class Answer:
    """An output, or the one line that says why there is none."""

    id: str | None
    output: Output | None = None
    error: str | None = None
    tokens_per_frame: tuple[int, ...] = ()
    """As of PromptInputs."""


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """A pair of checkpoints with the verifier's processor."""

    config: ModelConfig
    processor: Processor
    engine: Engine
    kind: str | None = None
    """Method of the drafter: vlm, or that of a head; None without one."""
    video: VideoSampling = USUAL_SAMPLING
    """Which pictures of a request's videos are read."""

    @classmethod
    def load(
        cls, verifier: str | Path, drafter: str | Path | None = None, *,
        draft_length: int = 5, confidence: float = 0.0, dtype: DTypeLike = jnp.float32,
        selector: str | None = None, routed_tokens: int | None = None,
        tree: DynamicTree | StaticTree | None = None, mesh: Mesh | None = None,
        video_prompt: str = "v5", visual_budget: int | None = None,
    ) -> "Pipeline":  # fmt: skip
        """Read a verifier and, if given, a drafter from their folders.

        Args:
            drafter: of a small model of the verifier's family, or of a head.
            tree: what a head drafts instead of a chain.
            selector: how the drafter sees pictures; as its folder says, or full, by default.
            routed_tokens: visual tokens a round; as the folder says, or 8, by default.
            mesh: where both are placed, by the rules of training; the default device if None.
            video_prompt: how a video stands in a prompt, v5 or 4.57 (of transformers).
            visual_budget: most visual tokens of a prompt; None: as the family has it by default.

        Raises:
            UserError: unreadable folders, a drafter that does not fit the verifier, a selector
                that it has no weights for, or routing without a drafter.
        """
        if drafter is None and (selector is not None or routed_tokens is not None):
            raise UserError("selector and routed tokens: expected a drafter to use them, got none")
        config = read_config(verifier)
        processor = Processor.from_folder(verifier, config, video_prompt)
        if visual_budget is not None:
            processor = processor.with_budget(visual_budget)
        engine = Engine(
            model=build_model(config, dtype),
            params=read_weights(verifier, config, dtype, mesh),
            drawable=processor.drawable,
            detokenize=processor.decode,
            mesh=mesh,
        )
        pipeline = cls(config=config, processor=processor, engine=engine)
        if drafter is None:
            return pipeline
        return pipeline.with_drafter(
            drafter, draft_length=draft_length, confidence=confidence, selector=selector,
            routed_tokens=routed_tokens, tree=tree,
        )  # fmt: skip

    def with_drafter(
        self, drafter: str | Path, *, draft_length: int = 5, confidence: float = 0.0,
        selector: str | None = None, routed_tokens: int | None = None,
        tree: DynamicTree | StaticTree | None = None,
    ) -> "Pipeline":  # fmt: skip
        """The same verifier, not read again, with the drafter of a folder. Arguments as in `load`.

        Raises:
            UserError: as `load`.
        """
        dtype, mesh = self.engine.model.dtype, self.engine.mesh
        if is_head(drafter):
            method, chosen, params = load_head(
                drafter, self.engine.model, self.engine.params, draft_length=draft_length,
                confidence=confidence, tree=tree, selector=selector, routed_tokens=routed_tokens,
                mesh=mesh,
            )  # fmt: skip
            engine = dataclasses.replace(self.engine, drafter=chosen, drafter_params=params)
            return dataclasses.replace(self, engine=engine, kind=method)
        if tree is not None:
            raise UserError(f"draft tree: expected a head as drafter, got {drafter}")
        small = read_config(drafter)
        check_pair(self.config, small, self.processor, Processor.from_folder(drafter, small))
        model = build_model(small, dtype)
        found = read_router(drafter, small.text.hidden_size)
        router = choose_router(found and found[0], selector, routed_tokens)
        params = read_weights(drafter, small, dtype, mesh)
        chosen: Drafter = VLMDrafter(model, draft_length, confidence)
        if router.routes:
            chosen = RoutedDrafter(model, draft_length, router, confidence)
            if found:
                params |= place_params({"router": found[1]}, ROUTER_RULES, mesh)
        engine = dataclasses.replace(self.engine, drafter=chosen, drafter_params=params)
        return dataclasses.replace(self, engine=engine, kind=VLM)

    def with_draft_length(self, draft_length: int) -> "Pipeline":
        """The same pair with another draft length; 0 is plain decoding. A tree has its own depth,
        and a Medusa head drafts no more than it has blocks."""
        drafter = self.engine.drafter
        if draft_length == 0 or drafter is None:
            return self.plain()
        if isinstance(drafter, MedusaDrafter):
            draft_length = min(draft_length, drafter.head.config.medusa_heads)
        return self._with_drafter(dataclasses.replace(drafter, draft_length=draft_length))

    def with_tree(self, tree: DynamicTree | StaticTree | None) -> "Pipeline":
        """The same head with another tree; None drafts chains. Raises UserError."""
        drafter = self.engine.drafter
        tree = fit_tree(tree, drafter.head.config)
        return self._with_drafter(dataclasses.replace(drafter, tree=tree))

    def _with_drafter(self, drafter: Drafter) -> "Pipeline":
        engine = dataclasses.replace(self.engine, drafter=drafter)
        return dataclasses.replace(self, engine=engine)

    @property
    def router(self) -> RouterConfig | None:
        """How the drafter sees pictures; None without a drafter, and for a head that does not
        route."""
        if isinstance(self.engine.drafter, VLMDrafter):
            return RouterConfig("full")
        return getattr(self.engine.drafter, "router", None)

    def plain(self) -> "Pipeline":
        """The verifier alone."""
        return dataclasses.replace(self, engine=self.engine.plain(), kind=None)

    def prepare(self, request: Request, defaults: Options) -> Prepared:
        """Read a request's pictures, render and tokenise its prompt.

        Raises:
            UserError: an unreadable picture, counts that do not agree, a prompt that is too long.
        """
        images, videos = load_pictures(request, self.processor, self.video)
        text = build_prompt(self.processor, request.prompt, len(images), len(videos))
        inputs = make_prompt(self.processor, self.config, text, images, videos=videos)
        given = {
            field.name: getattr(request, field.name)
            for field in dataclasses.fields(Options)
            if getattr(request, field.name) not in (None, ())
        }
        return Prepared(request, inputs, dataclasses.replace(defaults, **given))

    def arrays(self, inputs: Sequence[PromptInputs], batch_size: int | None = None) -> PromptArrays:
        """Bucketed arrays of some prompts; missing rows are filled with one padding token."""
        batch_size = batch_size or len(inputs)
        nothing = inputs[0].cut(0)._replace(tiles=inputs[0].tiles[:0])
        filler = nothing.followed_by(np.full(1, self.config.pad_token_id, np.int32))
        rows = [*inputs, *[filler] * (batch_size - len(inputs))]
        batch = batch_prompts(rows, self.config)
        return prompt_arrays(batch, self.engine.model.dtype, self._stream(rows))

    def _stream(self, rows: Sequence[PromptInputs]) -> Stream | None:
        """The prompts as a drafter with a stream reads them; None if there is no such drafter."""
        needs = getattr(self.engine.drafter, "stream_needs", None)
        if needs is None:
            return None
        query, pooled_tokens = needs
        batch = batch_streams(rows, self.config, pooled_tokens, query)
        return make_stream({name: jnp.asarray(value) for name, value in batch._asdict().items()})

    def run(
        self, prepared: Sequence[Prepared], batch_size: int,
        update: Callable[[int, list[int]], None] | None = None, recorder: Recorder | None = None,
    ) -> BatchOutput:  # fmt: skip
        """Decode one batch; a recorder of as many rows is shown its rounds."""
        arrays = self.arrays([p.inputs for p in prepared], batch_size)
        return self.engine.run(arrays, [p.options for p in prepared], update, recorder)

    def run_alone(
        self, prepared: Sequence[Prepared], batch_size: int,
        update: Callable[[int, list[int]], None] | None = None,
    ) -> BatchOutput:  # fmt: skip
        """The answers of the drafter by itself, with the visual tokens that it sees while it
        drafts. Nothing is verified: no rounds. Raises UserError without a drafter, or for a head.
        """
        arrays = self.arrays([p.inputs for p in prepared], batch_size)
        return self.engine.run_alone(arrays, [p.options for p in prepared], update)


def read_weights(
    folder: str | Path, config: ModelConfig, dtype: DTypeLike, mesh: Mesh | None
) -> Params:
    """Weights of a folder, straight into their places on a mesh. Raises UserError."""
    model, shardings = build_model(config), None
    if mesh is not None:
        shardings = param_shardings(model.abstract_params(), model.rules, mesh)
    return load_params(folder, config, dtype=dtype, shardings=shardings)


def choose_router(
    found: RouterConfig | None, selector: str | None = None, routed_tokens: int | None = None
) -> RouterConfig:
    """What a drafter is run with: its own configuration, with what the user asked for instead.

    Args:
        found: the configuration in the drafter's folder; without one it sees every visual token.

    Raises:
        UserError: an unknown selector, one that needs a router which is not there, or a number of
            routed tokens for a drafter that does not route.
    """
    if found is None and selector in LEARNED:
        others = ", ".join(name for name in SELECTORS if name not in LEARNED)
        raise UserError(
            f"selector: expected one of {others} for a drafter without {WEIGHTS_FILE}, "
            f"got {selector}"
        )
    config = found or RouterConfig("full")
    if selector is not None:
        config = dataclasses.replace(config, selector=selector)
    if routed_tokens is None:
        return config
    if not config.routes:
        raise UserError(
            f"routed tokens: expected a selector that routes, got {routed_tokens} with full"
        )
    return dataclasses.replace(config, routed_tokens=routed_tokens)


def batches(prepared: Sequence[Prepared], batch_size: int) -> Iterator[list[int]]:
    """Indices of requests in groups of one prompt bucket and one size of tiles: no short prompt is
    padded to a long one, and no small frame to a large one.

    Groups keep the order of the requests within a bucket, and hold no more tiles than a batch may.
    """
    by_bucket: dict[tuple[int, int], list[int]] = {}
    for index, item in enumerate(prepared):
        bucket = round_up(len(item.inputs.tokens), SEQ_BUCKETS)
        by_bucket.setdefault((bucket, item.inputs.tile_rows), []).append(index)
    for members in by_bucket.values():
        group, tiles = [], 0
        for index in members:
            own = len(prepared[index].inputs.tiles)
            if group and (len(group) == batch_size or tiles + own > MOST_TILES):
                yield group
                group, tiles = [], 0
            group.append(index)
            tiles += own
        yield group


def check_pair(
    verifier: ModelConfig, drafter: ModelConfig, processor: Processor, other: Processor
) -> None:
    """UserError unless the two models read the same tokens and cut pictures into the same rows."""
    if processor.vocab_limit != other.vocab_limit or (
        processor.tokenizer.get_vocab() != other.tokenizer.get_vocab()
    ):
        raise UserError(
            "drafter: expected the verifier's vocabulary "
            f"({processor.vocab_limit} tokens), got another one ({other.vocab_limit} tokens)"
        )
    if type(verifier) is not type(drafter):
        names = (type(config).__name__.removesuffix("Config") for config in (verifier, drafter))
        raise UserError("drafter: expected a {} model as the verifier is, got {}".format(*names))
    needed, found = (
        {"vocabulary rows": config.text.vocab_size, "stop ids": config.eos_token_ids}
        | config.picture_facts
        for config in (verifier, drafter)
    )
    for name, value in needed.items():
        if value != found[name]:
            raise UserError(
                f"drafter: expected {name} {value} as in the verifier, got {found[name]}"
            )
