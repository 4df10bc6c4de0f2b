"""Acceptance statistics and what they predict for the speed.

A is the number of drafted tokens accepted in a round (the bonus or replacement token not counted),
tau = A + 1, c one drafter step over one verifier step, v the verification of g + 1 tokens over one
verifier step.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Acceptance:
    """Counts over all rounds of some requests."""

    accepted_lengths: tuple[int, ...]
    """A of every round, after the cut at a stop or at the length limit."""
    tokens: int
    """Tokens emitted, the first of each request (which comes from prefill) included."""

    @property
    def rounds(self) -> int:
        """Verifications counted."""
        return len(self.accepted_lengths)

    @property
    def mean(self) -> float | None:
        """A; None if there was no round."""
        return float(np.mean(self.accepted_lengths)) if self.accepted_lengths else None

    @property
    def tau(self) -> float | None:
        """A + 1."""
        return None if self.mean is None else self.mean + 1

    def share_at_least(self, length: int) -> float | None:
        """P(A >= length)."""
        if not self.accepted_lengths:
            return None
        return float(np.mean(np.asarray(self.accepted_lengths) >= length))


def pool(rounds: Iterable[Sequence[int]], tokens: int) -> Acceptance:
    """Pool the accepted lengths of several requests."""
    return Acceptance(tuple(int(a) for lengths in rounds for a in lengths), tokens)


def predicted_speedup(
    tau: float, draft_length: int, c: float, v: float, c_route: float = 0.0
) -> float:
    """S = tau / (g c + c_route + v): rounds cost less than the tokens they commit, or not."""
    return tau / (draft_length * c + c_route + v)


def best_draft_length(
    acceptance: Acceptance, c: float, v: Mapping[int, float], c_route: float = 0.0
) -> tuple[int, float]:
    """The draft length with the highest predicted S, and that S; (0, 1.0) if none passes plain.

    Args:
        acceptance: rounds drafted with at least max(v) tokens.
        v: cost of verifying g drafts, per g, in plain steps.

    A block of g tokens accepts min(A, g) where a longer one accepts A, so that one calibration run
    at the longest g tells the acceptance of all shorter ones.
    """
    lengths = np.asarray(acceptance.accepted_lengths)
    best = (0, 1.0)
    for draft_length, cost in sorted(v.items()):
        tau = float(np.minimum(lengths, draft_length).mean()) + 1 if len(lengths) else 1.0
        speedup = predicted_speedup(tau, draft_length, c, cost, c_route)
        if speedup > best[1]:
            best = (draft_length, speedup)
    return best
