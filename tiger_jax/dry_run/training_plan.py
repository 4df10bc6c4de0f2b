"""A run of configs/kd.py or configs/grpo.py of which only shapes exist: models, state, batches."""

import dataclasses
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax import ShapeDtypeStruct as Shape
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tiger_jax.dry_run import abstract_batches as batches
from tiger_jax.dry_run.abstract_batches import Longest, place_batch
from tiger_jax.dry_run.compiler import Compiler
from tiger_jax.dry_run.published import abstract_weights, model_config, place
from tiger_jax.models.interface import VisionLanguageModel, build_model
from tiger_jax.routing.router import RouterConfig
from tiger_jax.training import optimizer, train_state
from tiger_jax.training.draft_blocks import BlockDrafter


@dataclasses.dataclass(frozen=True)
class Plan:
    """A run of configs/kd.py or configs/grpo.py, of which only shapes exist."""

    config: Any
    compiler: Compiler
    layers: int = 0
    """> 0 makes both models that shallow."""

    @cached_property
    def mesh(self) -> Mesh:
        """The drafter's."""
        return self.compiler.mesh(self.config.mesh.to_dict())

    @cached_property
    def verifier_mesh(self) -> Mesh:
        """The verifier's, over the same devices."""
        return self.compiler.mesh(self.config.verifier_mesh.to_dict())

    @cached_property
    def answer_mesh(self) -> Mesh:
        """The verifier's while it answers."""
        return self.compiler.mesh(self.config.answer_mesh.to_dict())

    @cached_property
    def dtype(self) -> Any:
        """Of activations and of what is not trained."""
        return jnp.dtype(self.config.compute_dtype)

    @cached_property
    def drafter(self) -> BlockDrafter:
        """In its training form."""
        return BlockDrafter(
            self._model(self.config.model), RouterConfig(**self.config.router.to_dict())
        )

    @cached_property
    def verifier(self) -> VisionLanguageModel:
        """Frozen; its passes over whole examples scan as the drafter's do."""
        return self._model(self.config.verifier)

    @cached_property
    def longest(self) -> Longest:
        """Sizes of the longest examples."""
        config = self.config
        own = config.response == "verifier"
        return Longest.of(
            self.drafter.model.config, self.drafter.config, config.max_length,
            config.teacher.max_new_tokens if own else config.max_length,
        )  # fmt: skip

    @cached_property
    def transform(self) -> Any:
        """The optimizer."""
        config = self.config
        return optimizer.make_optimizer(optimizer.OptimizerSettings(
            config.learning_rate, config.steps, config.warmup, freeze=tuple(config.freeze),
        ))  # fmt: skip

    @cached_property
    def state(self) -> train_state.TrainState:
        """The drafter's, on its mesh."""
        drafter = self.drafter
        return train_state.abstract_state(
            drafter.init_params, self.transform, self.mesh, drafter.rules
        )

    @cached_property
    def verifier_params(self) -> Any:
        """Frozen weights in the compute dtype, on the verifier's mesh."""
        return abstract_weights(self.verifier, self.dtype, self.verifier_mesh)

    @cached_property
    def reference_params(self) -> Any:
        """q_ref: the drafter before alignment, in the compute dtype."""
        params = self.state.params
        made = jax.eval_shape(lambda params: train_state.cast(params, self.dtype), params)
        return place(made, jax.tree.map(lambda x: x.sharding, params))

    @cached_property
    def batch(self) -> Any:
        """One micro-batch."""
        config, cuts = self.config, self.config.get("prefixes", 0)
        teacher = config.teacher
        batch = batches.draft_batch(
            self.longest, config.batch, self.longest.blocks(config.draft_length, cuts),
            config.draft_length, (teacher.kept_tokens, teacher.kept_rows),
            self.drafter.config.pooled_tokens,
        )  # fmt: skip
        return place_batch(batch, self.mesh)

    @property
    def trained(self) -> dict[str, Any]:
        """What a run carries from step to step."""
        return {"masters": self.state.params, "moments": self.state.opt_state}

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Tokens that end a response."""
        return self.verifier.config.eos_token_ids

    @property
    def drawable(self) -> Shape:
        """bool [V]."""
        return self.everywhere((self.verifier.config.text.vocab_size,), jnp.bool_)

    @property
    def key(self) -> Shape:
        """A random key."""
        return self.everywhere((), jax.random.key(0).dtype)

    def everywhere(self, shape: tuple[int, ...], dtype: Any) -> Shape:
        """A small array that each device has whole."""
        return Shape(shape, dtype, sharding=NamedSharding(self.mesh, PartitionSpec()))

    def _model(self, name: str) -> VisionLanguageModel:
        config = model_config(name, self.layers)
        return build_model(config, self.dtype, self.config.remat)
