"""Compiled programs read from short texts: bytes by hand, copies against updates, graphs."""

import pytest

from tiger_jax.dry_run.compiled_text import Launches, Program, UnreadableProgram

HLO = """HloModule jit_f, is_scheduled=true

%update (p0: bf16[4,8], p1: bf16[1,8], p2: s32[]) -> bf16[4,8] {
  %p0 = bf16[4,8]{1,0} parameter(0)
  %p1 = bf16[1,8]{1,0} parameter(1)
  %p2 = s32[] parameter(2)
  %zero = s32[] constant(0)
  %dus = bf16[4,8]{1,0} dynamic-update-slice(%p0, %p1, %p2, %zero)
  ROOT %cast = bf16[4,8]{1,0} bitcast(%dus)
}

%lookup (q0: f32[100,8], q1: s32[1]) -> f32[1,8] {
  %q0 = f32[100,8]{1,0} parameter(0)
  %q1 = s32[1]{0} parameter(1)
  ROOT %picked = f32[1,8]{1,0} gather(%q0, %q1), offset_dims={1}, slice_sizes={1,8}
}

%both (r0: bf16[4,8], r1: bf16[1,8]) -> (bf16[4,8], f32[4,8]) {
  %r0 = bf16[4,8]{1,0} parameter(0)
  %r1 = bf16[1,8]{1,0} parameter(1)
  %at = s32[] constant(0)
  %in_place = bf16[4,8]{1,0} dynamic-update-slice(%r0, %r1, %at, %at)
  %wide = f32[4,8]{1,0} convert(%r0)
  ROOT %pair = (bf16[4,8]{1,0}, f32[4,8]{1,0}) tuple(%in_place, %wide)
}

%inner (s0: (s32[], f32[2])) -> (s32[], f32[2]) {
  %s0 = (s32[], f32[2]{0}) parameter(0)
  %s1 = f32[2]{0} get-tuple-element(%s0), index=1
  %s2 = s32[] get-tuple-element(%s0), index=0
  %twice = f32[2]{0} negate(%s1)
  ROOT %s3 = (s32[], f32[2]{0}) tuple(%s2, %twice)
}

%body (c: (s32[], bf16[4,8], f32[100,8], f32[2])) -> (s32[], bf16[4,8], f32[100,8], f32[2]) {
  %c = (s32[], bf16[4,8]{1,0}, f32[100,8]{1,0}, /*index=3*/f32[2]{0}) parameter(0)
  %i = s32[] get-tuple-element(%c), index=0
  %cache = bf16[4,8]{1,0} get-tuple-element(%c), index=1
  %table = f32[100,8]{1,0} get-tuple-element(%c), index=2
  %acc = f32[2]{0} get-tuple-element(%c), index=3
  %row = f32[1,8]{1,0} fusion(%table, %i), kind=kLoop, calls=%lookup
  %new = bf16[4,8]{1,0} fusion(%cache, %row, %i), kind=kLoop, calls=%update
  %start = (s32[], f32[2]{0}) tuple(%i, %acc)
  %loop = (s32[], f32[2]{0}) while(%start), condition=%less, body=%inner, backend_config={"known_trip_count":{"n":"5"}}
  %last = f32[2]{0} get-tuple-element(%loop), index=1
  ROOT %out = (s32[], bf16[4,8]{1,0}, f32[100,8]{1,0}, f32[2]{0}) tuple(%i, %new, %table, %last)
}

ENTRY %main (a: bf16[4,8], b: f32[100,8]) -> bf16[4,8] {
  %a = bf16[4,8]{1,0} parameter(0)
  %b = f32[100,8]{1,0} parameter(1)
  %n = s32[] constant(0)
  %z = f32[2]{0} constant({0, 0})
  %copied = bf16[4,8]{0,1} copy(%a)
  %made = (bf16[4,8]{1,0}, f32[4,8]{1,0}) fusion(%copied, %a), kind=kLoop, calls=%both
  %first = bf16[4,8]{1,0} get-tuple-element(%made), index=0
  %init = (s32[], bf16[4,8]{1,0}, f32[100,8]{1,0}, /*index=3*/f32[2]{0}) tuple(%n, %first, %b, %z)
  %while.1 = (s32[], bf16[4,8]{1,0}, f32[100,8]{1,0}, /*index=3*/f32[2]{0}) while(%init), condition=%less, body=%body
  ROOT %result = bf16[4,8]{1,0} get-tuple-element(%while.1), index=1
}
"""  # noqa: E501

THUNKS = """001: kCopy  [source       | next=002 (1)] kCopy
002: kWhile [prev=001 (1) | sink        ]
condition:
    003: kCustomKernel [source | sink] wrapped_compare
  body:
    000: kCommandBuffer [source | sink]
        004: kCustomKernel [source       | next=005 (1)] gemm_fusion_dot_2
        005: kGemm [prev=004 (1) | sink        ] custom-call
003: kCopy [prev=001 (1) | sink        ] kCopy
"""


@pytest.fixture
def program():
    return Program.parse(HLO)


def test_bytes_of_the_body_by_hand(program):
    # lookup: 4 of the index, 32 of the picked row twice (the table has 3,200)
    # update: 32 of the row, as the outer array has it float32: the operand's own 16, written 16,
    # index 4; the loop inside: 5 times 8 read and 8 written
    assert program.body == "body"
    assert program.bytes_moved("body") == (4 + 32 + 32) + (16 + 16 + 4) + 5 * 16


def test_updates_in_place_are_no_whole_arrays(program):
    assert program.whole_arrays("body", [32]) == []
    found = program.whole_arrays("main", [32])
    # The second result of the fusion is a float32 version of the cache, the first an update.
    assert [line.split()[0] for line in found] == ["copy", "fusion"]
    assert program.whole_arrays("main", [40, 25]) == []
    assert len(program.whole_arrays("main", [35, 29])) == 2


def test_launches_include_those_of_inner_loops(program):
    assert [i.name for i in program.launches("body")] == ["row", "new", "twice"]
    assert [i.name for i in program.launches("main")][:2] == ["copied", "made"]


def test_one_graph():
    launches = Launches.parse(THUNKS)
    assert (launches.kernels, launches.graphs, launches.pieces) == (2, 1, 1)
    assert launches.one_graph


def test_a_loop_inside_splits_the_graph():
    # XLA writes the word `condition:` of every loop at the margin.
    loop = """    006: kWhile [prev=000 (1) | next=000 (1)]
condition:
        007: kCustomKernel [source | sink] wrapped_compare
      body:
        008: kCustomKernel [source | sink] gather
    000: kCommandBuffer [prev=006 (1) | sink]
        009: kCustomKernel [source | sink] tail
"""
    launches = Launches.parse(THUNKS.replace("003: kCopy [prev=001", loop + "003: kCopy [prev=001"))
    assert (launches.kernels, launches.graphs, launches.pieces) == (5, 2, 3)
    assert not launches.one_graph


def test_a_kernel_beside_the_graph_is_not_one_graph():
    split = THUNKS.replace("    000:", "    009: kCustomKernel [source] alone\n    000:")
    launches = Launches.parse(split)
    assert (launches.kernels, launches.graphs, launches.pieces) == (3, 1, 2)
    assert not launches.one_graph
    bare = Launches.parse(THUNKS.replace("    000: kCommandBuffer [source | sink]\n", ""))
    assert bare.kernels == 2
    assert not bare.one_graph


def test_texts_of_another_form_are_refused():
    with pytest.raises(UnreadableProgram, match="ENTRY"):
        Program.parse("HloModule nothing")
    with pytest.raises(UnreadableProgram, match="one loop"):
        _ = Program.parse(HLO.replace("while(%init)", "call(%init)")).body
    with pytest.raises(UnreadableProgram, match="loop"):
        Launches.parse("001: kCopy")
