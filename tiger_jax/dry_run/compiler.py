"""The compiler that a dry run asks: XLA's for a described card, or that of the CPU."""

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from tiger_jax.dry_run import gpu_compiler
from tiger_jax.dry_run.cards import Card
from tiger_jax.errors import UserError
from tiger_jax.sharding.mesh import AXES, mesh_shape

LIBRARY_PRODUCTS = {"xla_gpu_enable_triton_gemm": False}
"""For programs of large products. Autotuning would give these to cuBLAS; without it XLA tries one
default tile of Triton, which some of them do not fit."""


@dataclasses.dataclass(frozen=True)
class Compiler:
    """Where programs are compiled for."""

    card: Card
    devices: tuple[Any, ...]
    for_gpu: bool

    @classmethod
    def choose(cls, card: Card, count: int) -> "Compiler":
        """XLA's GPU compiler where jax has its plugin; else `count` virtual CPU devices.

        Raises:
            UserError: neither is to be had.
        """
        # The plugin of a card that is not there registers only where JAX is told to do without it.
        _set_early("jax_platforms", "cpu")
        if gpu_compiler.is_installed():
            return cls(card, tuple(gpu_compiler.devices(card, count)), True)
        return cls(card, tuple(_cpu_devices(count)), False)

    @property
    def described(self) -> str:
        """One line for the report."""
        count = len(self.devices)
        if self.for_gpu:
            return (
                f"compiled by XLA's GPU compiler (jax {jax.__version__}) for {count} x "
                f"{self.card.name}, without a device and without autotuning"
            )
        return (
            f"compiled by XLA's CPU compiler (jax {jax.__version__}) for {count} virtual devices: "
            "it widens bfloat16, so temporaries, bytes and kernels are upper bounds and not those "
            f'of a {self.card.name}; with ".[cuda12]" installed the GPU compiler is used'
        )

    def mesh(self, sizes: Mapping[str, int]) -> Mesh:
        """A mesh over the devices. Raises UserError."""
        shape = mesh_shape(sizes, len(self.devices))
        kinds = (AxisType.Auto,) * len(AXES)
        return Mesh(np.array(self.devices).reshape(shape), AXES, axis_types=kinds)

    def compile(self, lowered: Any, decodes: bool = False) -> Any:
        """The compiled program; `decodes` where its products have few rows."""
        options: dict[str, Any] = {}
        if self.for_gpu:
            options = gpu_compiler.OPTIONS | ({} if decodes else LIBRARY_PRODUCTS)
        return lowered.compile(compiler_options=options)


def _cpu_devices(count: int) -> list[Any]:
    _set_early("jax_num_cpu_devices", count)
    devices = jax.devices("cpu")
    if len(devices) < count:
        raise UserError(
            f"dry run: expected {count} virtual CPU devices, got {len(devices)}; start with "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={count}"
        )
    return devices[:count]


def _set_early(name: str, value: Any) -> None:
    """A setting that counts until the first device is asked for; what is there then is looked at
    where it is needed."""
    with contextlib.suppress(RuntimeError):
        jax.config.update(name, value)
