"""Where each array lives: parameter path -> logical axes -> mesh axes.

Models name no mesh axis. A parameter's path is matched against an ordered list of rules that give
its logical axes; LOGICAL_TO_MESH says which mesh axes those are. Optimizer states follow their
parameters, because their paths end with the parameter's path.

A dimension that its mesh axes do not divide is replicated instead (8 heads on tensor=16, a table of
257 positions on fsdp=8): the run is then correct and merely stores more.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import traverse_util
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from tiger_jax.errors import UserError

LOGICAL_TO_MESH: dict[str, str | tuple[str, ...]] = {
    "batch": ("data", "fsdp"),
    "embed": "fsdp",
    "heads": "tensor",
    "kv_heads": "tensor",
    "mlp": "tensor",
    "vocab": "tensor",
}
"""Logical axes that are split. Any other name, and None, is replicated."""


@dataclasses.dataclass(frozen=True)
class ParamRule:
    """The logical axes of every parameter whose whole path matches `pattern`."""

    pattern: str
    axes: tuple[str | None, ...]
    optional: bool = False
    """Some models have no such parameter; otherwise a rule that matches nothing is an error."""


ROUTER_RULES = (
    ParamRule(r"router/(look_\d/)?(query|key|value)/kernel", ("embed", "heads")),
    ParamRule(r"router/look_\d/out/kernel", ("heads", "embed"), optional=True),
    ParamRule(r"router/saliency", (None,)),
)
"""A drafter's router, beside its model."""

HEAD_RULES = tuple(
    ParamRule(pattern, axes, optional=True)
    for pattern, axes in (
        (r"(fuse|fc|lift|glance)/kernel", ("embed", None)),
        (r"(.*/)?bias", (None,)),
        (r"\w*norm/scale", (None,)),
        (r"attention/(query|key|value)/kernel", ("embed", "heads")),
        (r"attention/out/kernel", ("heads", "embed")),
        (r"mlp/(gate|up)/kernel", ("embed", "mlp")),
        (r"mlp/down/kernel", ("mlp", "embed")),
        (r"lm_head/kernel", ("embed", "vocab")),
        (r"resampler/(key|value)/kernel", ("embed", "heads")),
        (r"resampler/out/kernel", ("heads", "embed")),
        (r"resampler/queries", (None, "heads", None)),
        (r"blocks_\d+/kernel", ("embed", "mlp")),
        *((rule.pattern, rule.axes) for rule in ROUTER_RULES),
    )
)
"""A draft head's, its router under "router"; which of them a head has is its config's matter."""


def logical_axes(
    params: Mapping[str, Any], rules: Sequence[ParamRule]
) -> dict[str, tuple[str | None, ...]]:
    """Logical axes of each parameter, by path "a/b/c". The first rule that matches counts.

    Raises:
        ValueError: naming every parameter without a rule, every rule of another rank than its
            parameter, and every rule that matches nothing.
    """
    flat = traverse_util.flatten_dict(params, sep="/")
    found, faults, idle = {}, [], {rule for rule in rules if not rule.optional}
    for path, leaf in flat.items():
        rule = next((rule for rule in rules if re.fullmatch(rule.pattern, path)), None)
        if rule is None:
            faults.append(f"{path}: no sharding rule matches")
            continue
        idle.discard(rule)
        if len(rule.axes) != len(leaf.shape):
            faults.append(f"{path}: rule {rule.pattern!r} has {len(rule.axes)} axes, "
                          f"the shape is {tuple(leaf.shape)}")  # fmt: skip
        found[path] = rule.axes
    faults += [f"rule {rule.pattern!r} matches no parameter" for rule in rules if rule in idle]
    if faults:
        raise ValueError("sharding rules: " + "; ".join(faults))
    return found


def spec_for(
    shape: tuple[int, ...], axes: tuple[str | None, ...], mesh: Mesh | AbstractMesh
) -> PartitionSpec:
    """The partition of one array; dimensions that do not divide are replicated."""
    entries = []
    for size, name in zip(shape, axes, strict=True):
        wanted = LOGICAL_TO_MESH.get(name) if name else None
        names = (wanted,) if isinstance(wanted, str) else wanted or ()
        parts = int(np.prod([mesh.shape[axis] for axis in names]))
        entries.append(wanted if parts > 1 and size % parts == 0 else None)
    return PartitionSpec(*entries)


def tree_specs(
    tree: Any, axes: Mapping[str, tuple[str | None, ...]], mesh: Mesh | AbstractMesh
) -> Any:
    """The partition of each leaf of a state (abstract or not).

    A leaf whose path ends with a parameter's path is split like that parameter; everything else
    (steps, keys, counters) is replicated.
    """
    longest = max((path.count("/") + 1 for path in axes), default=0)

    def of(path: tuple, leaf: Any) -> PartitionSpec:
        names = [str(entry.key) for entry in path if isinstance(entry, jax.tree_util.DictKey)]
        for length in range(min(longest, len(names)), 0, -1):
            found = axes.get("/".join(names[-length:]))
            if found is not None and len(found) == len(leaf.shape):
                return spec_for(leaf.shape, found, mesh)
        return PartitionSpec()

    return jax.tree_util.tree_map_with_path(of, tree)


def tree_shardings(tree: Any, axes: Mapping[str, tuple[str | None, ...]], mesh: Mesh) -> Any:
    """A NamedSharding for each leaf of a state (`tree_specs`)."""
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), tree_specs(tree, axes, mesh))


def param_shardings(params: Any, rules: Sequence[ParamRule], mesh: Mesh) -> Any:
    """A NamedSharding for each parameter (abstract or not)."""
    return tree_shardings(params, logical_axes(params, rules), mesh)


def place_params(params: Any, rules: Sequence[ParamRule], mesh: Mesh | None) -> Any:
    """Parameters in their places on a mesh; as they are without one."""
    return params if mesh is None else jax.device_put(params, param_shardings(params, rules, mesh))


def place_batch(batch: Any, mesh: Mesh) -> Any:
    """A host batch on the mesh, first dimensions split; what cannot be cut is replicated.

    Every process has the whole batch and hands over what its own devices hold.
    """

    def place(leaf: Any) -> jax.Array:
        whole = np.asarray(leaf)
        sharding = _leaf_sharding(whole, mesh)
        return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])

    return jax.tree.map(place, batch)


def move_batch(batch: Any, mesh: Mesh) -> Any:
    """Arrays that are on devices already, split as batches are on another mesh of the same
    devices."""
    return jax.tree.map(lambda leaf: jax.device_put(leaf, _leaf_sharding(leaf, mesh)), batch)


def _leaf_sharding(leaf: Any, mesh: Mesh) -> NamedSharding:
    axes = ("batch", *[None] * (leaf.ndim - 1)) if leaf.ndim else ()
    return NamedSharding(mesh, spec_for(leaf.shape, axes, mesh))


def batch_parts(mesh: Mesh) -> int:
    """The number of shards that a batch is cut into."""
    return int(np.prod([mesh.shape[axis] for axis in LOGICAL_TO_MESH["batch"]]))


def check_batch(batch: int, mesh: Mesh) -> None:
    """UserError unless the mesh cuts a micro-batch evenly."""
    parts = batch_parts(mesh)
    if batch % parts:
        raise UserError(f"batch: expected a multiple of data * fsdp = {parts}, got {batch}")


def constrain(x: jax.Array, *axes: str | None) -> jax.Array:
    """Pin an activation to its logical axes; does nothing where no mesh is set."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return x
    return jax.lax.with_sharding_constraint(x, spec_for(x.shape, axes, mesh))


def constrain_state(tree: Any, params: Any, rules: Sequence[ParamRule]) -> Any:
    """Pin what follows the parameters' paths (gradients, moments) to their axes; does nothing where
    no mesh is set."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or not rules:
        return tree
    specs = tree_specs(tree, logical_axes(params, rules), mesh)
    return jax.tree.map(jax.lax.with_sharding_constraint, tree, specs)
