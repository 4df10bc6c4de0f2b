"""The table itself: reversible, strict, and one-to-one with the two public checkpoints."""

import json
import math
from pathlib import Path

import pytest

from tiger_jax.errors import UserError
from tiger_jax.models import config_reader, interface
from tiger_jax.weights.llava_next_names import LAYOUTS, LLAVA_NEXT, detect_layout
from tiger_jax.weights.name_table import (
    Entry,
    NameTable,
    Rule,
    StoredTensor,
    find_faults,
    natural_order,
)
from tiger_jax.weights.tensor_ops import IDENTITY

GOLDEN = Path(__file__).parents[1] / "golden"
# size -> tensors in the file, parameters (models.md 1.1, from the public files' headers)
PUBLIC = {"7b": (687, 7_063_431_168), "13b": (759, 13_351_499_776)}


def golden(size: str) -> dict:
    return json.loads((GOLDEN / f"llava_v1.6_vicuna_{size}.json").read_text())


def golden_shapes(size: str) -> dict[str, tuple[int, ...]]:
    shapes = {}
    for pattern, shape, layers in golden(size)["tensors"]:
        for i in range(layers or 1):
            shapes[pattern.replace("{i}", str(i))] = tuple(shape)
    return shapes


@pytest.mark.parametrize("size", PUBLIC)
def test_public_checkpoints_map_one_to_one(size):
    shapes = golden_shapes(size)
    count, parameters = PUBLIC[size]
    config = config_reader.llava_next_config(golden(size)["config"])
    entries = LLAVA_NEXT.entries(interface.build_model(config).abstract_params())
    assert len(shapes) == count
    assert sum(math.prod(shape) for shape in shapes.values()) == parameters
    assert {name: entry.hf_shape for name, entry in entries.items()} == shapes
    assert len({entry.path for entry in entries.values()}) == count
    assert sum(math.prod(entry.jax_shape) for entry in entries.values()) == parameters


def test_both_directions_invert_each_other():
    for name in golden_shapes("7b"):
        assert LLAVA_NEXT.to_hf(LLAVA_NEXT.to_path(name)) == name


def test_layer_numbers_are_numbers_not_text():
    hf = "language_model.model.layers.12.mlp.up_proj.weight"
    assert LLAVA_NEXT.to_path(hf) == "language_model/layers_12/mlp/up/kernel"
    assert sorted(["layers.10.a", "layers.2.a"], key=natural_order) == ["layers.2.a", "layers.10.a"]


def test_unknown_names_and_doubled_rules_are_errors():
    with pytest.raises(KeyError, match="mlp/gaet"):
        LLAVA_NEXT.to_hf("language_model/layers_0/mlp/gaet/kernel")
    with pytest.raises(ValueError, match="share a name or a path"):
        NameTable([Rule("a", "x"), Rule("b", "x")])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_are_detected_and_reversible(layout):
    names = list(golden_shapes("7b"))
    spelled = [LAYOUTS[layout].from_canonical(name) for name in names]
    assert len(set(spelled)) == len(names)
    assert detect_layout(spelled).name == layout
    assert [LAYOUTS[layout].to_canonical(name) for name in spelled] == names


def test_all_faults_stand_in_one_line():
    expected = {name: Entry(name, name, IDENTITY, (2, 3), (2, 3)) for name in "abcd"}
    stored = [
        StoredTensor("b", "b", "one", (3, 2), "float32"),
        StoredTensor("c", "c", "one", (2, 3), "float16"),
        StoredTensor("c", "old.c", "two", (2, 3), "float16"),
        StoredTensor("d", "d", "two", (2, 3), "I8"),
        StoredTensor("e", "e", "two", (5,), "float32"),
    ]
    with pytest.raises(UserError) as caught:
        find_faults(expected, stored).raise_if_any("checkpoint x")
    line = str(caught.value)
    assert "\n" not in line
    for part in (
        "checkpoint x does not fit the model",
        "1 missing: a [2, 3]",
        "1 unexpected: e [5]",
        "1 wrong shape: b expected [2, 3], got [3, 2]",
        "1 wrong dtype: d expected one of float32/float16/bfloat16, got I8",
        "1 set twice: c (c in one and old.c in two)",
    ):
        assert part in line


def test_a_long_report_is_cut_but_counts_everything():
    expected = {f"w{i}": Entry(f"w{i}", f"w{i}", IDENTITY, (1,), (1,)) for i in range(500)}
    with pytest.raises(UserError, match=r"500 missing: w0.*and 492 more") as caught:
        find_faults(expected, []).raise_if_any("x")
    assert len(str(caught.value)) < 400
