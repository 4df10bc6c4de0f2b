"""The names of LLaVA-NeXT weights: one table in the canonical layout A, five layouts on reading.

Layouts (models.md 4.1), all of one set of weights and told apart by their prefixes:
    A  llava-hf on the hub, and what older transformers write: the table is in this one
    C  transformers 5 in memory and resaved from there;  E  4.52 to early 5, in memory
    D  transformers 5, saved from a fresh model
    O  the original liuhaotian format (LlavaLlamaForCausalLM), its vocabulary without added tokens
"""

from collections.abc import Collection

from tiger_jax.weights.name_table import Layout, NameTable, Rule
from tiger_jax.weights.shared_rules import ROTARY_BUFFER, decoder_rules, layer_norm, linear
from tiger_jax.weights.tensor_ops import IDENTITY, PatchConv, TensorOp

EMBEDDING = "language_model.model.embed_tokens.weight"
LM_HEAD = "language_model.lm_head.weight"
VISION_PREFIX = "vision_tower.vision_model."

DROPPED = (ROTARY_BUFFER, "embeddings.position_ids")
"""How the names of stored buffers end: they follow from the config and are no weights."""
# What a full CLIPModel holds beside the vision tower.
_CLIP_TEXT_SIDE = ("text_model.", "text_projection.", "visual_projection.", "logit_scale")
_CLIP_PARTS = ("embeddings.", "pre_layrnorm.", "encoder.", "post_layernorm.")


def _vision_rules() -> list[Rule]:
    hf, path = VISION_PREFIX.rstrip("."), "vision_tower"
    layer, layer_path = f"{hf}.encoder.layers.{{i}}", f"{path}/layers_{{i}}"
    embeddings: list[tuple[str, str, TensorOp]] = [
        ("class_embedding", "class_embedding", IDENTITY),
        ("patch_embedding.weight", "patch_embedding/kernel", PatchConv()),
        ("position_embedding.weight", "position_embedding/embedding", IDENTITY),
    ]
    rules = [Rule(f"{hf}.embeddings.{a}", f"{path}/{b}", op) for a, b, op in embeddings]
    rules += layer_norm(f"{hf}.pre_layrnorm", f"{path}/pre_norm")  # the spelling is the field's
    rules += layer_norm(f"{hf}.post_layernorm", f"{path}/post_norm")
    for k in (1, 2):
        rules += layer_norm(f"{layer}.layer_norm{k}", f"{layer_path}/norm{k}")
        rules += linear(f"{layer}.mlp.fc{k}", f"{layer_path}/mlp/fc{k}", bias=True)
    for a, b in {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "out"}.items():
        rules += linear(f"{layer}.self_attn.{a}", f"{layer_path}/attention/{b}", bias=True)
    return rules


def _projector_rules() -> list[Rule]:
    rules = [Rule("image_newline", "image_newline")]
    for k in (1, 2):
        rules += linear(f"multi_modal_projector.linear_{k}", f"projector/linear_{k}", bias=True)
    return rules


LLAVA_NEXT = NameTable(
    [
        *_projector_rules(),
        *_vision_rules(),
        *decoder_rules("language_model.model", EMBEDDING, LM_HEAD),
    ]
)


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


def separate_tower_name(name: str) -> str | None:
    """A's name for a tensor of a CLIPVisionModel or CLIPModel file; None for the text side."""
    if name.startswith(_CLIP_TEXT_SIDE):
        return None
    part = name.removeprefix("vision_model.")
    return VISION_PREFIX + part if part.startswith(_CLIP_PARTS) else name
