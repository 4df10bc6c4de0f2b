"""A verifier of LLaVA-1.6's size of which only shapes exist, and what decoding holds then.

B: batch, V: vocabulary.
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import ShapeDtypeStruct as Shape
from jax.typing import DTypeLike

from tiger_jax.decoding import prefill
from tiger_jax.decoding.drafters.protocol import Drafter, PromptArrays
from tiger_jax.decoding.engine import CAPACITY_STEP, STOP_IDS
from tiger_jax.decoding.state import DecodeState, Limits
from tiger_jax.models.config_reader import make_config
from tiger_jax.models.interface import Params, VisionLanguageModel, build_model
from tiger_jax.models.published import published_config
from tiger_jax.ops.sampling import Sampling, SamplingMode
from tiger_jax.routing.bank import BankLayout, Stream

DTYPE = jnp.bfloat16
NAME = "llava-v1.6-vicuna-{}-hf"
TARGETS = {size: published_config(NAME.format(size))["text_config"] for size in ("13b", "7b")}
"""Text models of LLaVA-1.6 with Vicuna; the rest is the same in both."""
VOCABULARY = 32064
COUNT = Shape((), jnp.int32)
"""How many turns a loop is told to make."""
PROMPT_TEXT = 64
"""Text rows that stand in the prompt; the other ones are emitted."""


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What one decoding has to hold."""

    batch: int
    visual_tokens: int
    text_rows: int

    @property
    def room(self) -> int:
        """Tokens that are emitted."""
        return self.text_rows - PROMPT_TEXT


@dataclasses.dataclass(frozen=True)
class Verifier:
    """A verifier of which only shapes exist."""

    model: VisionLanguageModel
    params: Params

    @classmethod
    def of(cls, target: str, layers: int = 0) -> "Verifier":
        """LLaVA-1.6 in bfloat16; `layers` > 0 makes it that shallow."""
        # The tower has no part in decoding; a shallow one is traced faster.
        config = make_config(raw_config(target, layers))
        tower = dataclasses.replace(config.vision, num_layers=2)
        model = build_model(dataclasses.replace(config, vision=tower), DTYPE)
        return cls(model, model.abstract_params(DTYPE))

    @property
    def layers(self) -> int:
        """Layers of the text model."""
        return self.model.config.text.num_layers

    @property
    def weight_bytes(self) -> int:
        """Weights that a step reads: all of the text model but the table of embeddings."""
        text = dict(self.params["language_model"])
        text.pop("embed_tokens")
        return tree_bytes(text)

    def start(
        self, sizes: Sizes, drafter: Drafter | None = None, drafter_params: Any = None
    ) -> tuple[DecodeState, Sampling, Limits]:
        """What the engine holds after prefill."""
        nodes = drafter.spec.nodes if drafter else 1
        prompt = self._prompt(sizes, getattr(drafter, "stream_query", "text_only"))
        rows = prompt.tokens.shape[1] + sizes.room + nodes + 1
        request, limits = _request(sizes.batch)
        begin = partial(
            prefill.start, self.model, drafter, room=sizes.room, mode=SamplingMode.GREEDY,
            capacity=-(-rows // CAPACITY_STEP) * CAPACITY_STEP,
        )  # fmt: skip
        state = jax.eval_shape(begin, self.params, drafter_params, prompt, request, limits)
        return state, request, limits

    def _prompt(self, sizes: Sizes, query: str) -> PromptArrays:
        """One picture a prompt, its tokens in the stream or in the bank alone.

        The vision tower is left out: it has no part in decoding.
        """
        batch, visual = sizes.batch, sizes.visual_tokens
        length = visual + PROMPT_TEXT
        seen = length if query == "full" else PROMPT_TEXT

        def make() -> PromptArrays:
            bank = BankLayout(
                **{name: zeros(batch, visual) for name in
                   ("rows", "sources", "positions", "images", "regions")},
                region_sizes=zeros(batch, 1, dtype=jnp.float32),
            )  # fmt: skip
            stream = Stream(
                tokens=zeros(batch, seen), lengths=zeros(batch), sources=zeros(batch, seen),
                positions=zeros(batch, seen), visual=zeros(batch, seen), bank=bank,
            )  # fmt: skip
            return PromptArrays(
                tokens=zeros(batch, length), lengths=zeros(batch), image_rows=None, tiles=None,
                stream=stream,
            )  # fmt: skip

        return jax.eval_shape(make)


def raw_config(target: str, layers: int = 0) -> dict:
    """What config.json of LLaVA-1.6 says; `layers` > 0 makes the text model that shallow."""
    raw = published_config(NAME.format("13b"))
    shallow = {"num_hidden_layers": layers} if layers else {}
    raw["text_config"] |= TARGETS[target] | shallow
    return raw


def tree_bytes(tree: Any) -> int:
    """Bytes of all arrays."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def zeros(*shape: int, dtype: DTypeLike = jnp.int32) -> jax.Array:
    """An array that `jax.eval_shape` never makes."""
    return jnp.zeros(shape, dtype)


def _request(batch: int) -> tuple[Sampling, Limits]:
    def make() -> tuple[Sampling, Limits]:
        request = Sampling(
            temperature=zeros(batch, dtype=jnp.float32), top_k=zeros(batch),
            top_p=zeros(batch, dtype=jnp.float32), seeds=zeros(batch, dtype=jnp.uint32),
        )  # fmt: skip
        limits = Limits(
            stop_ids=zeros(batch, STOP_IDS), max_new_tokens=zeros(batch),
            drawable=zeros(VOCABULARY, dtype=bool),
        )  # fmt: skip
        return request, limits

    return jax.eval_shape(make)
