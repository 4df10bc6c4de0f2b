"""Meshes from one config line."""

import jax
import pytest
from jax.sharding import AxisType

from tiger_jax.errors import UserError
from tiger_jax.sharding.mesh import AXES, make_mesh, mesh_shape


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [
        ({"data": -1, "fsdp": 1, "tensor": 1}, (8, 1, 1)),
        ({"data": 2, "fsdp": -1, "tensor": 2}, (2, 2, 2)),
        ({"data": 8}, (8, 1, 1)),
        ({"tensor": -1}, (1, 1, 8)),
        ({"data": 2, "fsdp": 2, "tensor": 2}, (2, 2, 2)),
    ],
)
def test_sizes_are_filled(sizes, shape):
    assert mesh_shape(sizes, 8) == shape


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"data": 4}, "data=4, fsdp=1, tensor=1 is 4 devices, got 8"),
        ({"data": -1, "tensor": 3}, "needs a multiple of 3 devices, got 8"),
        ({"data": -1, "fsdp": -1}, "at most one -1"),
        ({"data": 0}, "expected positive sizes"),
        ({"model": 8}, "unknown axis 'model', expected one of data, fsdp, tensor"),
    ],
)
def test_impossible_sizes_are_named(sizes, message):
    with pytest.raises(UserError, match=message):
        mesh_shape(sizes, 8)


def test_axis_types_are_auto():
    mesh = make_mesh({"data": 2, "fsdp": 2, "tensor": 2})
    assert mesh.axis_names == AXES
    assert set(mesh.axis_types) == {AxisType.Auto}
    assert mesh.size == jax.device_count() == 8
