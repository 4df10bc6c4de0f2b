"""The names of Qwen3-VL weights: the hub, transformers in memory and its files spell them alike.

Layouts (models.md 4.2):
    A     model.visual.*, model.language_model.*, lm_head.weight (absent where tied): the only one
          that is written
    base  a Qwen3VLModel without its head, whose names lack the leading "model."
"""

from collections.abc import Collection

from tiger_jax.models.config import Qwen3VisionConfig
from tiger_jax.weights.name_table import Layout, NameTable, Rule
from tiger_jax.weights.shared_rules import ROTARY_BUFFER, decoder_rules, layer_norm, linear
from tiger_jax.weights.tensor_ops import FrameConv

EMBEDDING = "model.language_model.embed_tokens.weight"
LM_HEAD = "lm_head.weight"

DROPPED = (ROTARY_BUFFER, "rotary_pos_emb.inv_freq")
"""How the names of stored buffers end: of the decoder and of the tower."""

_VISION, _LANGUAGE = "model.visual", "model.language_model"
_COLOURS = 3


def qwen3_vl_table(vision: Qwen3VisionConfig) -> NameTable:
    """The table of a model whose patches have the sizes that `vision` names."""
    return NameTable(
        [
            *_patch_rules(vision),
            *_block_rules(),
            *_merger_rules(f"{_VISION}.merger", "merger"),
            *_merger_rules(f"{_VISION}.deepstack_merger_list.{{i}}", "deepstack_mergers_{i}"),
            *decoder_rules(_LANGUAGE, EMBEDDING, LM_HEAD),
            *_head_norm_rules(),
        ]
    )


def _patch_rules(vision: Qwen3VisionConfig) -> list[Rule]:
    conv = FrameConv(_COLOURS, vision.temporal_patch_size, vision.patch_size)
    hf, path = f"{_VISION}.patch_embed.proj", "vision_tower/patch_embedding"
    return [
        Rule(f"{hf}.weight", f"{path}/kernel", conv),
        Rule(f"{hf}.bias", f"{path}/bias"),
        Rule(f"{_VISION}.pos_embed.weight", "vision_tower/position_embedding/embedding"),
    ]


def _block_rules() -> list[Rule]:
    """The fused projection stays fused: its rows are [queries | keys | values] on both sides."""
    hf, path = f"{_VISION}.blocks.{{i}}", "vision_tower/layers_{i}"
    rules = []
    for k in (1, 2):
        rules += layer_norm(f"{hf}.norm{k}", f"{path}/norm{k}")
        rules += linear(f"{hf}.mlp.linear_fc{k}", f"{path}/mlp/fc{k}", bias=True)
    for a, b in {"qkv": "qkv", "proj": "out"}.items():
        rules += linear(f"{hf}.attn.{a}", f"{path}/attention/{b}", bias=True)
    return rules


def _merger_rules(hf: str, path: str) -> list[Rule]:
    rules = layer_norm(f"{hf}.norm", f"{path}/norm")
    for k in (1, 2):
        rules += linear(f"{hf}.linear_fc{k}", f"{path}/fc{k}", bias=True)
    return rules


def _head_norm_rules() -> list[Rule]:
    hf, path = f"{_LANGUAGE}.layers.{{i}}.self_attn", "language_model/layers_{i}/attention"
    names = {"q_norm": "query_norm", "k_norm": "key_norm"}
    return [Rule(f"{hf}.{a}.weight", f"{path}/{b}/scale") for a, b in names.items()]


LAYOUTS = {"A": Layout("A", ())}
"""Those that can be written."""
_BASE = Layout(
    "base", tuple((f"{part}.", f"model.{part}.") for part in ("visual", "language_model"))
)


def detect_layout(names: Collection[str]) -> Layout:
    """The layout that the prefixes of a checkpoint's names give away; A when nothing does."""
    own = tuple(prefix for prefix, _ in _BASE.prefixes)
    return _BASE if any(name.startswith(own) for name in names) else LAYOUTS["A"]
