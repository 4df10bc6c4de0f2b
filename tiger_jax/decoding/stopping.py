"""Stop strings, found on the host: only text knows them, and a block may hold one in its middle."""

from collections.abc import Callable, Sequence

Detokenize = Callable[[Sequence[int]], str]


def find_stop(
    tokens: Sequence[int], stops: Sequence[str], detokenize: Detokenize, known_clear: int = 0
) -> int | None:
    """Number of tokens up to and including the one that completes the first stop string.

    Args:
        known_clear: that many tokens were searched before, without a hit.

    Plain decoding would have looked after every token, so every prefix is looked at here.
    """
    if not stops or not _contains(detokenize(tokens), stops):
        return None
    for count in range(known_clear + 1, len(tokens) + 1):
        if _contains(detokenize(tokens[:count]), stops):
            return count
    return None


def cut_text(text: str, stops: Sequence[str]) -> str:
    """Text before the first stop string."""
    ends = [text.index(stop) for stop in stops if stop in text]
    return text[: min(ends)] if ends else text


def rounds_within(accepted: Sequence[int], tokens: int) -> list[int]:
    """Accepted lengths of the rounds that made the first `tokens` tokens of an output.

    The first token comes from prefill; a round commits its A drafts, then one of the verifier's.

        accepted 3 1   tokens 1 + 2  ->  2        cut among the drafts of the first round
    """
    kept, left = [], tokens - 1
    for length in accepted:
        if left <= 0:
            break
        kept.append(min(length, left))
        left -= length + 1
    return kept


def _contains(text: str, stops: Sequence[str]) -> bool:
    return any(stop in text for stop in stops)
