"""Average normalised Levenshtein similarity of DocVQA, through anls_star."""

from collections.abc import Sequence

from tiger_jax.errors import UserError


def anls_score(prediction: str, golds: Sequence[str]) -> float:
    """max over golds of s = 1 - lev / max(len), 0 where s < 0.5; a data set's score is the mean.

    Strings are stripped, lower-cased and their runs of spaces collapsed. At exactly 0.5 the score
    is 0.5, as in lmms-eval and VLMEvalKit; the challenge's own wording (NL < 0.5) would give 0.

    Raises:
        UserError: no golds (the test half hides them), or anls_star is not installed.
    """
    if not golds:
        raise UserError("ANLS: expected golds, got none")
    try:
        import anls_star
    except ImportError as error:
        raise UserError(
            'ANLS: expected the package anls-star, found none; pip install "tiger_jax[score]"'
        ) from error
    # A tuple is "one of these"; a list would be "all of these".
    return float(anls_star.anls_score(tuple(golds), prediction))
