"""One program of a run, with all that lies on the devices while it runs."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import Mesh

KINDS = ("parameters", "masters", "moments", "gradients", "caches", "batch")
"""What arrays on a device are: frozen weights, trained weights, their moments and gradient sums,
keys and values, and everything else that a program is given."""


@dataclasses.dataclass(frozen=True)
class Part:
    """A jitted program and its abstract arguments."""

    name: str
    program: Any
    arguments: tuple[Any, ...]
    mesh: Mesh
    """The one that is set while it runs."""
    given: Mapping[str, Any]
    """Kind -> its arguments of that kind, whether it reads them or not."""
    least_bytes: int | float
    """What a device has to read and write: each weight and cache row once."""
    keywords: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    waiting: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Kind -> what else is kept on the devices meanwhile."""
    loops: bool = False
    """Costs are those of one turn of its loop."""
    results: str = "batch"
    """Kind of what it makes."""
    times: int = 1
    """How often a training step, or an answer's token, needs it."""

    def lower(self) -> Any:
        """For the devices of its mesh."""
        with jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh):
            return self.program.lower(*self.arguments, **self.keywords)


def device_bytes(tree: Any) -> int:
    """Bytes of abstract arrays on one device."""
    return sum(_leaf_bytes(leaf) for leaf in jax.tree.leaves(tree))


def sum_kinds(*held: Mapping[str, Any]) -> dict[str, int]:
    """Kind -> bytes on one device."""
    total = dict.fromkeys(KINDS, 0)
    for trees in held:
        for kind, tree in trees.items():
            total[kind] += device_bytes(tree)
    return total


def join(*held: Mapping[str, Any]) -> dict[str, Any]:
    """Several mappings of kinds as one."""
    found: dict[str, list] = {}
    for trees in held:
        for kind, tree in trees.items():
            found.setdefault(kind, []).append(tree)
    return found


def _leaf_bytes(leaf: Any) -> int:
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return 8 * leaf.size
    sharding = getattr(leaf, "sharding", None)
    shape = sharding.shard_shape(leaf.shape) if sharding is not None else leaf.shape
    return math.prod(shape) * leaf.dtype.itemsize
