"""Models by the names of their published folders, for runs whose weights are not here."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh
from jax.typing import DTypeLike

from tiger_jax.errors import UserError
from tiger_jax.models.config import ModelConfig
from tiger_jax.models.config_reader import make_config, read_config
from tiger_jax.models.interface import VisionLanguageModel
from tiger_jax.models.published import NAMES, published_config
from tiger_jax.sharding import rules


def model_config(folder: str, layers: int = 0) -> ModelConfig:
    """Of a Hugging Face folder, or of a published one that is only named.

    Args:
        layers: > 0 makes the text model that shallow.

    Raises:
        UserError: neither is there.
    """
    found = _config(folder)
    if not layers:
        return found
    return dataclasses.replace(found, text=dataclasses.replace(found.text, num_layers=layers))


def _config(folder: str) -> ModelConfig:
    if (Path(folder) / "config.json").is_file():
        return read_config(folder)
    name = Path(folder).name
    if name not in NAMES:
        names = ", ".join(NAMES)
        raise UserError(
            f"dry run: expected a Hugging Face folder or one of {names}, got {folder!r}"
        )
    return make_config(published_config(name))


def abstract_weights(
    model: VisionLanguageModel, dtype: DTypeLike, mesh: Mesh, more: Any = None,
    extra_rules: tuple[rules.ParamRule, ...] = (),
) -> Any:  # fmt: skip
    """A model's parameters on a mesh; `more` are those beside it, such as a router's."""
    params = model.abstract_params(dtype) | (more or {})
    axes = rules.logical_axes(params, (*model.rules, *extra_rules))
    return place(params, rules.tree_shardings(params, axes, mesh))


def place(tree: Any, shardings: Any) -> Any:
    """Abstract arrays in their places."""
    return jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        tree, shardings,
    )  # fmt: skip
