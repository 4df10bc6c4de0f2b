"""The programs of decoding: prompts read, a plain step, a round with a routed drafter."""

import dataclasses
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from tiger_jax.decoding import autoregressive, prefill, speculative
from tiger_jax.decoding.drafters.routed import RoutedDrafter
from tiger_jax.decoding.engine import CAPACITY_STEP, ROOM_BUCKETS, STOP_IDS
from tiger_jax.decoding.programs import program
from tiger_jax.decoding.state import Limits
from tiger_jax.dry_run import abstract_batches as batches
from tiger_jax.dry_run.abstract_batches import Longest, place_batch
from tiger_jax.dry_run.parts import Part, device_bytes
from tiger_jax.dry_run.published import place
from tiger_jax.models.interface import VisionLanguageModel
from tiger_jax.ops.sampling import Sampling, SamplingMode
from tiger_jax.sharding.rules import spec_for


@dataclasses.dataclass(frozen=True)
class Setting:
    """A verifier, perhaps with a drafter, and a batch of the longest prompts."""

    verifier: VisionLanguageModel
    verifier_params: Any
    mesh: Mesh
    longest: Longest
    batch: int
    room: int
    """Most new tokens of a request."""
    greedy: bool = True
    drafter: RoutedDrafter | None = None
    drafter_params: Any = None

    @property
    def mode(self) -> SamplingMode:
        """Arithmetic of the draws."""
        return SamplingMode.GREEDY if self.greedy else SamplingMode.TEMPERATURE

    @property
    def nodes(self) -> int:
        """Tokens that a verification takes."""
        return self.drafter.spec.nodes if self.drafter else 1

    @property
    def held(self) -> dict[str, Any]:
        """Weights of both models."""
        return {"parameters": (self.verifier_params, self.drafter_params)}

    @cached_property
    def request(self) -> tuple[Sampling, Limits]:
        """Settings of the requests."""
        size, vocabulary = self.batch, self.verifier.config.text.vocab_size
        sampling = Sampling(
            temperature=batches.floats(size), top_k=batches.ints(size), top_p=batches.floats(size),
            seeds=jax.ShapeDtypeStruct((size,), jnp.uint32),
        )  # fmt: skip
        limits = Limits(
            stop_ids=batches.ints(size, STOP_IDS), max_new_tokens=batches.ints(size),
            drawable=jax.ShapeDtypeStruct((vocabulary,), jnp.bool_),
        )  # fmt: skip
        return place_batch(sampling, self.mesh), limits

    @cached_property
    def prompt(self) -> Any:
        """Prompts with their pictures, and streams where a drafter routes."""
        pooled = self.drafter.router.pooled_tokens if self.drafter else None
        return place_batch(
            batches.prompts(self.longest, self.batch, self.verifier.dtype, pooled), self.mesh
        )

    @cached_property
    def starting(self) -> dict[str, Any]:
        """Arguments of the prefill, as Engine.start gives them."""
        room = next(size for size in ROOM_BUCKETS if size >= self.room)
        rows = self.longest.prompt + room + self.nodes + 1
        sampling, limits = self.request
        return {
            "model": self.verifier, "drafter": self.drafter, "params": self.verifier_params,
            "drafter_params": self.drafter_params, "prompt": self.prompt, "request": sampling,
            "limits": limits, "capacity": batches.round_up(rows, CAPACITY_STEP), "room": room,
            "mode": self.mode,
        }  # fmt: skip

    @cached_property
    def start(self) -> Any:
        """The jitted prefill."""
        return program(prefill.start, False, ("model", "drafter", "capacity", "room", "mode"))

    @cached_property
    def state(self) -> Any:
        """What the prefill makes: caches split over requests and heads, the rest over requests."""
        fixed = {name: self.starting[name] for name in
                 ("model", "drafter", "capacity", "room", "mode")}  # fmt: skip
        given = {name: value for name, value in self.starting.items() if name not in fixed}
        with jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh):
            state = jax.eval_shape(lambda given: prefill.start(**fixed, **given), given)
        return state.replace(
            **{name: place_batch(getattr(state, name), self.mesh)
               for name in state.__dataclass_fields__ if name not in ("cache", "drafter")},
            cache=self._caches(state.cache), drafter=self._drafter_state(state.drafter),
        )  # fmt: skip

    def _drafter_state(self, state: Any) -> Any:
        if not self.drafter:
            return state
        return place_batch(state, self.mesh).replace(cache=self._caches(state.cache))

    def _caches(self, cache: Any) -> Any:
        def split(rows: Any) -> NamedSharding:
            axes = ("batch", "kv_heads", None, None)
            return NamedSharding(self.mesh, spec_for(rows.shape, axes, self.mesh))

        return place(cache, jax.tree.map(split, cache))

    @property
    def caches(self) -> Any:
        """All keys and values."""
        return (self.state.cache, getattr(self.state.drafter, "cache", ()))


def prefill_part(setting: Setting, prefix: str = "") -> Part:
    """Pictures and prompts, once."""
    return Part(
        f"{prefix}prefill", setting.start, (), setting.mesh,
        setting.held | {"batch": (setting.prompt, setting.request)},
        device_bytes(setting.held) + device_bytes(setting.caches),
        keywords=setting.starting, results="caches",
    )  # fmt: skip


def plain_parts(setting: Setting, prefix: str = "") -> list[Part]:
    """Prefill, and one token of plain decoding."""
    return [prefill_part(setting, prefix), plain_step(setting, prefix)]


def plain_step(setting: Setting, prefix: str = "") -> Part:
    """One token of each request."""
    decode = program(autoregressive.decode, False, ("model", "mode"), ("state",))
    return Part(
        f"{prefix}plain step", decode, (), setting.mesh, _given(setting),
        _read_weights(setting.verifier_params) + device_bytes(setting.state.cache),
        keywords=_common(setting) | {"steps": batches.ints()}, loops=True, results="caches",
    )  # fmt: skip


def round_part(setting: Setting, prefix: str = "") -> Part:
    """Draft, verify, commit."""
    decode = program(speculative.decode, False, ("model", "drafter", "mode"), ("state",))
    drafter = {"drafter": setting.drafter, "drafter_params": setting.drafter_params}
    passes = setting.drafter.spec.depth + 1  # the stream's, then one a draft
    drafted = _read_weights(setting.drafter_params) + device_bytes(setting.state.drafter.cache)
    return Part(
        f"{prefix}round, draft length {setting.drafter.draft_length}", decode, (), setting.mesh,
        _given(setting),
        _read_weights(setting.verifier_params) + device_bytes(setting.state.cache)
        + passes * drafted + device_bytes(setting.state.drafter.bank.keys),
        keywords=_common(setting) | drafter | {"rounds": batches.ints()}, loops=True,
        results="caches",
    )  # fmt: skip


def _given(setting: Setting) -> dict[str, Any]:
    rest = jax.tree.leaves(setting.state)
    caches = jax.tree.leaves(setting.caches)
    held = {id(leaf) for leaf in caches}
    others = [leaf for leaf in rest if id(leaf) not in held]
    return setting.held | {"caches": caches, "batch": (others, setting.request)}


def _common(setting: Setting) -> dict[str, Any]:
    sampling, limits = setting.request
    return {
        "model": setting.verifier, "params": setting.verifier_params, "state": setting.state,
        "request": sampling, "limits": limits, "mode": setting.mode,
    }  # fmt: skip


def _read_weights(params: Any) -> int:
    """Weights that a step of the text model reads: no tower, no table of embeddings."""
    text = {name: part for name, part in params["language_model"].items() if name != "embed_tokens"}
    return device_bytes(text)
