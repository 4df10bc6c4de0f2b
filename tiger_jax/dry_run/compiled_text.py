"""Reading what XLA's GPU compiler made of a program: its final HLO, and its list of launches.

A program here is `entry -> while -> body`; the body is one decoding step or round. Read from the
text are the bytes that its kernels move, the kernels that produce a whole array of a given size
without being an update in place, and whether the body is launched as one CUDA graph.
"""

import dataclasses
import math
import re
from collections.abc import Collection, Iterator, Mapping

_WIDTHS = {
    "pred": 1, "s8": 1, "u8": 1, "f16": 2, "bf16": 2, "s16": 2, "u16": 2, "f32": 4, "s32": 4,
    "u32": 4, "f64": 8, "s64": 8, "u64": 8, "f8e4m3fn": 1, "f8e5m2": 1,
}  # fmt: skip
_HEADER = re.compile(r"^(ENTRY )?%(\S+) \(.*\{$")
_LINE = re.compile(r"^\s+(ROOT )?%(\S+) = (.*?) ([a-z][\w\-]*)\((.*)$")
_ARRAY = re.compile(r"\b([a-z]+\d*(?:e\d+m\d+\w*)?)\[([\d,]*)\]")
_CALLED = re.compile(r"\b(calls|body|to_apply)=%([\w.\-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id",
    "optimization-barrier", "async-update",
}  # fmt: skip
"""Instructions that launch nothing."""
_NESTED = {"while", "call"}
_CALLERS = {*_NESTED, "fusion", "async-start"}
_PARTIAL = {"dynamic-slice", "slice", "gather"}
"""Instructions that read only as much of their operand as they return."""
_UPDATES = {"dynamic-update-slice": 1, "scatter": 2}
"""Instructions that write in place -> the operand that holds what is written."""


class UnreadableProgram(ValueError):
    """The text is no compiled program of the expected form."""


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str
    opcode: str
    shape: str
    operands: tuple[str, ...]
    called: str | None
    """Computation of a fusion, a call or a loop's body."""
    trips: int
    """How often a loop runs, 1 where XLA does not know."""
    attributes: str
    """What stands behind the operands."""

    @property
    def starts(self) -> bool:
        """Whether it begins what a `-done` instruction ends."""
        return self.opcode.endswith("-start")

    @property
    def is_nested(self) -> bool:
        """Whether the kernels of another computation run in its place, one by one."""
        return self.opcode in _NESTED and self.called is not None

    @property
    def launches(self) -> bool:
        """Whether something runs for it."""
        return self.opcode not in _FREE and not self.opcode.endswith("-done")

    @property
    def arrays(self) -> list[tuple[int, int]]:
        """(elements, bytes) of each array that it returns."""
        found = []
        for dtype, dims in _ARRAY.findall(self.shape):
            count = math.prod(int(d) for d in dims.split(",") if d)
            found.append((count, count * _WIDTHS.get(dtype, 4)))
        return found

    @property
    def size(self) -> int:
        """Bytes of all that it returns."""
        return sum(size for _, size in self.arrays)


@dataclasses.dataclass(frozen=True)
class Computation:
    """Instructions in order; the last one marked ROOT is what it returns."""

    instructions: Mapping[str, Instruction]
    root: str

    def users(self, name: str) -> list[Instruction]:
        """Instructions that read `name`, bitcasts looked through."""
        found = []
        for instruction in self.instructions.values():
            if name in instruction.operands:
                through = instruction.opcode == "bitcast" and instruction.name != self.root
                found += self.users(instruction.name) if through else [instruction]
        return found


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled module."""

    computations: Mapping[str, Computation]
    entry: str

    @classmethod
    def parse(cls, text: str) -> "Program":
        """From `compiled.as_text()`."""
        computations, entry, name, lines, root = {}, "", "", {}, ""
        for line in text.splitlines():
            if header := _HEADER.match(line):
                name, lines, root = header[2], {}, ""
                entry = name if header[1] else entry
            elif line.startswith("}") and name:
                computations[name] = Computation(lines, root)
                name = ""
            elif name and (match := _LINE.match(line)):
                lines[match[2]] = _instruction(match)
                root = match[2] if match[1] else root
        if not entry:
            raise UnreadableProgram("HLO: expected an ENTRY computation, found none")
        return cls(computations, entry)

    @property
    def body(self) -> str:
        """The computation that the loop of the entry repeats."""
        loops = [i for i in self._of(self.entry) if i.opcode == "while"]
        if len(loops) != 1 or loops[0].called is None:
            raise UnreadableProgram(f"HLO: expected one loop in the entry, got {len(loops)}")
        return loops[0].called

    def launches(self, name: str) -> Iterator[Instruction]:
        """Instructions of a computation that launch something, those of loops inside included."""
        for instruction in self._of(name):
            if instruction.is_nested:
                yield from self.launches(instruction.called)
            elif instruction.launches:
                yield instruction

    def walk(self, name: str, times: int = 1) -> Iterator[tuple[Computation, Instruction, int]]:
        """Every instruction of a computation and of those that it calls, and how often it runs."""
        for instruction in self._of(name):
            yield self.computations[name], instruction, times
            if instruction.called in self.computations and instruction.opcode in _CALLERS:
                yield from self.walk(instruction.called, times * instruction.trips)

    def bytes_moved(self, name: str) -> int:
        """What the kernels of a computation read and write, each operand and result once.

        An update in place moves what it writes, a slice or gather what it returns; a loop inside
        counts as often as it runs.
        """
        total = 0
        for instruction in self._of(name):
            if instruction.is_nested:
                total += instruction.trips * self.bytes_moved(instruction.called)
            elif instruction.launches:
                total += self._moved(self.computations[name], instruction)
        return total

    def whole_arrays(self, name: str, sizes: Collection[int]) -> list[str]:
        """Launches that return an array of about as many elements as one of `sizes` (0.9 to 1.1)
        and are no update in place: copies, transposes and rewritings of a cache."""
        wrong = []
        for instruction in self.launches(name):
            roots = self._roots(instruction)
            for index, (count, _) in enumerate(instruction.arrays):
                near = any(0.9 * size <= count <= 1.1 * size for size in sizes)
                if near and roots[min(index, len(roots) - 1)].opcode not in _UPDATES:
                    wrong.append(f"{instruction.opcode} {instruction.shape} {instruction.name}")
                    break
        return wrong

    def _of(self, name: str) -> Iterator[Instruction]:
        return iter(self.computations[name].instructions.values())

    def _roots(self, instruction: Instruction) -> list[Instruction]:
        """What makes each array that an instruction returns."""
        if instruction.opcode != "fusion" or instruction.called is None:
            return [instruction]
        inner = self.computations[instruction.called]
        root = inner.instructions[inner.root]
        names = root.operands if root.opcode == "tuple" else (inner.root,)
        return [_behind_bitcasts(inner, name) for name in names]

    def _moved(self, outer: Computation, instruction: Instruction) -> int:
        if instruction.opcode == "fusion" and instruction.called:
            inner = self.computations[instruction.called]
            read = sum(
                _read(inner, i) for i in inner.instructions.values() if i.opcode == "parameter"
            )
            return read + sum(_written(inner, root) for root in self._roots(instruction))
        if instruction.opcode in _UPDATES:
            return 2 * _written(outer, instruction)
        if instruction.opcode in _PARTIAL:
            return 2 * instruction.size
        if instruction.starts and instruction.shape.startswith("("):
            return instruction.size  # its operands stand in the shape beside the result
        return instruction.size + sum(
            outer.instructions[o].size for o in instruction.operands if o in outer.instructions
        )


@dataclasses.dataclass(frozen=True)
class Launches:
    """How the body of a program's loop is started, from the dump of its thunks."""

    kernels: int
    """Kernels, copies and library calls of one turn; those of loops inside count once."""
    graphs: int
    """Pieces that are CUDA graphs."""
    pieces: int
    """What the host starts in one turn, graphs included."""

    @property
    def one_graph(self) -> bool:
        """Whether the host starts one graph a turn, and nothing else."""
        return self.graphs == 1 and self.pieces == 1

    @classmethod
    def parse(cls, text: str) -> "Launches":
        """From the file *thunk_sequence_after_thunk_passes.txt of XLA's dump."""
        lines = [(len(line) - len(line.lstrip()), line.strip()) for line in text.splitlines()]
        starts = [i for i, (_, line) in enumerate(lines) if line == "body:"]
        if not starts:
            raise UnreadableProgram("thunks: expected a loop, found none")
        outside = lines[starts[0]][0]
        inside = []
        for indent, line in lines[starts[0] + 1 :]:
            # Words such as `condition:` stand at the margin, however deep their loop is.
            if match := re.match(r"\d+: (k\w+)", line):
                if indent <= outside:
                    break
                inside.append((indent, match[1]))
        top = [kind for indent, kind in inside if indent == inside[0][0]]
        containers = ("kCommandBuffer", "kSequential", "kWhile", "kConditional")
        return cls(
            kernels=sum(kind not in containers for _, kind in inside),
            graphs=sum(kind == "kCommandBuffer" for _, kind in inside),
            pieces=len(top),
        )


def _instruction(match: re.Match) -> Instruction:
    rest, depth, end = match[5], 1, 0
    while depth and end < len(rest):
        depth += {"(": 1, ")": -1}.get(rest[end], 0)
        end += 1
    called = dict(_CALLED.findall(rest[end:]))
    nested = called.get("to_apply") if match[4] == "call" else None
    trips = _TRIPS.search(rest)
    return Instruction(
        name=match[2], opcode=match[4], shape=match[3],
        operands=tuple(re.findall(r"%([\w.\-]+)", rest[:end])),
        called=called.get("calls") or called.get("body") or nested,
        trips=int(trips[1]) if trips else 1, attributes=rest[end:],
    )  # fmt: skip


def _behind_bitcasts(inner: Computation, name: str) -> Instruction:
    instruction = inner.instructions[name]
    while instruction.opcode == "bitcast":
        instruction = inner.instructions[instruction.operands[0]]
    return instruction


def _read(inner: Computation, parameter: Instruction) -> int:
    """Bytes of one operand that a fusion reads."""
    total = 0
    for user in inner.users(parameter.name):
        first = bool(user.operands) and _comes_from(inner, user.operands[0], parameter.name)
        if user.opcode in _PARTIAL and first:
            total += user.size
        elif not (user.opcode in _UPDATES and first):
            return parameter.size
    return min(total, parameter.size)


def _comes_from(inner: Computation, name: str, parameter: str) -> bool:
    return _behind_bitcasts(inner, name).name == parameter


def _written(inner: Computation, root: Instruction) -> int:
    """Bytes that a result takes to write."""
    if root.opcode not in _UPDATES:
        return root.size
    update = inner.instructions.get(root.operands[_UPDATES[root.opcode]])
    return update.size if update else root.size
