"""The head_compile task: bytes by hand at a small size, its table, its refusals; and, where XLA's
GPU compiler is installed, that no cache is copied and a round is one graph."""

import importlib.util

import jaxtyping
import pytest

from configs.eval import head_compile as defaults
from tiger_jax.dry_run import abstract_verifier, cards, gpu_compiler
from tiger_jax.dry_run.abstract_verifier import Sizes, Verifier
from tiger_jax.errors import UserError
from tiger_jax.evaluation import head_compile, head_programs
from tiger_jax.evaluation.head_programs import HeadSetting

SMALL = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip
MIDDLE = {
    "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 2,
    "num_attention_heads": 8,
}  # fmt: skip
SIZES = Sizes(batch=2, visual_tokens=700, text_rows=100)
ROUTED = HeadSetting("routed", routed_tokens=8, router_width=64)
LAYER = 4 * 256 * 256 + 3 * 256 * 512
HEAD = 256 * abstract_verifier.VOCABULARY

needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("jax_cuda12_plugin") is None, reason="needs jax's CUDA plugin"
)


@pytest.fixture(scope="module")
def verifiers():
    """Small verifiers by name, of which only shapes exist."""
    # Annotations of structs say Array; here their fields are shapes.
    jaxtyping.config.update("jaxtyping_disable", True)
    with pytest.MonkeyPatch.context() as patch:
        for name, sizes in (("small", SMALL), ("middle", MIDDLE)):
            patch.setitem(abstract_verifier.TARGETS, name, sizes)
        yield Verifier.of
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="module")
def verifier(verifiers):
    return verifiers("small")


@pytest.fixture
def config():
    return defaults.get_config()


def test_least_bytes_of_a_plain_step_by_hand(verifier):
    assert verifier.layers == 2
    work = head_programs.plain_step(verifier, SIZES)
    # two layers with two norms each, the last norm, the lm_head; no table of embeddings
    assert work.weight_bytes == 2 * (2 * (LAYER + 2 * 256) + 256 + HEAD)
    # 700 + 100 rows, the root and one to spare: 13 times 64
    assert work.cache_bytes == 2 * 2 * 2 * 2 * 832 * 256
    assert work.cache_sizes == {2 * 832 * 256}


def test_least_bytes_of_head_steps_by_hand(verifier):
    routed, full = (
        head_programs.head_step(verifier, SIZES, setting)
        for setting in (ROUTED, HeadSetting("full"))
    )
    # a layer whose q, k and v read [E; f], four norms, the verifier's lm_head; nothing that only
    # reads the verifier's states
    weights = 2 * (3 * 256 * 256 + LAYER + 4 * 256 + HEAD)
    assert routed.weight_bytes == full.weight_bytes == weights
    row = 2 * 2 * 2 * 256  # keys and values of two sequences
    assert full.cache_bytes - routed.cache_bytes >= (700 - 8 - 64) * row
    assert routed.cache_bytes >= (100 + 8) * row


def test_the_table_names_what_was_compiled(config):
    rows = [
        {
            "program": name, "target": "13b", "card": "A40", "batch": 1, "layers": layers,
            "weight_bytes": 25e9, "cache_bytes": 3e9, "least_bytes": least, "moved_bytes": moved,
            "temporary_bytes": 1.5e6, "kernels": 70, "whole_cache_ops": [], "graphs": 1,
            "one_graph": True,
        }
        for name, layers, least, moved in (
            (head_compile.PLAIN, 40, 28e9, 29e9),
            ("head step, routed", 0, 1.12e9, 1.16e9),
            ("round, chain 5", 2, 34e9, None),
        )
    ]  # fmt: skip
    head_compile._add_costs(rows)
    assert [row["c"] for row in rows] == [None, pytest.approx(0.04), None]
    assert rows[1]["c_moved"] == pytest.approx(0.04)
    lines = head_compile.text({"settings": config.to_dict(), "rows": rows}).splitlines()
    assert "0.0400" in lines[3]
    assert lines[4].split("|")[9].strip() == "-"


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("targets", ("30b",), "targets: expected some of 13b, 7b.*, got '30b'"),
        ("cards", (), "cards: expected some of a40, h200, got none"),
        ("batches", (1, 0), "batches: expected positive numbers"),
        ("text_rows", 64, "text_rows: expected at least 65, got 64"),
        ("route_every", "token", "route_every: expected round or step, got 'token'"),
        ("tree", (60, 5), "tree: expected nodes, expansions and width"),
        ("tree", (60, 1, 2), "tree: expected 2 to 7 nodes, got 60"),
    ],
)
def test_bad_fields_are_refused(config, field, value, message):
    with config.unlocked():
        config[field] = value
    with pytest.raises(UserError, match=message):
        head_compile.check(config)


def test_without_the_compiler_one_line_says_what_to_install(config, monkeypatch):
    monkeypatch.setattr(gpu_compiler, "PLUGINS", ("jax_plugins.nothing", "no_such.package"))
    with pytest.raises(UserError, match=r'install "\.\[cuda12\]"'):
        head_compile.evaluate(config)


def test_a_plugin_that_did_not_register_is_named(monkeypatch):
    def refuse(*_, **__):
        raise NotImplementedError("topology not implemented for cuda")

    monkeypatch.setattr(gpu_compiler.topologies, "get_topology_desc", refuse)
    with pytest.raises(UserError, match="JAX_PLATFORMS=cpu"):
        gpu_compiler.place((), cards.CARDS["a40"])


def test_cards_are_described_in_the_proto_s_text_form():
    target = cards.CARDS["a40"].target
    assert "cuda_compute_capability { major: 8 minor: 6 }" in target
    assert "memory_bandwidth: 696000000000" in target
    assert target.count("{") == target.count("}")


@needs_compiler
@pytest.mark.parametrize(
    "build",
    [
        head_programs.plain_step,
        lambda v, s: head_programs.head_step(v, s, HeadSetting("routed", router_width=64)),
        lambda v, s: head_programs.head_round(
            v, s, HeadSetting("routed", router_width=64), 3, None
        ),
    ],
    ids=["plain", "step", "round"],
)
def test_no_cache_is_copied_and_a_turn_is_one_graph(build, verifiers):
    work = build(verifiers("middle"), Sizes(batch=2, visual_tokens=2928, text_rows=576))
    compiled = gpu_compiler.compile_loop(
        cards.CARDS["a40"], work.function, work.arguments, work.donate
    )
    program = compiled.program
    assert program.whole_arrays(program.entry, work.cache_sizes) == []
    assert compiled.launches.one_graph
    # Scores over the caches and the rows of small products come on top of weights and caches.
    assert work.step_bytes < program.bytes_moved(program.body) < 1.3 * work.step_bytes
