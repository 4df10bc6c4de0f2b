"""Rows of name tables that families share: torch's plain modules and the Llama-like decoder."""

from tiger_jax.weights.name_table import Rule
from tiger_jax.weights.tensor_ops import Transpose

# A buffer that some versions of transformers stored; it follows from the config.
ROTARY_BUFFER = "rotary_emb.inv_freq"


def linear(hf: str, path: str, *, bias: bool) -> list[Rule]:
    """torch.nn.Linear <-> a dense layer."""
    rules = [Rule(f"{hf}.weight", f"{path}/kernel", Transpose())]
    return rules + [Rule(f"{hf}.bias", f"{path}/bias")] * bias


def layer_norm(hf: str, path: str) -> list[Rule]:
    """torch.nn.LayerNorm <-> scale and bias."""
    return [Rule(f"{hf}.weight", f"{path}/scale"), Rule(f"{hf}.bias", f"{path}/bias")]


def decoder_rules(hf: str, embedding: str, lm_head: str) -> list[Rule]:
    """A Llama-like decoder without biases.

    Args:
        hf: what its layers' and its final norm's names begin with, without the last point.
        embedding: name of the embedding's weight.
        lm_head: name of the head's weight; a tied model has no such parameter, hence no entry.
    """
    layer, path = f"{hf}.layers.{{i}}", "language_model/layers_{i}"
    rules = [
        Rule(embedding, "language_model/embed_tokens/embedding"),
        Rule(f"{hf}.norm.weight", "language_model/final_norm/scale"),
        Rule(lm_head, "language_model/lm_head/kernel", Transpose()),
        Rule(f"{layer}.input_layernorm.weight", f"{path}/input_norm/scale"),
        Rule(f"{layer}.post_attention_layernorm.weight", f"{path}/post_attention_norm/scale"),
    ]
    for a, b in {"q_proj": "query", "k_proj": "key", "v_proj": "value", "o_proj": "out"}.items():
        rules += linear(f"{layer}.self_attn.{a}", f"{path}/attention/{b}", bias=False)
    for name in ("gate", "up", "down"):
        rules += linear(f"{layer}.mlp.{name}_proj", f"{path}/mlp/{name}", bias=False)
    return rules
