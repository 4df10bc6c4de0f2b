"""XLA's GPU compiler without a GPU: programs of abstract arrays, compiled for a described card.

Autotuning needs a device and is off, so tiles of matrix products are XLA's defaults and times are
unknown. What is fused, laid out, copied and allocated is what a card would run before autotuning.
Needs the CUDA plugin of jax, no driver.
"""

import dataclasses
import importlib.util
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from tiger_jax.dry_run.cards import Card
from tiger_jax.dry_run.compiled_text import Launches, Program
from tiger_jax.errors import UserError

PLUGINS = ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13")
OPTIONS = {"xla_gpu_autotune_level": 0}
"""Autotuning would run kernels."""


@dataclasses.dataclass(frozen=True)
class Compiled:
    """One program for one card."""

    program: Program
    launches: Launches
    argument_bytes: int
    temporary_bytes: int
    output_bytes: int
    """Those that are not written over an argument."""


def is_installed() -> bool:
    """Whether jax has a CUDA plugin."""
    return any(_exists(name) for name in PLUGINS)


def check_installed() -> None:
    """UserError where jax has no CUDA plugin."""
    if not is_installed():
        raise UserError('dry run: expected XLA\'s GPU compiler, got none; install ".[cuda12]"')


def devices(card: Card, count: int) -> list[Any]:
    """`count` cards of one machine, described.

    Raises:
        UserError: the plugin did not register.
    """
    try:
        topology = topologies.get_topology_desc(
            "", platform="cuda", topology=f"1x1x{count}", target_config=card.target
        )
    except NotImplementedError:  # the plugin does not register where it finds no driver
        raise UserError(
            "dry run: expected a CUDA driver or JAX_PLATFORMS=cpu, got neither"
        ) from None
    return list(topology.devices)


def place(tree: Any, card: Card) -> Any:
    """The abstract arrays of `tree` on the card."""
    sharding = SingleDeviceSharding(devices(card, 1)[0])

    def put(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    return jax.tree.map(put, tree)


def compile_loop(
    card: Card, function: Callable[..., Any], arguments: tuple[Any, ...], donate: tuple[int, ...]
) -> Compiled:
    """Compile a program with one while_loop whose body is what interests.

    Args:
        arguments: pytrees of abstract arrays; those that the loop does not read are left out.
        donate: numbers of the arguments that the result is written over.
    """
    return read_loop(jax.jit(function, donate_argnums=donate).lower(*place(arguments, card)))


def read_loop(lowered: Any) -> Compiled:
    """Compile what is lowered for described cards, and read how its one loop is launched."""
    with tempfile.TemporaryDirectory() as folder, no_cache():
        compiled = lowered.compile(
            compiler_options=OPTIONS | {"xla_dump_to": folder, "xla_dump_hlo_as_text": True}
        )  # fmt: skip
        launches = Launches.parse(_thunks(Path(folder)))
    memory = compiled.memory_analysis()
    return Compiled(
        program=Program.parse(compiled.as_text()), launches=launches,
        argument_bytes=memory.argument_size_in_bytes,
        temporary_bytes=memory.temp_size_in_bytes,
        output_bytes=memory.output_size_in_bytes - memory.alias_size_in_bytes,
    )  # fmt: skip


def _thunks(folder: Path) -> str:
    """The largest dump: lowering may compile helpers of a few constants besides."""
    files = list(folder.glob("*thunk_sequence_after_thunk_passes.txt"))
    if not files:
        raise UserError("dry run: expected a dump of thunks from XLA, got none; use jax 0.10")
    return max(files, key=lambda file: file.stat().st_size).read_text(encoding="utf-8")


@contextmanager
def no_cache() -> Iterator[None]:
    """A program from the compilation cache leaves no dump."""
    before = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
