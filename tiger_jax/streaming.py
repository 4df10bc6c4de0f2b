"""An answer on the screen while it grows."""

import time

from tiger_jax.decoding.stopping import cut_text


class Stream:
    """Prints an answer while it grows."""

    def __init__(self, began: float, stops: tuple[str, ...] = (), *, quiet: bool = False) -> None:
        self._began = began
        self._stops = stops
        self._quiet = quiet
        self._printed = ""
        self.first_token_seconds: float | None = None

    def update(self, text: str) -> None:
        """Print what is new and sure to stay: no half character, no trailing space, and nothing
        that could be the start of a stop string."""
        if self.first_token_seconds is None:
            self.first_token_seconds = time.perf_counter() - self._began
        text = cut_text(text, self._stops)
        held = max((_overlap(text, stop) for stop in self._stops), default=0)
        text = text[: len(text) - held].strip()
        if self._quiet or text.endswith("\ufffd") or not text.startswith(self._printed):
            return
        print(text[len(self._printed) :], end="", flush=True)
        self._printed = text

    def end(self, text: str) -> None:
        """Print the rest."""
        rest = text[len(self._printed) :] if text.startswith(self._printed) else f"\n{text}"
        print(rest, flush=True)


def _overlap(text: str, stop: str) -> int:
    """How much of the end of `text` is the start of `stop`."""
    sizes = range(min(len(text), len(stop) - 1), 0, -1)
    return next((size for size in sizes if text.endswith(stop[:size])), 0)
