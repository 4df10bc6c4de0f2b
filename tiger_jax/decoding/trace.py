"""What happened in each round of an answer: routed rows, the draft and what became of it, time.

B: batch, N: draft nodes with the root, k: routed tokens.

Decoding itself is the program that streaming runs, one round a call, on the same state: the tokens
cannot differ. Before each call one more program asks the drafter what it is about to do (`look`),
which is known because drafters are pure. Without a recorder none of this exists.
"""

import dataclasses
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from flax import struct
from jaxtyping import Bool, Int

from tiger_jax.decoding.bank_scores import ChosenRows, chosen_rows
from tiger_jax.decoding.drafters.protocol import Drafter, RoundContext
from tiger_jax.decoding.programs import compiles, program
from tiger_jax.decoding.state import DecodeState, Limits
from tiger_jax.models.interface import Params
from tiger_jax.ops.sampling import Sampling, SamplingMode
from tiger_jax.routing.bank import Anywhere

if TYPE_CHECKING:
    from tiger_jax.decoding.engine import Engine


@struct.dataclass
class Look:
    """What a drafter is about to do."""

    tokens: Int[Anywhere, "B N"]
    parents: Int[Anywhere, "B N"]
    valid: Bool[Anywhere, "B N"]
    chosen: ChosenRows | None


@dataclasses.dataclass(frozen=True)
class RoutedRow:
    """One routed visual token."""

    row: int
    """Of the bank: the prompt's visual tokens in order, newlines too."""
    score: float


@dataclasses.dataclass(frozen=True)
class Round:
    """One round of one answer. Tokens are ids."""

    start: int
    """Tokens of the answer that were committed before it."""
    accepted: tuple[int, ...]
    """Accepted drafts; their number is A."""
    rejected: tuple[int, ...]
    """The rest of the path that was accepted, along the likeliest children: refused at its first
    token. Of a chain it is the rest of the draft."""
    next_token: int | None
    """The verifier's own token behind the accepted ones; None where the answer ended among them."""
    likeliest: tuple[int, ...]
    """The path of first children from the root: of a chain, the draft itself."""
    nodes: int
    """Tokens drafted, all branches together."""
    routed: tuple[RoutedRow, ...] | None
    """In the order of the prompt; None for a drafter that does not route."""
    seconds: float
    """Of the round alone, without the look."""
    compiled: bool
    """Whether the seconds hold a compilation."""
    agrees: bool = True
    """False where the accepted tokens are no path of the draft that `look` saw: two programs of the
    same mathematics may round a tie differently. The accepted tokens are the true ones."""

    @property
    def ended(self) -> bool:
        """Whether the answer ended among the drafts, so that those behind were never judged."""
        return self.next_token is None

    @property
    def is_bonus(self) -> bool:
        """Whether the verifier's token replaces nothing: every drafted token was accepted."""
        return self.next_token is not None and self.agrees and not self.rejected


class Recorder:
    """Collects the rounds of one batch; `Engine.run` calls it once a round."""

    def __init__(self, rows: int) -> None:
        """`rows` of the batch are requests; the others only fill it."""
        self.rounds: list[list[Round]] = [[] for _ in range(rows)]

    def step(
        self, engine: "Engine", state: DecodeState, request: Sampling, limits: Limits,
        mode: SamplingMode,
    ) -> DecodeState:  # fmt: skip
        """One round of `engine.decode`, looked at. The given state is consumed."""
        seen = None
        if engine.drafter is not None:
            seen = jax.device_get(_run_look(engine, state, request, limits, mode))
        before = _counted(state)
        compiled, began = compiles(), time.perf_counter()
        state = engine.decode(state, request, limits, mode, rounds=1)
        jax.block_until_ready(state.tokens)
        seconds = time.perf_counter() - began
        after = _counted(state)
        for row, rounds in enumerate(self.rounds):
            if after["rounds"][row] > before["rounds"][row]:
                made = _round(seen, before, after, row)
                rounds.append(
                    dataclasses.replace(made, seconds=seconds, compiled=compiles() > compiled)
                )
        return state


def look(
    drafter: Drafter, drafter_params: Params, state: Any, context: RoundContext, *,
    mode: SamplingMode,
) -> Look:  # fmt: skip
    """The draft and the route of the coming round.

    Args:
        state: the drafter's.
    """
    tree, _ = drafter.propose(drafter_params, state, context, mode)
    chosen = chosen_rows(drafter, drafter_params, state, context)
    return Look(tokens=tree.tokens, parents=tree.parents, valid=tree.valid, chosen=chosen)


def within(rounds: Sequence[Round], tokens: int) -> list[Round]:
    """The rounds that made the first `tokens` tokens of an answer, the last one cut there: a stop
    string may end it among what a round committed (stopping.rounds_within)."""
    kept = []
    for made in rounds:
        left = tokens - made.start
        if left <= 0:
            break
        if left <= len(made.accepted):
            unjudged = made.accepted[left:] + made.rejected
            made = dataclasses.replace(
                made, accepted=made.accepted[:left], rejected=unjudged, next_token=None
            )
        kept.append(made)
    return kept


def _run_look(
    engine: "Engine", state: DecodeState, request: Sampling, limits: Limits, mode: SamplingMode
) -> Look:
    context = RoundContext.of(state, request, limits)
    run = program(look, engine.is_small(state.pending.shape[0]), ("drafter", "mode"))
    with engine.on_mesh():
        return run(
            drafter=engine.drafter, drafter_params=engine.drafter_params, state=state.drafter,
            context=context, mode=mode,
        )  # fmt: skip


def _counted(state: DecodeState) -> dict[str, np.ndarray]:
    """What the host needs of a state; copied, for the state is given away next."""
    names = ("tokens", "counts", "rounds", "accepted")
    found = jax.device_get({name: getattr(state, name) for name in names})
    return {name: np.array(value) for name, value in found.items()}


def _round(
    seen: Look | None, before: dict[str, np.ndarray], after: dict[str, np.ndarray], row: int
) -> Round:
    """One row's round, without its time."""
    start, end = int(before["counts"][row]), int(after["counts"][row])
    committed = [int(token) for token in after["tokens"][row, start:end]]
    count = int(after["accepted"][row, int(before["rounds"][row])])
    accepted = tuple(committed[:count])
    likeliest, rest, nodes, agrees = (), (), 0, not count
    if seen is not None:
        draft = _Draft(*(np.asarray(x)[row] for x in (seen.tokens, seen.parents, seen.valid)))
        node = draft.walk(accepted)
        agrees = node is not None
        likeliest, nodes = draft.first_path(0), int(draft.valid[1:].sum())
        rest = draft.first_path(node) if agrees else ()
    return Round(
        start=start, accepted=accepted, rejected=rest,
        next_token=committed[count] if len(committed) > count else None, likeliest=likeliest,
        nodes=nodes, routed=_routed(seen, row), seconds=0.0, compiled=False, agrees=agrees,
    )  # fmt: skip


def _routed(seen: Look | None, row: int) -> tuple[RoutedRow, ...] | None:
    if seen is None or seen.chosen is None:
        return None
    chosen = seen.chosen
    triples = zip(chosen.indices[row], chosen.scores[row], chosen.valid[row], strict=True)
    return tuple(RoutedRow(int(index), float(score)) for index, score, valid in triples if valid)


@dataclasses.dataclass(frozen=True)
class _Draft:
    """One row's draft tree: node 0 is the root, parents stand before their children."""

    tokens: np.ndarray
    parents: np.ndarray
    valid: np.ndarray

    def walk(self, tokens: Sequence[int]) -> int | None:
        """The node at the end of a path of tokens from the root; None if there is no such path."""
        node = 0
        for token in tokens:
            match = self.valid & (self.parents == node) & (self.tokens == token)
            match[0] = False
            if not match.any():
                return None
            node = int(np.argmax(match))  # as verification: the first of equal siblings
        return node

    def first_path(self, node: int) -> tuple[int, ...]:
        """Tokens of the first child, of its first child, and so on; a tree lists a parent's best
        token first (drafters/tree.py)."""
        path = []
        while True:
            children = self.valid & (self.parents == node)
            children[0] = False
            if not children.any():
                return tuple(path)
            node = int(np.argmax(children))
            path.append(int(self.tokens[node]))
