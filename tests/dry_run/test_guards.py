"""Decoding as XLA's GPU compiler makes it: caches stay in place, a round is one graph, tensor
parallelism sums twice a layer and gathers nothing large. Two layers of the real widths."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from tiger_jax.decoding import draft_tree, speculative
from tiger_jax.decoding.draft_tree import DraftSpec
from tiger_jax.dry_run import decoding, gpu_compiler, program_costs
from tiger_jax.dry_run.abstract_verifier import COUNT, Sizes, Verifier
from tiger_jax.dry_run.cards import CARDS
from tiger_jax.dry_run.compiled_text import Program
from tiger_jax.dry_run.compiler import Compiler
from tiger_jax.dry_run.decoding_parts import plain_step, round_part
from tiger_jax.evaluation import head_programs
from tiger_jax.models.published import PAIRS
from tiger_jax.ops.sampling import SamplingMode
from tiger_jax.routing.router import RouterConfig

A40 = CARDS["a40"]
DRAFT_LENGTH, LAYERS = 5, 2
ONE = {"data": 1, "fsdp": 1, "tensor": 1}

pytestmark = [
    pytest.mark.skipif(not gpu_compiler.is_installed(), reason="needs jax's CUDA plugin"),
    pytest.mark.usefixtures("shapes", "products_as_they_are"),
]


@pytest.fixture
def products_as_they_are():
    """The suite's float32 precision would send products to cuBLAS, whose workspaces of 8 MB would
    hide the copy of a cache."""
    with jax.default_matmul_precision("default"):
        yield


@dataclasses.dataclass(frozen=True)
class Echo:
    """Drafts the root again and again: a round is then the verifier's pass and nothing else."""

    draft_length: int

    @property
    def spec(self):
        return DraftSpec(nodes=self.draft_length + 1, depth=self.draft_length, samples=False)

    def prefill(self, params, prompt, taps, capacity):
        return ()

    def propose(self, params, state, context, mode):
        tokens = jnp.broadcast_to(context.pending[:, None], (len(context.pending), self.spec.nodes))
        return draft_tree.chain(tokens, jnp.ones(tokens.shape, bool)), state

    def observe(self, params, state, commit):
        return state


def verifier_step(nodes, batch):
    """(function, arguments, state) of passes over `nodes` tokens."""
    verifier, sizes = Verifier.of("13b", LAYERS), Sizes(batch, visual_tokens=2928, text_rows=512)
    if nodes == 1:
        work = head_programs.plain_step(verifier, sizes)
        return work.function, work.arguments, work.arguments[1]
    drafter = Echo(nodes - 1)
    state, request, limits = verifier.start(sizes, drafter)

    def decode(params, state, *rest):
        return speculative.decode(
            verifier.model, drafter, params, None, state, *rest, mode=SamplingMode.GREEDY
        )

    return decode, (verifier.params, state, request, limits, COUNT), state


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("nodes", [1, DRAFT_LENGTH + 1])
def test_a_verifier_step_leaves_its_caches_in_place(nodes, batch):
    function, arguments, state = verifier_step(nodes, batch)
    compiled = gpu_compiler.compile_loop(A40, function, arguments, (1,))
    keys = state.cache.keys
    caches = 2 * LAYERS * keys[0].size * keys[0].dtype.itemsize
    assert compiled.temporary_bytes < 0.05 * caches
    assert compiled.program.whole_arrays(compiled.program.entry, {keys[0].size}) == []
    assert compiled.launches.one_graph


def setting(pair, compiler, sizes):
    return decoding.make_setting(
        compiler, sizes, PAIRS[pair], 1, DRAFT_LENGTH, RouterConfig(), 128, 64, LAYERS
    )


@pytest.mark.parametrize("pair", PAIRS)
def test_a_round_with_a_routed_drafter_is_one_graph(pair):
    part = round_part(setting(pair, Compiler.choose(A40, 1), ONE))
    compiled = gpu_compiler.read_loop(part.lower())
    assert compiled.launches.one_graph
    sizes = {leaf.size for leaf in part.given["caches"]}
    assert compiled.program.whole_arrays(compiled.program.entry, sizes) == []


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize(
    ("make", "nodes"), [(plain_step, 1), (round_part, DRAFT_LENGTH + 1)], ids=["plain", "round"]
)
def test_tensor_parallel_sums_twice_a_layer_and_gathers_no_cache(pair, make, nodes):
    found = setting(pair, Compiler.choose(A40, 8), ONE | {"tensor": 8})
    part = make(found)
    compiler = Compiler.choose(A40, 8)
    program = Program.parse(compiler.compile(part.lower(), decodes=True).as_text())
    width = found.verifier.config.text.hidden_size
    sums = [
        instruction.size
        for _, instruction, _ in program.walk(program.body)
        if instruction.opcode.removesuffix("-start") == "all-reduce"
    ]
    # Two a layer of the verifier, and one where the split table of embeddings is looked up.
    assert sums.count(2 * nodes * width) in (2 * LAYERS, 2 * LAYERS + 1)
    traffic = program_costs.collectives(program, program.body, 8)
    cache = min(leaf.size for leaf in part.given["caches"]) * 2 // 8
    gathered = sum(many.size for kind, many in traffic.items() if kind != "all-reduce")
    # Of one request XLA brings the row of logits together, and nothing else that is large.
    logits = 2 * found.verifier.config.text.vocab_size
    assert gathered < min(cache, 1e6) + logits
