"""Hugging Face transformers on the same folders, in float32 on the CPU: the peer in speed."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tiger_jax.errors import UserError
from tiger_jax.evaluation.speed import Timing
from tiger_jax.models.config_reader import read_config

try:
    import torch
    import transformers
    from transformers.generation.streamers import BaseStreamer

    from tiger_jax.export.torch_families import TEXT_INPUTS, torch_inputs
except ImportError as error:
    raise UserError(
        f"peer_transformers: expected torch and transformers (pip install 'tiger_jax[test]'), "
        f"got: {error}"
    ) from error

VERSIONS = {"torch": torch.__version__, "transformers": transformers.__version__}


class Peer:
    """A pair loaded by transformers, with its own processor, sdpa attention and all cores."""

    def __init__(
        self, verifier: str | Path, drafter: str | Path, *, draft_length: int, confidence: float,
        max_new_tokens: int, threads: int = 0,
    ) -> None:  # fmt: skip
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        torch.set_num_threads(threads or os.cpu_count() or 1)
        self.max_new_tokens = max_new_tokens
        self.folder, self.config = verifier, read_config(verifier)
        self.verifier = _load(verifier)
        self.drafter = _load(drafter)
        settings = self.drafter.generation_config
        settings.num_assistant_tokens = draft_length
        settings.num_assistant_tokens_schedule = "constant"
        settings.assistant_confidence_threshold = confidence
        self.blind_drafts = False
        """Whether a drafter that was given no help has read a prompt without its picture."""

    def inputs(self, text: str, image: np.ndarray) -> dict[str, Any]:
        """Tensors of a rendered prompt with one RGB picture."""
        return torch_inputs(self.folder, self.config, text, [Image.fromarray(image)])

    def plain(self, inputs: dict[str, Any]) -> Timing:
        """`generate`, greedily."""
        return self._generate(inputs)

    def assisted(self, inputs: dict[str, Any], show_picture: bool = False) -> Timing:
        """`generate` with `assistant_model`, greedily.

        Args:
            show_picture: hand the picture to the drafter. transformers 5.24 encodes it for the
                verifier, takes it out of the arguments, and the drafter then reads the bare
                placeholders.
        """
        with self._watch_drafter(inputs, show_picture):
            return self._generate(inputs, assistant_model=self.drafter)

    def _generate(self, inputs: dict[str, Any], **more: Any) -> Timing:
        clock = _Clock()
        began = time.perf_counter()
        self.verifier.generate(
            **inputs, max_new_tokens=self.max_new_tokens, do_sample=False, streamer=clock, **more
        )
        seconds = time.perf_counter() - began
        return clock.timing(seconds)

    @contextlib.contextmanager
    def _watch_drafter(self, inputs: dict[str, Any], show_picture: bool) -> Iterator[None]:
        image_token = self.drafter.config.image_token_id

        def before(module: Any, args: tuple, given: dict[str, Any]) -> tuple[tuple, dict] | None:
            # Only the drafter's first pass holds the prompt.
            if given["input_ids"].shape[1] < inputs["input_ids"].shape[1]:
                return None
            seen = given.get("pixel_values") is not None or given.get("mm_encoder_outputs")
            if seen or not (given["input_ids"] == image_token).any():
                return None
            if not show_picture:
                self.blind_drafts = True
                return None
            picture = {name: inputs[name] for name in inputs if name not in TEXT_INPUTS}
            return args, given | picture

        handle = self.drafter.register_forward_pre_hook(before, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()


class _Clock(BaseStreamer):
    """Notes when tokens come: one at a time from `generate`, a round at a time when assisted."""

    def __init__(self) -> None:
        self._prompt_seen = False
        self._times: list[float] = []
        self._chunks: list[list[int]] = []

    def put(self, value: Any) -> None:
        """The prompt, then every chunk of new tokens."""
        if not self._prompt_seen:
            self._prompt_seen = True
            return
        self._times.append(time.perf_counter())
        self._chunks.append(value.reshape(-1).tolist())

    def end(self) -> None:
        """Nothing to do."""

    def timing(self, seconds: float) -> Timing:
        """The first chunk comes with the prefill; decoding is what follows."""
        tokens = tuple(token for chunk in self._chunks for token in chunk)
        return Timing(
            tokens=tokens,
            seconds=seconds,
            decode_seconds=self._times[-1] - self._times[0],
            decode_tokens=len(tokens) - len(self._chunks[0]),
            rounds=len(self._chunks) - 1,
        )


def read_all(array: np.ndarray) -> None:
    """Read an array once with all of torch's threads."""
    torch.from_numpy(array).sum()


def _load(folder: str | Path) -> Any:
    return transformers.AutoModelForImageTextToText.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="sdpa"
    ).eval()
