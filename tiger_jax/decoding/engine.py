"""The host side of decoding: buckets, jitted programs, streaming, and results per request.

B: batch, S: prompt bucket, M: room for new tokens, N: draft nodes.

Two programs a setting: `start` (prefill) and `decode` (rounds). Both are compiled once a bucket of
(B, S, tiles, M); everything that differs between requests is an array. Streaming runs the same
decode program, one round at a time.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from tiger_jax.decoding import alone, autoregressive, prefill, speculative, stopping
from tiger_jax.decoding.drafters.protocol import AnsweringDrafter, Drafter, PromptArrays
from tiger_jax.decoding.programs import compiles, is_small, program
from tiger_jax.decoding.state import DecodeState, Finish, Limits
from tiger_jax.decoding.trace import Recorder
from tiger_jax.errors import UserError
from tiger_jax.models.interface import Params, VisionLanguageModel
from tiger_jax.ops.sampling import Sampling, SamplingMode
from tiger_jax.sharding.rules import move_batch

ROOM_BUCKETS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
CAPACITY_STEP = 64
STOP_IDS = 8
_UNLIMITED = np.int32(2**30)


@dataclasses.dataclass(frozen=True)
class Options:
    """What one request asks for. Temperature 0 is greedy; top_k 0 and top_p 1 keep everything."""

    max_new_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        checks = (
            (
                "max_new_tokens",
                self.max_new_tokens,
                f"in 1..{ROOM_BUCKETS[-1]}",
                1 <= self.max_new_tokens <= ROOM_BUCKETS[-1],
            ),
            # Beyond these float32 can no longer tell a masked logit from a real one.
            (
                "temperature",
                self.temperature,
                "0, or in 0.001..1000",
                self.temperature == 0 or 1e-3 <= self.temperature <= 1e3,
            ),
            ("top_k", self.top_k, "in 0..2**31-1", 0 <= self.top_k < 2**31),
            ("top_p", self.top_p, "in 0..1", 0 <= self.top_p <= 1),
            ("seed", self.seed, "in 0..2**32-1", 0 <= self.seed < 2**32),
        )
        for name, value, expected, fine in checks:
            if not fine:
                raise UserError(f"{name}: expected a value {expected}, got {value}")


@dataclasses.dataclass(frozen=True)
class Output:
    """The answer to one request."""

    text: str
    """Text without special tokens, cut before a stop string."""
    tokens: list[int]
    """Emitted ids, up to and including the one that ended the answer."""
    logprobs: list[float]
    """Log-probability of each token under the verifier's own law (temperature 1, no filter)."""
    finish_reason: str
    """stop (a stop token), stop_string, or length."""
    rounds: int
    drafted: int
    accepted_lengths: list[int]


@dataclasses.dataclass(frozen=True)
class BatchOutput:
    """The answers of one batch and what they took."""

    outputs: list[Output]
    prefill_seconds: float
    """From arrays on the host to the first token, pictures included."""
    decode_seconds: float
    """All tokens after the first."""
    compiled: bool
    """Whether a program was compiled on the way: such times are no measurement."""


Update = Callable[[int, list[int]], None]
"""Called with a row and its tokens so far, after prefill and after each round."""


@dataclasses.dataclass(frozen=True)
class Engine:
    """A verifier, perhaps with a drafter, ready to decode batches of prompts."""

    model: VisionLanguageModel
    params: Params
    drawable: np.ndarray
    """bool [V]: the ids that may be emitted."""
    detokenize: stopping.Detokenize
    drafter: Drafter | None = None
    drafter_params: Any = None
    mesh: Mesh | None = None
    """Where the parameters are: requests are split over data and fsdp, heads over tensor."""

    answers_alone: bool = False
    """The drafter answers, and its model and parameters stand in the verifier's place."""

    def plain(self) -> "Engine":
        """The same verifier without a drafter."""
        return dataclasses.replace(self, drafter=None, drafter_params=None)

    @property
    def nodes(self) -> int:
        """Tokens of a row that one verifier pass takes."""
        return self.drafter.spec.nodes if self.drafter else 1

    def is_small(self, batch: int) -> bool:
        """Whether rounds of so many rows belong on one thread."""
        return is_small(batch * self.nodes, self.model.decoder_weights)

    def run(
        self, prompt: PromptArrays, options: Sequence[Options], update: Update | None = None,
        recorder: Recorder | None = None,
    ) -> BatchOutput:  # fmt: skip
        """Decode one batch.

        Args:
            prompt: B bucketed prompts.
            options: at most B of them; the prompts behind the last one only fill the batch.
            update: asks for streaming.
            recorder: is shown every round (decoding/trace.py); the same rounds, one a call.
        """
        compiled = compiles()
        started = time.perf_counter()
        request, limits, room, mode = self.prepare(prompt, options)
        state = self.start(prompt, request, limits, room, mode)
        jax.block_until_ready(state.tokens)
        prefilled = time.perf_counter()
        watch = _Watch(options, self.detokenize, update)
        if watch.needed or recorder is not None:
            while watch.look(state):
                state = watch.stop_rows(state)
                if recorder is None:
                    state = self.decode(state, request, limits, mode, rounds=1)
                else:
                    state = recorder.step(self, state, request, limits, mode)
        else:
            state = self.decode(state, request, limits, mode)
        jax.block_until_ready(state.tokens)
        finished = time.perf_counter()
        return BatchOutput(
            outputs=self._outputs(state, options, watch.stopped),
            prefill_seconds=prefilled - started,
            decode_seconds=finished - prefilled,
            compiled=compiles() > compiled,
        )

    def run_alone(
        self, prompt: PromptArrays, options: Sequence[Options], update: Update | None = None
    ) -> BatchOutput:
        """The answers of the drafter by itself (decoding/alone.py), arguments as `run` has them.

        Log-probabilities are under the drafter's own law; there are no rounds. A confidence of the
        drafter has no meaning here.

        Raises:
            UserError: no drafter, or a head, which cannot answer without its verifier.
        """
        if not isinstance(self.drafter, AnsweringDrafter):
            got = "none" if self.drafter is None else "a head"
            raise UserError(f"answers alone: expected a small model as drafter, got {got}")
        model, params = self.drafter.model, self.drafter_params
        engine = dataclasses.replace(self, model=model, params=params, answers_alone=True)
        return engine.run(prompt, options, update)

    def prepare(
        self, prompt: PromptArrays, options: Sequence[Options]
    ) -> tuple[Sampling, Limits, int, SamplingMode]:
        """Per-request settings as arrays, the room for new tokens, and the sampling arithmetic."""
        batch = prompt.tokens.shape[0]
        if len(options) > batch:
            raise ValueError(f"options: expected at most {batch}, got {len(options)}")
        filled = [*options, *[Options()] * (batch - len(options))]
        request = Sampling(
            temperature=jnp.asarray([o.temperature for o in filled], jnp.float32),
            top_k=jnp.asarray([o.top_k for o in filled], jnp.int32),
            top_p=jnp.asarray([o.top_p for o in filled], jnp.float32),
            seeds=jnp.asarray(np.asarray([o.seed for o in filled], np.uint32)),
        )
        # A sequence never outgrows the positions that the model knows.
        fits = self.model.config.text.max_positions - np.asarray(prompt.lengths)
        wanted = np.minimum([o.max_new_tokens for o in filled], fits)
        wanted[len(options) :] = 0
        stop_ids = np.full((batch, STOP_IDS), -1, np.int32)
        eos = self.model.config.eos_token_ids
        if len(eos) > STOP_IDS:
            raise UserError(f"eos_token_id: expected at most {STOP_IDS} ids, got {len(eos)}")
        stop_ids[:, : len(eos)] = eos
        limits = Limits(
            stop_ids=jnp.asarray(stop_ids),
            max_new_tokens=jnp.asarray(wanted.astype(np.int32)),
            drawable=jnp.asarray(self.drawable),
        )
        room = next((size for size in ROOM_BUCKETS if size >= wanted.max()), None)
        if room is None:
            raise UserError(
                f"max_new_tokens: expected at most {ROOM_BUCKETS[-1]}, got {wanted.max()}"
            )
        return request, limits, room, _mode(options)

    def start(
        self, prompt: PromptArrays, request: Sampling, limits: Limits, room: int,
        mode: SamplingMode,
    ) -> DecodeState:  # fmt: skip
        """Prefill; the state holds the first token of each row."""
        needed = prompt.tokens.shape[1] + room + self.nodes + 1
        if self.mesh is not None:
            prompt, request = move_batch((prompt, request), self.mesh)
        common = {
            "drafter": self.drafter, "params": self.params, "prompt": prompt, "request": request,
            "limits": limits, "capacity": -(-needed // CAPACITY_STEP) * CAPACITY_STEP,
            "room": room, "mode": mode,
        }  # fmt: skip
        static = ("drafter", "capacity", "room", "mode")
        with self.on_mesh():
            if self.answers_alone:
                return program(alone.start, False, static)(**common)
            begin = program(prefill.start, False, ("model", *static))
            return begin(model=self.model, drafter_params=self.drafter_params, **common)

    def decode(
        self, state: DecodeState, request: Sampling, limits: Limits, mode: SamplingMode,
        rounds: int | None = None,
    ) -> DecodeState:  # fmt: skip
        """Run until all rows are done, or `rounds` rounds. The given state is consumed."""
        bound = _UNLIMITED if rounds is None else np.int32(rounds)
        one_thread = self.is_small(state.pending.shape[0])
        common = {
            "params": self.params, "state": state, "request": request, "limits": limits,
            "mode": mode,
        }  # fmt: skip
        with self.on_mesh():
            if self.answers_alone:
                decode = program(alone.decode, one_thread, ("drafter", "mode"), ("state",))
                return decode(drafter=self.drafter, blocks=bound, **common)
            common |= {"model": self.model}
            if self.drafter is None:
                decode = program(autoregressive.decode, one_thread, ("model", "mode"), ("state",))
                return decode(steps=bound, **common)
            static = ("model", "drafter", "mode")
            decode = program(speculative.decode, one_thread, static, ("state",))
            drafter = {"drafter": self.drafter, "drafter_params": self.drafter_params}
            return decode(rounds=bound, **drafter, **common)

    def over_batch(self, run: Callable[[Any], Any], batch: Any) -> Any:
        """`run(batch)` on the verifier's mesh, whatever mesh of the same devices the batch is on;
        what comes of it goes back to the mesh that is set, if one is."""
        home = jax.sharding.get_mesh()
        if self.mesh is None or home == self.mesh:
            return run(batch)
        with jax.set_mesh(self.mesh):
            found = run(move_batch(batch, self.mesh))
        return found if home.empty else move_batch(found, home)

    def on_mesh(self) -> AbstractContextManager:
        """Sets the mesh, if there is one, for programs that read the parameters."""
        return nullcontext() if self.mesh is None else jax.set_mesh(self.mesh)

    def _outputs(
        self, state: DecodeState, options: Sequence[Options], stopped: dict[int, int]
    ) -> list[Output]:
        host = jax.device_get(
            {
                name: getattr(state, name)
                for name in (
                    "tokens",
                    "logprobs",
                    "counts",
                    "finish",
                    "rounds",
                    "drafted",
                    "accepted",
                )
            }
        )
        return [
            self._output({k: v[row] for k, v in host.items()}, option, stopped.get(row))
            for row, option in enumerate(options)
        ]

    def _output(self, row: dict[str, Any], option: Options, stop_count: int | None) -> Output:
        count = int(row["counts"])
        accepted = [int(a) for a in row["accepted"][: int(row["rounds"])]]
        reason = Finish(int(row["finish"]))
        if stop_count is not None:
            reason = Finish.STOP_STRING
            accepted = stopping.rounds_within(accepted, stop_count)
            count = stop_count
        tokens = [int(t) for t in row["tokens"][:count]]
        text = stopping.cut_text(self.detokenize(tokens), option.stop)
        return Output(
            text=text.strip(),
            tokens=tokens,
            logprobs=[float(p) for p in row["logprobs"][:count]],
            finish_reason={Finish.STOP_TOKEN: "stop", Finish.STOP_STRING: "stop_string"}.get(
                reason, "length"
            ),
            rounds=len(accepted),
            drafted=int(row["drafted"]),
            accepted_lengths=accepted,
        )


class _Watch:
    """Looks at the tokens between rounds: for a listener, and for stop strings."""

    def __init__(
        self, options: Sequence[Options], detokenize: stopping.Detokenize, update: Update | None
    ) -> None:
        self._options = options
        self._detokenize = detokenize
        self._update = update
        self._seen = [0] * len(options)
        self.stopped: dict[int, int] = {}
        """Row -> tokens up to the one that completed its stop string."""
        self.needed = update is not None or any(option.stop for option in options)

    def look(self, state: DecodeState) -> bool:
        """Report new tokens, note stop strings; True while a row still runs."""
        tokens, counts, finish = jax.device_get((state.tokens, state.counts, state.finish))
        for row, option in enumerate(self._options):
            if row in self.stopped or counts[row] == self._seen[row]:
                continue
            emitted = [int(token) for token in tokens[row, : counts[row]]]
            hit = stopping.find_stop(emitted, option.stop, self._detokenize, self._seen[row])
            self._seen[row] = len(emitted)
            if hit is not None:
                self.stopped[row] = hit
                emitted = emitted[:hit]
            if self._update:
                self._update(row, emitted)
        running = finish[: len(self._options)] == Finish.RUNNING
        return any(running[row] and row not in self.stopped for row in range(len(running)))

    def stop_rows(self, state: DecodeState) -> DecodeState:
        """End the rows whose stop string was found."""
        if not self.stopped:
            return state
        finish = np.array(state.finish)
        finish[list(self.stopped)] = Finish.STOP_STRING
        return state.replace(finish=jnp.asarray(finish))


def _mode(options: Sequence[Options]) -> SamplingMode:
    """The least arithmetic that serves every request of a batch."""
    if all(o.temperature == 0 for o in options):
        return SamplingMode.GREEDY
    if all(o.temperature == 0 or (o.top_k == 0 and o.top_p == 1) for o in options):
        return SamplingMode.TEMPERATURE
    return SamplingMode.FILTERED
