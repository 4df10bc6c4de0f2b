"""The verifier of a training run: read where it is needed, let go where it is not."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.typing import DTypeLike

from tiger_jax.data.processor import Processor
from tiger_jax.decoding.engine import Engine
from tiger_jax.errors import UserError
from tiger_jax.models.config import ModelConfig
from tiger_jax.models.config_reader import read_config
from tiger_jax.models.interface import build_model
from tiger_jax.pipeline import Pipeline
from tiger_jax.sharding import mesh as meshes
from tiger_jax.training import run_folder


def verifier_folder(config: Any) -> Path:
    """The verifier's folder. Raises UserError if there is none."""
    folder = run_folder.export_folder(config.verifier)
    if not (folder / "config.json").is_file():
        raise UserError(f"verifier: expected a Hugging Face folder, got {config.verifier!r}")
    return folder


@dataclasses.dataclass(frozen=True)
class FrozenVerifier:
    """A verifier whose weights are read where they are needed, and let go again."""

    folder: Path
    config: ModelConfig
    processor: Processor
    dtype: DTypeLike
    remat: bool
    """Its training passes as scans, one layer's weights at a time."""
    mesh: Mesh
    """For training passes, over all devices of the run."""
    answer_mesh: Mesh
    """For its answers, over this process's devices: processes share the examples. A token needs
    every weight, so the weights should stay where they are (tensor, not fsdp)."""
    _engines: dict[Mesh, Engine] = dataclasses.field(default_factory=dict)

    @classmethod
    def find(cls, config: Any) -> "FrozenVerifier":
        """The verifier that a config names. Raises UserError."""
        folder = verifier_folder(config)
        model_config = read_config(folder)
        return cls(
            folder, model_config, Processor.from_folder(folder, model_config),
            jnp.dtype(config.compute_dtype), config.get("remat", False),
            meshes.make_mesh(config.get("verifier_mesh", config.mesh).to_dict()),
            meshes.make_mesh(config.answer_mesh.to_dict(), devices=jax.local_devices()),
        )  # fmt: skip

    def engine(self, mesh: Mesh | None = None) -> Engine:
        """The verifier on a mesh, that of training by default; read once."""
        mesh = mesh or self.mesh
        if mesh not in self._engines:
            engine = Pipeline.load(self.folder, dtype=self.dtype, mesh=mesh).engine
            model = build_model(self.config, self.dtype, self.remat)
            self._engines[mesh] = dataclasses.replace(engine, model=model)
        return self._engines[mesh]

    def release(self, keep: Mesh | None = None) -> None:
        """Let the weights go, but for those on `keep`."""
        for mesh in [mesh for mesh in self._engines if mesh != keep]:
            del self._engines[mesh]
