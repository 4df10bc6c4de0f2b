"""The names of LLaVA-NeXT weights: one table in the canonical layout A, five layouts on reading.

Layouts (models.md 4.1), all of one set of weights and told apart by their prefixes:
    A  llava-hf on the hub, and what older transformers write: the table is in this one
    C  transformers 5 in memory and resaved from there;  E  4.52 to early 5, in memory
    D  transformers 5, saved from a fresh model
    O  the original liuhaotian format (LlavaLlamaForCausalLM), its vocabulary without added tokens
"""

import dataclasses
from collections.abc import Collection

from tiger_jax.weights.name_table import NameTable, Rule
from tiger_jax.weights.tensor_ops import IDENTITY, PatchConv, TensorOp, Transpose

EMBEDDING = "language_model.model.embed_tokens.weight"
LM_HEAD = "language_model.lm_head.weight"
VISION_PREFIX = "vision_tower.vision_model."

# Buffers that some versions of transformers stored; they follow from the config.
_DROPPED = ("rotary_emb.inv_freq", "embeddings.position_ids")
# What a full CLIPModel holds beside the vision tower.
_CLIP_TEXT_SIDE = ("text_model.", "text_projection.", "visual_projection.", "logit_scale")
_CLIP_PARTS = ("embeddings.", "pre_layrnorm.", "encoder.", "post_layernorm.")


def _linear(hf: str, path: str, *, bias: bool) -> list[Rule]:
    rules = [Rule(f"{hf}.weight", f"{path}/kernel", Transpose())]
    return rules + [Rule(f"{hf}.bias", f"{path}/bias")] * bias


def _layer_norm(hf: str, path: str) -> list[Rule]:
    return [Rule(f"{hf}.weight", f"{path}/scale"), Rule(f"{hf}.bias", f"{path}/bias")]


def _vision_rules() -> list[Rule]:
    hf, path = VISION_PREFIX.rstrip("."), "vision_tower"
    layer, layer_path = f"{hf}.encoder.layers.{{i}}", f"{path}/layers_{{i}}"
    embeddings: list[tuple[str, str, TensorOp]] = [
        ("class_embedding", "class_embedding", IDENTITY),
        ("patch_embedding.weight", "patch_embedding/kernel", PatchConv()),
        ("position_embedding.weight", "position_embedding/embedding", IDENTITY),
    ]
    rules = [Rule(f"{hf}.embeddings.{a}", f"{path}/{b}", op) for a, b, op in embeddings]
    rules += _layer_norm(f"{hf}.pre_layrnorm", f"{path}/pre_norm")  # the spelling is the field's
    rules += _layer_norm(f"{hf}.post_layernorm", f"{path}/post_norm")
    for k in (1, 2):
        rules += _layer_norm(f"{layer}.layer_norm{k}", f"{layer_path}/norm{k}")
        rules += _linear(f"{layer}.mlp.fc{k}", f"{layer_path}/mlp/fc{k}", bias=True)
    for a, b in {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "out"}.items():
        rules += _linear(f"{layer}.self_attn.{a}", f"{layer_path}/attention/{b}", bias=True)
    return rules


def _language_rules() -> list[Rule]:
    layer, layer_path = "language_model.model.layers.{i}", "language_model/layers_{i}"
    rules = [
        Rule(EMBEDDING, "language_model/embed_tokens/embedding"),
        Rule("language_model.model.norm.weight", "language_model/final_norm/scale"),
        Rule(LM_HEAD, "language_model/lm_head/kernel", Transpose()),
        Rule(f"{layer}.input_layernorm.weight", f"{layer_path}/input_norm/scale"),
        Rule(f"{layer}.post_attention_layernorm.weight", f"{layer_path}/post_attention_norm/scale"),
    ]
    for a, b in {"q_proj": "query", "k_proj": "key", "v_proj": "value", "o_proj": "out"}.items():
        rules += _linear(f"{layer}.self_attn.{a}", f"{layer_path}/attention/{b}", bias=False)
    for name in ("gate", "up", "down"):
        rules += _linear(f"{layer}.mlp.{name}_proj", f"{layer_path}/mlp/{name}", bias=False)
    return rules


def _projector_rules() -> list[Rule]:
    rules = [Rule("image_newline", "image_newline")]
    for k in (1, 2):
        rules += _linear(f"multi_modal_projector.linear_{k}", f"projector/linear_{k}", bias=True)
    return rules


LLAVA_NEXT = NameTable([*_projector_rules(), *_vision_rules(), *_language_rules()])


@dataclasses.dataclass(frozen=True)
class Layout:
    """A spelling of the same names: (its prefix, A's prefix) pairs, the first match counts.

    A name that no pair matches stays as it is, so a stray A name in another layout's file lands on
    its weight too and is reported as set twice, or it is reported as unexpected.
    """

    name: str
    prefixes: tuple[tuple[str, str], ...]

    def to_canonical(self, name: str) -> str:
        for own, canonical in self.prefixes:
            if name.startswith(own):
                return canonical + name.removeprefix(own)
        return name

    def from_canonical(self, name: str) -> str:
        for own, canonical in self.prefixes:
            if name.startswith(canonical):
                return own + name.removeprefix(canonical)
        return name


def _in_memory_layout(name: str, vision_prefix: str) -> Layout:
    return Layout(
        name,
        (
            (vision_prefix, VISION_PREFIX),
            ("model.language_model.", "language_model.model."),
            ("lm_head.", "language_model.lm_head."),
            ("model.multi_modal_projector.", "multi_modal_projector."),
            ("model.image_newline", "image_newline"),
        ),
    )


LAYOUTS = {
    layout.name: layout
    for layout in (
        Layout("A", ()),
        _in_memory_layout("C", "model.vision_tower."),
        Layout("D", (("vision_tower.", VISION_PREFIX),)),
        _in_memory_layout("E", "model.vision_tower.vision_model."),
        Layout(
            "O",
            (
                ("model.vision_tower.vision_tower.vision_model.", VISION_PREFIX),
                ("model.mm_projector.0.", "multi_modal_projector.linear_1."),
                ("model.mm_projector.2.", "multi_modal_projector.linear_2."),
                ("model.image_newline", "image_newline"),
                ("lm_head.", "language_model.lm_head."),
                ("model.", "language_model.model."),  # last: the shortest prefix matches all above
            ),
        ),
    )
}


def detect_layout(names: Collection[str]) -> Layout:
    """The layout that the prefixes of a checkpoint's names give away; A when nothing does."""

    def any_starts(*prefixes: str) -> bool:
        return any(name.startswith(prefixes) for name in names)

    if any_starts("model.mm_projector.", "model.embed_tokens.", "model.layers."):
        return LAYOUTS["O"]
    if any_starts("model.language_model."):
        return LAYOUTS["E" if any_starts("model.vision_tower.vision_model.") else "C"]
    old_tower = any_starts(VISION_PREFIX) or not any_starts("vision_tower.")
    return LAYOUTS["A" if old_tower else "D"]


def is_dropped(name: str) -> bool:
    """True for stored buffers that are no weights."""
    return name.endswith(_DROPPED)


def separate_tower_name(name: str) -> str | None:
    """A's name for a tensor of a CLIPVisionModel or CLIPModel file; None for the text side."""
    if name.startswith(_CLIP_TEXT_SIDE):
        return None
    part = name.removeprefix("vision_model.")
    return VISION_PREFIX + part if part.startswith(_CLIP_PARTS) else name
