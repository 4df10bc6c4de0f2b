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

from tiger_jax.errors import UserError
from tiger_jax.evaluation.compiled_text import Launches, Program

PLUGINS = ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13")


@dataclasses.dataclass(frozen=True)
class Card:
    """What the compiler has to know of a card; the rest is the same on all of them."""

    name: str
    capability: tuple[int, int]
    cores: int
    threads_per_core: int
    shared_per_core: int
    """Bytes of shared memory of a streaming multiprocessor."""
    l2_bytes: int
    memory_bytes: float
    bandwidth: float
    """Bytes a second, the data sheet's."""
    clock_ghz: float

    @property
    def target(self) -> str:
        """A stream_executor.GpuTargetConfigProto in text form.

        Without a driver version XLA takes an old one, which can do few things in a CUDA graph.
        """
        major, minor = self.capability
        info = {
            "threads_per_block_limit": 1024, "threads_per_warp": 32,
            "shared_memory_per_block": 49152, "shared_memory_per_core": self.shared_per_core,
            "shared_memory_per_block_optin": self.shared_per_core - 1024,
            "threads_per_core_limit": self.threads_per_core, "core_count": self.cores,
            "fpus_per_core": 128, "block_dim_limit_x": 2**31 - 1, "block_dim_limit_y": 65535,
            "block_dim_limit_z": 65535, "thread_dim_limit_x": 1024, "thread_dim_limit_y": 1024,
            "thread_dim_limit_z": 64, "registers_per_core_limit": 65536,
            "registers_per_block_limit": 65536, "memory_bandwidth": int(self.bandwidth),
            "l2_cache_size": self.l2_bytes, "clock_rate_ghz": self.clock_ghz,
            "device_memory_size": int(self.memory_bytes),
            "driver_version": '"12.9.0"', "runtime_version": '"12.9.0"',
        }  # fmt: skip
        fields = "\n".join(f"  {name}: {value}" for name, value in info.items())
        return (
            f"gpu_device_info {{\n{fields}\n"
            f"  cuda_compute_capability {{ major: {major} minor: {minor} }}\n}}\n"
            'platform_name: "CUDA"\n'
            "dnn_version_info { major: 9 minor: 8 patch: 0 }\n"
            f'device_description_str: "NVIDIA {self.name}"\n'
        )


CARDS = {
    "a40": Card("A40", (8, 6), 84, 1536, 102_400, 6 * 2**20, 47.8e9, 696e9, 1.74),
    "h200": Card("H200", (9, 0), 132, 2048, 233_472, 50 * 2**20, 141e9, 4.8e12, 1.98),
}


@dataclasses.dataclass(frozen=True)
class Compiled:
    """One program for one card."""

    program: Program
    launches: Launches
    argument_bytes: int
    temporary_bytes: int
    output_bytes: int
    """Those that are not written over an argument."""


def check_installed() -> None:
    """UserError where jax has no CUDA plugin."""
    if not any(_exists(name) for name in PLUGINS):
        raise UserError('head_compile: expected XLA\'s GPU compiler, got none; install ".[cuda12]"')


def place(tree: Any, card: Card) -> Any:
    """The abstract arrays of `tree` on the card."""
    sharding = SingleDeviceSharding(_device(card))

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
    lowered = jax.jit(function, donate_argnums=donate).lower(*place(arguments, card))
    with tempfile.TemporaryDirectory() as folder, _no_cache():
        compiled = lowered.compile(
            compiler_options={
                "xla_gpu_autotune_level": 0, "xla_dump_to": folder, "xla_dump_hlo_as_text": True
            }
        )  # fmt: skip
        launches = Launches.parse(_thunks(Path(folder)))
    memory = compiled.memory_analysis()
    return Compiled(
        program=Program.parse(compiled.as_text()), launches=launches,
        argument_bytes=memory.argument_size_in_bytes,
        temporary_bytes=memory.temp_size_in_bytes,
        output_bytes=memory.output_size_in_bytes - memory.alias_size_in_bytes,
    )  # fmt: skip


def _device(card: Card) -> Any:
    try:
        topology = topologies.get_topology_desc(
            "", platform="cuda", topology="1x1x1", target_config=card.target
        )
    except NotImplementedError:  # the plugin does not register where it finds no driver
        raise UserError(
            "head_compile: expected a CUDA driver or JAX_PLATFORMS=cpu, got neither"
        ) from None
    return topology.devices[0]


def _thunks(folder: Path) -> str:
    """The largest dump: lowering may compile helpers of a few constants besides."""
    files = list(folder.glob("*thunk_sequence_after_thunk_passes.txt"))
    if not files:
        raise UserError("head_compile: expected a dump of thunks from XLA, got none; use jax 0.10")
    return max(files, key=lambda file: file.stat().st_size).read_text(encoding="utf-8")


@contextmanager
def _no_cache() -> Iterator[None]:
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
