"""Expected acceptance over a verifier's own responses, in closed form: no sampling noise.

B: responses, N: rows for their tokens, g: draft length, n: tokens of one response.

    y_1 (from the prefill)   y_2 ... y_n (a stop token, or the last that the limit admits)
    round at root y_j        draft u stands against y_{j+u}, u = 1..g
    A = a < n - j            y_{j+a+1} replaces the rejected draft (or is the bonus, a = g) and is
                             the next root, unless it is y_n: then the response is over
    A >= n - j               y_n is an accepted draft: the loop cuts there, A counts as n - j

Given that y comes out, each draft is accepted independently with min(1, q(y) / p(y)) (p verifier,
q drafter: y is drawn and accepted with min(p, q), and comes out with p); at T = 0 iff argmax q = y.
So the starts of rounds are a Markov chain over j, which one sweep solves. Every round drafts g
tokens: a drafter that stops early by its confidence is another process.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int


class ExactRounds(NamedTuple):
    """Expectations over the rounds of each response, given its text."""

    expected_rounds: Float[np.ndarray, "B"]
    expected_accepted: Float[np.ndarray, "B"]
    """Sum of A over the rounds."""
    p_at_least: Float[np.ndarray, "B g"]
    """[b, m - 1]: number of rounds with A >= m, m = 1..g; over expected_rounds, P(A >= m)."""
    start_probability: Float[np.ndarray, "B N"]
    """[b, j - 1]: a round starts at root y_j; 0 at y_n and behind it."""


def response_statistics(
    accept: Float[np.ndarray, "B N g"] | Bool[np.ndarray, "B N g"], lengths: Int[np.ndarray, "B"]
) -> ExactRounds:
    """Rounds and accepted drafts that each response is expected to take.

    Args:
        accept: [b, j - 1, u - 1] is the probability that draft u of a round at root y_j is
            accepted once the drafts before it are. What stands against no token (j + u > n) is
            never read and may be anything.
        lengths: n, the tokens of each response with y_1 and its stop token; 0 or 1 has no round.

    Raises:
        ValueError: more tokens than rows, or a number that is read and is no probability.
    """
    survival = _survival(accept, lengths)
    starts = _start_probability(survival, lengths)
    at_least = np.einsum("bj,bjm->bm", starts, survival[:, :, 1:])
    return ExactRounds(starts.sum(axis=1), at_least.sum(axis=1), at_least, starts)


def stack_responses(
    accepts: Sequence[np.ndarray],
) -> tuple[Float[np.ndarray, "B N g"], Int[np.ndarray, "B"]]:
    """Arguments of `response_statistics` from one array [n, g] a response, zeros behind its end.

    Raises:
        ValueError: no response, or differing g.
    """
    widths = {accept.shape[1] for accept in accepts}
    if len(widths) != 1:
        raise ValueError(f"accepts: expected arrays of one draft length, got {sorted(widths)}")
    lengths = np.array([len(accept) for accept in accepts])
    stacked = np.zeros((len(accepts), int(lengths.max()), widths.pop()))
    for row, accept in zip(stacked, accepts, strict=True):
        row[: len(accept)] = accept
    return stacked, lengths


def _survival(accept: np.ndarray, lengths: np.ndarray) -> Float[np.ndarray, "B N g1"]:
    """[b, j - 1, m]: P(A >= m) of a round at y_j after the cut, m = 0..g; 0 where none starts."""
    rows, width = accept.shape[1:]
    if len(lengths) and not 0 <= lengths.min() <= lengths.max() <= rows:
        raise ValueError(f"lengths: expected 0..{rows}, got {lengths.min()}..{lengths.max()}")
    left = lengths[:, None] - np.arange(1, rows + 1)  # n - j
    counted = np.arange(1, width + 1) <= left[:, :, None]
    chances = np.where(counted, accept, 0).astype(np.float64)
    wrong = chances[~((chances >= 0) & (chances <= 1))]
    if wrong.size:
        raise ValueError(f"accept: expected probabilities, got {wrong[0]}")
    starts = (left >= 1).astype(np.float64)[:, :, None]
    return np.concatenate([starts, np.cumprod(chances, axis=2)], axis=2)


def _start_probability(survival: np.ndarray, lengths: np.ndarray) -> Float[np.ndarray, "B N"]:
    """pi_1 = 1, pi_{j+a+1} += pi_j P(A = a); nothing starts at y_n, whichever way it came."""
    batch, rows, width = survival.shape
    exactly = survival - np.concatenate([survival[:, :, 1:], np.zeros((batch, rows, 1))], axis=2)
    # Room behind the last row, so that a block may reach over the end; cut off below.
    starts = np.zeros((batch, rows + width))
    starts[:, 0] = 1
    for row in range(rows):
        starts[:, row] *= row + 1 < lengths
        starts[:, row + 1 : row + 1 + width] += starts[:, row : row + 1] * exactly[:, row]
    return starts[:, :rows]
