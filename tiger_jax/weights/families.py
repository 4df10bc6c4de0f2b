"""What reading and writing have to know of a model family, and which one a configuration is."""

import dataclasses
from collections.abc import Callable, Collection, Mapping

from tiger_jax.models.config import LlavaNextConfig, ModelConfig, Qwen3VLConfig
from tiger_jax.weights import llava_next_names, qwen3_vl_names
from tiger_jax.weights.name_table import Layout, NameTable


@dataclasses.dataclass(frozen=True)
class Original:
    """A layout from before the model's Hugging Face port: its vocabulary lacks the added tokens,
    and its vision tower may lie in a file of its own."""

    layout: str
    tower_class: str
    """Class in transformers that such a file belongs to."""
    tower_prefix: str
    """What the tower's names begin with in the table."""
    tower_name: Callable[[str], str | None]
    """Name in that file -> the table's name; None for what is no part of the tower."""


@dataclasses.dataclass(frozen=True)
class Family:
    """The names of a family's weights."""

    table: NameTable
    layouts: Mapping[str, Layout]
    """Those that can be written, by name; all of them can be read. "A" is the hub's."""
    detect_layout: Callable[[Collection[str]], Layout]
    embedding: str
    lm_head: str
    dropped: tuple[str, ...]
    """How the names of stored buffers end that are no weights."""
    original: Original | None = None

    def is_dropped(self, name: str) -> bool:
        """True for stored buffers that are no weights."""
        return name.endswith(self.dropped)

    def is_original(self, layout: str) -> bool:
        """True for the name of the layout that `original` describes."""
        return self.original is not None and layout == self.original.layout


_LLAVA_NEXT = Family(
    table=llava_next_names.LLAVA_NEXT,
    layouts=llava_next_names.LAYOUTS,
    detect_layout=llava_next_names.detect_layout,
    embedding=llava_next_names.EMBEDDING,
    lm_head=llava_next_names.LM_HEAD,
    dropped=llava_next_names.DROPPED,
    original=Original(
        layout="O",
        tower_class="CLIPVisionModel",
        tower_prefix=llava_next_names.VISION_PREFIX,
        tower_name=llava_next_names.separate_tower_name,
    ),
)


def family_of(config: ModelConfig) -> Family:
    """The family of a configuration. Raises TypeError for a type that has none."""
    match config:
        case LlavaNextConfig():
            return _LLAVA_NEXT
        case Qwen3VLConfig():
            return Family(
                table=qwen3_vl_names.qwen3_vl_table(config.vision),
                layouts=qwen3_vl_names.LAYOUTS,
                detect_layout=qwen3_vl_names.detect_layout,
                embedding=qwen3_vl_names.EMBEDDING,
                lm_head=qwen3_vl_names.LM_HEAD,
                dropped=qwen3_vl_names.DROPPED,
            )
    raise TypeError(f"expected the configuration of a model, got {type(config).__name__}")
