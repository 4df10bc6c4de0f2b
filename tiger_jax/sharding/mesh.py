"""The device mesh, made from one line of a config: mesh = dict(data=-1, fsdp=1, tensor=1).

data splits the batch, fsdp the batch and the weights, tensor the heads, MLP and vocabulary.
"""

from collections.abc import Mapping

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from tiger_jax.errors import UserError

AXES = ("data", "fsdp", "tensor")


def mesh_shape(sizes: Mapping[str, int], devices: int) -> tuple[int, ...]:
    """Sizes of AXES for a number of devices; one size may be -1, "all that is left".

    An axis that `sizes` leaves out has size 1.

    Raises:
        UserError: an unknown axis, a size of 0, two -1, or a product that is not the device count.
    """
    unknown = sorted(set(sizes) - set(AXES))
    if unknown:
        raise UserError(f"mesh: unknown axis {unknown[0]!r}, expected one of {', '.join(AXES)}")
    shape = [int(sizes.get(axis, 1)) for axis in AXES]
    text = ", ".join(f"{axis}={size}" for axis, size in zip(AXES, shape, strict=True))
    if any(size == 0 or size < -1 for size in shape) or shape.count(-1) > 1:
        raise UserError(f"mesh: expected positive sizes and at most one -1, got {text}")
    known = int(np.prod([size for size in shape if size != -1]))
    if devices % known or (-1 not in shape and known != devices):
        raise UserError(f"mesh: {text} needs a multiple of {known} devices, got {devices}"
                        if -1 in shape else
                        f"mesh: {text} is {known} devices, got {devices}")  # fmt: skip
    return tuple(devices // known if size == -1 else size for size in shape)


def parse_sizes(text: str) -> dict[str, int]:
    """The axis sizes of "data=1,tensor=8". Raises UserError."""
    sizes = {}
    for part in text.split(","):
        axis, _, size = part.partition("=")
        if not size.removeprefix("-").isdecimal():
            raise UserError(f"mesh: expected AXIS=SIZE,..., got {text!r}")
        sizes[axis.strip()] = int(size)
    return sizes


def make_mesh(sizes: Mapping[str, int], devices: list[jax.Device] | None = None) -> Mesh:
    """A mesh with the axes data, fsdp and tensor over `devices` (all of them by default).

    The axis types are passed explicitly: `jax.make_mesh` would otherwise give a mesh in explicit
    mode, where embedding gathers and reducing products ask for an out_sharding.
    """
    devices = list(jax.devices()) if devices is None else devices
    shape = mesh_shape(sizes, len(devices))
    return jax.make_mesh(shape, AXES, axis_types=(AxisType.Auto,) * len(AXES), devices=devices)
