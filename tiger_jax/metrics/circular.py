"""Circular evaluation of MMBench: a question counts only if it is right in every rotation."""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from tiger_jax.errors import UserError


class CircularScores(NamedTuple):
    """Both ways to count; always say which one a number is (vanilla is 10 to 20 points higher)."""

    circular: float | None
    """Share of questions with all their passes right; None where a question lacks passes."""
    vanilla: float
    """Share of passes that are right, each pass a question of its own."""
    n_questions: int
    n_passes: int
    incomplete: int
    """Questions that have not as many passes as options."""


def circular_scores(
    groups: Sequence[Hashable], right: Sequence[bool], n_options: Sequence[int]
) -> CircularScores:
    """Scores of passes; a question of N options has N passes, its options rotated by 0 .. N - 1.

    Args:
        groups: the question of each pass (in MMBench index % 1,000,000).
        right: whether the pass was answered rightly.
        n_options: N of the pass's question.

    Raises:
        UserError: no passes, or lengths that differ.
    """
    if not groups or not len(groups) == len(right) == len(n_options):
        raise UserError(
            "circular: expected as many groups, answers and options, at least one, "
            f"got {len(groups)}, {len(right)}, {len(n_options)}"
        )
    passes: dict[Hashable, list[bool]] = {}
    expected: dict[Hashable, int] = {}
    for group, correct, options in zip(groups, right, n_options, strict=True):
        passes.setdefault(group, []).append(correct)
        expected[group] = options
    incomplete = sum(len(passes[group]) != expected[group] for group in passes)
    return CircularScores(
        circular=None if incomplete else sum(map(all, passes.values())) / len(passes),
        vanilla=sum(right) / len(right),
        n_questions=len(passes),
        n_passes=len(right),
        incomplete=incomplete,
    )
