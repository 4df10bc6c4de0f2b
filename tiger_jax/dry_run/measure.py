"""What a program of a run takes on each device: memory by kind, work, traffic, predicted time."""

import dataclasses
from typing import Any

from tiger_jax.dry_run import program_costs
from tiger_jax.dry_run.cards import Card
from tiger_jax.dry_run.compiled_text import Program
from tiger_jax.dry_run.compiler import Compiler
from tiger_jax.dry_run.parts import Part, sum_kinds
from tiger_jax.dry_run.program_costs import Traffic

SPARE = 0.15
"""Share of a card that the default meshes leave: for the CUDA context, the buffers of NCCL and what
the allocator cannot fill."""


@dataclasses.dataclass(frozen=True)
class Measured:
    """One program on one device. Memory in bytes."""

    name: str
    card: Card
    kinds: dict[str, int]
    """What the program is given, and what waits beside it."""
    waiting: int
    """How much of it is no argument of the program."""
    results: int
    """What is not written over an argument."""
    temporaries: int
    flops: float
    """Of matrix products, counted in the compiled text."""
    moved: float
    """Bytes that kernels read and write."""
    least: float
    traffic: dict[str, Traffic]
    kernels: int
    times: int
    output_shardings: Any = None

    @property
    def peak(self) -> int:
        """Everything on the device while the program runs."""
        return sum(self.kinds.values()) + self.results + self.temporaries

    @property
    def spare(self) -> float:
        """Share of the card that stays free; negative if it does not fit."""
        return 1 - self.peak / self.card.memory_bytes

    @property
    def fits(self) -> bool:
        """Whether the card holds it."""
        return self.spare >= 0

    @property
    def link_bytes(self) -> float:
        """What a device sends."""
        return sum(traffic.link_bytes for traffic in self.traffic.values())

    @property
    def seconds(self) -> float:
        """Roofline: a prediction, and one from below."""
        local = max(self.flops / self.card.peak_flops, self.moved / self.card.bandwidth)
        return local + self.link_bytes / self.card.link_bandwidth


def measure(part: Part, compiler: Compiler) -> Measured:
    """Compile a program and read what it takes."""
    compiled = compiler.compile(part.lower(), decodes=part.loops)
    memory = compiled.memory_analysis()
    program = Program.parse(compiled.as_text())
    scope = program.body if part.loops else program.entry
    kinds = sum_kinds(part.given, part.waiting)
    return Measured(
        name=part.name, card=compiler.card, kinds=kinds,
        waiting=sum(sum_kinds(part.waiting).values()),
        results=memory.output_size_in_bytes - memory.alias_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        flops=program_costs.matrix_flops(program, scope), moved=float(program.bytes_moved(scope)),
        least=float(part.least_bytes),
        traffic=program_costs.collectives(program, scope, len(compiler.devices)),
        kernels=program_costs.kernels(program, scope), times=part.times,
        output_shardings=compiled.output_shardings,
    )  # fmt: skip
