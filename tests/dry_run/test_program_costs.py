"""Collectives, products and kernels read from short compiled texts, counted by hand."""

import pytest

from tiger_jax.dry_run import program_costs
from tiger_jax.dry_run.compiled_text import Program
from tiger_jax.dry_run.program_costs import Traffic

HLO = """HloModule jit_f, is_scheduled=true, num_partitions=8

%sum (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %s = f32[] add(%x, %y)
}

%gemm (p0: bf16[6,32], p1: bf16[32,16]) -> bf16[6,16] {
  %p0 = bf16[6,32]{1,0} parameter(0)
  %p1 = bf16[32,16]{1,0} parameter(1)
  ROOT %dot = bf16[6,16]{1,0} dot(%p0, %p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%row (q0: f32[32], q1: f32[16,32]) -> f32[16] {
  %q0 = f32[32]{0} parameter(0)
  %q1 = f32[16,32]{1,0} parameter(1)
  %wide = f32[16,32]{1,0} broadcast(%q0), dimensions={1}
  %product = f32[16,32]{1,0} multiply(%wide, %q1)
  %zero = f32[] constant(0)
  ROOT %total = f32[16]{0} reduce(%product, %zero), dimensions={1}, to_apply=%sum
}

%body (c: (s32[], bf16[6,16])) -> (s32[], bf16[6,16]) {
  %c = (s32[], bf16[6,16]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%c), index=0
  %h = bf16[6,16]{1,0} get-tuple-element(%c), index=1
  %w = bf16[8,16]{1,0} constant({...})
  %all-gather-start = (bf16[8,16]{1,0}, bf16[32,16]{1,0}) all-gather-start(%w), channel_id=1, replica_groups=mesh['axis_0'=2,'axis_1'=4] {'axis_1'}, dimensions={0}
  %all-gather-done = bf16[32,16]{1,0} all-gather-done(%all-gather-start)
  %a = bf16[6,32]{1,0} constant({...})
  %mixed = bf16[6,16]{1,0} fusion(%a, %all-gather-done), kind=kCustom, calls=%gemm
  %all-reduce-start = bf16[6,16]{1,0} all-reduce-start(%mixed), channel_id=2, replica_groups={{0,1},{2,3},{4,5},{6,7}}, to_apply=%sum
  %all-reduce-done = bf16[6,16]{1,0} all-reduce-done(%all-reduce-start)
  ROOT %out = (s32[], bf16[6,16]{1,0}) tuple(%i, %all-reduce-done)
}

ENTRY %main (a0: f32[32], a1: f32[16,32], a2: bf16[6,16]) -> f32[16] {
  %a0 = f32[32]{0} parameter(0)
  %a1 = f32[16,32]{1,0} parameter(1)
  %a2 = bf16[6,16]{1,0} parameter(2)
  %vector = f32[16]{0} fusion(%a0, %a1), kind=kInput, calls=%row
  %n = s32[] constant(0)
  %init = (s32[], bf16[6,16]{1,0}) tuple(%n, %a2)
  %loop = (s32[], bf16[6,16]{1,0}) while(%init), condition=%less, body=%body, backend_config={"known_trip_count":{"n":"5"}}
  %part = f32[2]{0} reduce-scatter(%vector), channel_id=3, replica_groups=[1,8]<=[8], dimensions={0}, to_apply=%sum
  %moved = f32[2]{0} collective-permute(%part), channel_id=4, source_target_pairs={{0,1},{1,0}}
  %swapped = f32[2]{0} all-to-all(%moved), channel_id=5, replica_groups={}, dimensions={0}
  %custom = (f32[16,4]{1,0}, s8[4096]{0}) custom-call(%a1, %a1), custom_call_target="__cublas$lt$matmul", backend_config={"operation_queue_id":"0","gemm_backend_config":{"alpha_real":1,"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["1"]}}}
  ROOT %copied = f32[16]{0} copy(%vector)
}
"""  # noqa: E501


@pytest.fixture
def program():
    return Program.parse(HLO)


def test_collectives_by_hand(program):
    found = program_costs.collectives(program, program.entry, devices=8)
    # in the loop, five times each: a gather of 4 x 256 bytes, a sum of 192 bytes in pairs
    assert found["all-gather"] == Traffic(5, 5 * 1024, 5 * 768.0)
    assert found["all-reduce"] == Traffic(5, 5 * 192, 5 * 2 * 192 / 2)
    # outside: 64 bytes over eight devices, 8 bytes to the next one, 8 bytes exchanged
    assert found["reduce-scatter"] == Traffic(1, 64, 64 * 7 / 8)
    assert found["collective-permute"] == Traffic(1, 8, 8.0)
    assert found["all-to-all"] == Traffic(1, 8, 7.0)
    assert set(found) == {
        "all-gather", "all-reduce", "reduce-scatter", "collective-permute", "all-to-all"
    }  # fmt: skip


def test_collectives_of_the_body_alone_count_one_turn(program):
    found = program_costs.collectives(program, program.body, devices=8)
    assert {kind: traffic.count for kind, traffic in found.items()} == {
        "all-gather": 1, "all-reduce": 1
    }  # fmt: skip


def test_products_in_fusions_libraries_and_sums(program):
    in_loop = 2 * 6 * 16 * 32
    row = 2 * 16 * 32  # compiled to a sum over products
    library = 2 * 16 * 4 * 32  # its workspace is no result
    assert program_costs.matrix_flops(program, program.body) == in_loop
    assert program_costs.matrix_flops(program, program.entry) == 5 * in_loop + row + library


def test_a_sum_that_is_no_product_counts_nothing(program):
    bare = Program.parse(HLO.replace("multiply(%wide, %q1)", "add(%wide, %q1)"))
    lost = program_costs.matrix_flops(program, "main") - program_costs.matrix_flops(bare, "main")
    assert lost == 2 * 16 * 32


def test_kernels_count_starts_once_and_loops_as_often_as_they_run(program):
    assert program_costs.kernels(program, program.body) == 3  # gather, product, sum
    assert program_costs.kernels(program, program.entry) == 5 * 3 + 6


def test_bytes_of_a_start_are_those_of_its_operand_and_result(program):
    # the gather reads 256 and gives 1024; its `-done` moves nothing. The product reads 384 + 1024
    # and gives 192, the sum reads and gives 192.
    assert program.bytes_moved("body") == (256 + 1024) + (384 + 1024 + 192) + (192 + 192)


@pytest.mark.parametrize(
    ("attributes", "size"),
    [
        ("replica_groups={{0,2,4,6},{1,3,5,7}}, x", 4),
        ("replica_groups=[4,2]<=[2,4]T(1,0), x", 2),
        ("replica_groups=mesh['axis_0'=2,'axis_1'=4] {'axis_0'}", 2),
        ("replica_groups=mesh['axis_0'=2,'axis_1'=4] {'axis_0', 'axis_1'}", 8),
        ("replica_groups=mesh['axis_0'=8] {'axis_0':(1)4}", 4),
        ("replica_groups={}, x", 8),
        ("channel_id=1", 8),
    ],
)
def test_group_sizes_in_every_notation(attributes, size):
    assert program_costs.group_size(attributes, 8) == size


CONVOLUTION = """ENTRY %main (x: f32[2,8,8,3], k: f32[4,4,3,5]) -> f32[2,2,2,5] {
  %x = f32[2,8,8,3]{3,2,1,0} parameter(0)
  %k = f32[4,4,3,5]{3,2,1,0} parameter(1)
  ROOT %c = f32[2,2,2,5]{3,2,1,0} convolution(%x, %k), window={size=4x4 stride=4x4}, dim_labels=b01f_01io->b01f
}
"""  # noqa: E501


def test_a_convolution_by_hand():
    program = Program.parse(CONVOLUTION)
    assert program_costs.matrix_flops(program, "main") == 2 * (2 * 2 * 2 * 5) * (4 * 4 * 3)
