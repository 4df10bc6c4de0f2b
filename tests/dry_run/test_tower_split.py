"""The tower's attention on a mesh: each device its own heads."""

import json

from tiger_jax.dry_run import cards, program_costs
from tiger_jax.dry_run.abstract_batches import Longest
from tiger_jax.dry_run.compiled_text import Program
from tiger_jax.dry_run.compiler import Compiler
from tiger_jax.dry_run.decoding_parts import Setting, prefill_part
from tiger_jax.dry_run.published import abstract_weights, model_config
from tiger_jax.models.interface import build_model
from tiger_jax.routing.router import RouterConfig
from tiger_jax.testing.qwen3_vl_configs import tiny_config_json


def prefill_products(folder, tensor):
    """FLOP of a device's matrix products while it reads one prompt with a picture."""
    compiler = Compiler.choose(cards.CARDS["a40"], 8)
    mesh = compiler.mesh({"data": 8 // tensor, "fsdp": 1, "tensor": tensor})
    model = build_model(model_config(str(folder)))
    setting = Setting(
        verifier=model, verifier_params=abstract_weights(model, "float32", mesh), mesh=mesh,
        longest=Longest.of(model.config, RouterConfig(), 64, 16), batch=1, room=16,
    )  # fmt: skip
    compiled = compiler.compile(prefill_part(setting).lower())
    program = Program.parse(compiled.as_text())
    return program_costs.matrix_flops(program, program.entry)


def test_the_attention_of_a_tower_is_cut_over_its_heads(on_cpu, tmp_path):
    raw = tiny_config_json(layers=2, depth=3)  # two heads in the tower
    raw["text_config"]["max_position_embeddings"] = 512
    (tmp_path / "config.json").write_text(json.dumps(raw))
    one, two = (prefill_products(tmp_path, tensor) for tensor in (1, 2))
    # Half of all products; its own are halved as the others are. Whole on each device: 0.82.
    assert two < 0.6 * one
