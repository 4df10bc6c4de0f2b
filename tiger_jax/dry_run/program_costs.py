"""What one device computes and sends in a compiled program, read from its text.

A program is partitioned: every shape in its text is that of one device. A loop counts as often as
XLA knows that it runs, a loop without a known count once: one step or round of decoding.
"""

import dataclasses
import json
import math
import re
from collections.abc import Mapping

from tiger_jax.dry_run.compiled_text import Computation, Instruction, Program

COLLECTIVES = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute",
    "collective-broadcast", "ragged-all-to-all",
)  # fmt: skip
_LISTED = re.compile(r"replica_groups=\{\{([\d,]+)\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=")
_MESH = re.compile(r"replica_groups=(?:@?\w*)?mesh\[([^\]]*)\]\s*\{([^}]*)\}")
_AXIS = re.compile(r"'(\w+)'=(\d+)")
_NAMED = re.compile(r"'(\w+)'(?::\((\d+)\)(\d+))?")
_CONTRACTED = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")
_DIMS = re.compile(r"\[([\d,]*)\]")
_GEMMS = ("__cublas$gemm", "__cublas$lt$matmul")


@dataclasses.dataclass(frozen=True)
class Traffic:
    """All collectives of one kind in a program."""

    count: int = 0
    size: int = 0
    """Bytes of the whole arrays: what is reduced, or what every device holds after a gather."""
    link_bytes: float = 0.0
    """What a device sends when it does them around a ring."""

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(
            self.count + other.count, self.size + other.size, self.link_bytes + other.link_bytes
        )


def collectives(program: Program, name: str, devices: int) -> dict[str, Traffic]:
    """Traffic of a computation and what it calls, by kind; groups of one device move nothing."""
    found: dict[str, Traffic] = {}
    for outer, instruction, times in program.walk(name):
        kind = instruction.opcode.removesuffix("-start")
        if kind in COLLECTIVES:
            one = _traffic(outer, instruction, kind, devices)
            many = Traffic(times * one.count, times * one.size, times * one.link_bytes)
            found[kind] = found.get(kind, Traffic()) + many
    return found


def matrix_flops(program: Program, name: str) -> float:
    """Floating-point operations of matrix products and convolutions.

    A product with a single row is compiled to a sum over products: sums count two an element.
    """
    return float(
        sum(times * _flops(outer, instruction) for outer, instruction, times in program.walk(name))
    )


def kernels(program: Program, name: str) -> int:
    """Launches of a computation, those of loops inside as often as they run."""
    total = 0
    for instruction in program.computations[name].instructions.values():
        if instruction.is_nested:
            total += instruction.trips * kernels(program, instruction.called)
        else:
            total += instruction.launches
    return total


def group_size(attributes: str, devices: int) -> int:
    """Devices that take part in one collective."""
    if match := _LISTED.search(attributes):
        return match[1].count(",") + 1
    if match := _IOTA.search(attributes):
        return int(match[1].split(",")[-1])
    if match := _MESH.search(attributes):
        sizes = {axis: int(size) for axis, size in _AXIS.findall(match[1])}
        return math.prod(int(part) if part else sizes[axis]
                         for axis, _, part in _NAMED.findall(match[2]))  # fmt: skip
    return devices


def _traffic(outer: Computation, instruction: Instruction, kind: str, devices: int) -> Traffic:
    given = sum(outer.instructions[name].size for name in instruction.operands)
    size = group_size(instruction.attributes, devices)
    share = (size - 1) / size
    if kind == "all-gather":
        return Traffic(1, given * size, given * size * share)
    if kind == "all-reduce":
        return Traffic(1, given, 2 * given * share)
    if kind.endswith(("permute", "broadcast")):
        return Traffic(1, given, float(given))
    return Traffic(1, given, given * share)


def _flops(outer: Computation, instruction: Instruction) -> float:
    if instruction.opcode == "dot":
        contracted = _CONTRACTED.search(instruction.attributes)
        return _product(outer, instruction, _numbers(contracted[1]) if contracted else [])
    if instruction.opcode == "convolution":
        return _convolution(outer, instruction)
    if instruction.opcode == "custom-call" and any(g in instruction.attributes for g in _GEMMS):
        return _product(outer, instruction, _gemm_dims(instruction.attributes))
    if instruction.opcode == "reduce":
        source = outer.instructions.get(instruction.operands[0])
        if source and _is_product(outer, source):
            return 2.0 * source.arrays[0][0]
    return 0.0


def _product(outer: Computation, instruction: Instruction, contracted: list[int]) -> float:
    """2 * result * contracted size."""
    left = _dims(outer.instructions[instruction.operands[0]].shape)
    result = instruction.arrays[0][0]  # a library's workspace stands behind it
    return 2.0 * result * math.prod(left[dim] for dim in contracted)


def _convolution(outer: Computation, instruction: Instruction) -> float:
    """2 * result * window * input features, from the kernel's shape over its output features."""
    kernel = outer.instructions[instruction.operands[1]]
    labels = re.search(r"dim_labels=\w+_(\w+)->", instruction.attributes)
    dims = _dims(kernel.shape)
    features = dims[labels[1].index("o")] if labels else max(dims)
    return 2.0 * instruction.arrays[0][0] * kernel.arrays[0][0] / features


def _is_product(outer: Computation, instruction: Instruction) -> bool:
    while instruction.opcode in ("convert", "bitcast") and instruction.operands:
        instruction = outer.instructions[instruction.operands[0]]
    return instruction.opcode == "multiply"


def _gemm_dims(attributes: str) -> list[int]:
    start = attributes.find("backend_config=") + len("backend_config=")
    config, _ = json.JSONDecoder().raw_decode(attributes[start:])
    numbers: Mapping = config["gemm_backend_config"]["dot_dimension_numbers"]
    return [int(dim) for dim in numbers["lhs_contracting_dimensions"]]


def _dims(shape: str) -> list[int]:
    found = _DIMS.search(shape)
    return _numbers(found[1]) if found else []


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]
