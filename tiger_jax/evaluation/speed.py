"""Timing several decoders on the same prompts, so that noise and drift hit all of them alike.

    repetition 1:  A(all prompts)  B(all prompts)  C(all prompts) ...
    repetition 2:  A(all prompts)  B(all prompts)  C(all prompts) ...

and of each prompt the median over the repetitions.
"""

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

from tiger_jax.evaluation.progress import Counter

SETTLE_SECONDS = 0.05
"""Pause between two decoders: the thread pool of the one before stops spinning meanwhile."""


@dataclasses.dataclass(frozen=True)
class Timing:
    """One answer to one prompt, batch 1."""

    tokens: tuple[int, ...]
    seconds: float
    """From prepared inputs to the last token, prefill and pictures included."""
    decode_seconds: float
    """After the first token or tokens, which come with the prefill, to the last."""
    decode_tokens: int
    """Tokens that came in `decode_seconds`."""
    rounds: int
    """Verifier passes in `decode_seconds`; in plain decoding one a token."""


Decoder = Callable[[int], Timing]
"""Answers the prompt with that number, greedily."""


@dataclasses.dataclass(frozen=True)
class Speed:
    """Medians over repetitions, summed over prompts."""

    tokens: int
    seconds: float
    decode_tokens: int
    decode_seconds: float
    rounds: int

    @property
    def decode_rate(self) -> float | None:
        """Tokens a second without prefill."""
        return self.decode_tokens / self.decode_seconds if self.decode_seconds > 0 else None

    @property
    def rate(self) -> float:
        """Tokens a second with prefill."""
        return self.tokens / self.seconds

    @property
    def round_seconds(self) -> float | None:
        """Seconds of one verifier pass and, in speculative decoding, of its draft."""
        return self.decode_seconds / self.rounds if self.rounds else None

    @property
    def tokens_a_round(self) -> float | None:
        """tau; 1 in plain decoding."""
        return self.decode_tokens / self.rounds if self.rounds else None


def interleave(
    decoders: Mapping[str, Decoder], prompts: int, repeats: int, what: str = "timing"
) -> dict[str, list[list[Timing]]]:
    """Warm every decoder up on every prompt, then time them in turn: name -> [repeat][prompt]."""
    counter = Counter((repeats + 1) * len(decoders), f"runs of {what}")
    timed: dict[str, list[list[Timing]]] = {name: [] for name in decoders}
    for repeat in range(repeats + 1):
        for name, decoder in decoders.items():
            time.sleep(SETTLE_SECONDS)
            run = [decoder(prompt) for prompt in range(prompts)]
            if repeat:
                timed[name].append(run)
            counter.add(1)
    return timed


def summarise(runs: Sequence[Sequence[Timing]]) -> Speed:
    """Pool the repetitions of one decoder, [repeat][prompt]."""
    first = runs[0]
    by_prompt = list(zip(*runs, strict=True))
    return Speed(
        tokens=sum(len(t.tokens) for t in first),
        seconds=sum(statistics.median(t.seconds for t in same) for same in by_prompt),
        decode_tokens=sum(t.decode_tokens for t in first),
        decode_seconds=sum(statistics.median(t.decode_seconds for t in same) for same in by_prompt),
        rounds=sum(t.rounds for t in first),
    )


def same_tokens(runs: Sequence[Sequence[Timing]], others: Sequence[Sequence[Timing]]) -> bool:
    """Whether two decoders gave the same tokens to every prompt in every repetition."""
    expected = [timing.tokens for timing in others[0]]
    return all([t.tokens for t in run] == expected for run in [*runs, *others])
