"""Training examples of a JSON Lines file: pictures, prompt, and perhaps a response.

    {"images": ["cats/1.jpg"], "prompt": "How many cats are there?", "response": "There are 2."}

`id`, `response` and `source` may be absent. Paths are relative to the file. A prompt without
"<image>" gets its pictures in front; one with it says where each of them goes.
"""

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int32
from PIL import Image

from tiger_jax.data.batches import PromptInputs, make_prompt
from tiger_jax.data.images import load_image
from tiger_jax.data.json_lines import (
    RecordError,
    check_fields,
    identifier,
    read_json_lines,
    text,
    texts,
)
from tiger_jax.data.processor import Processor
from tiger_jax.data.prompts import IMAGE_TOKEN, build_prompt
from tiger_jax.errors import UserError


@dataclass(frozen=True)
class Example:
    """One prompt with the paths of its pictures; `tag` is what the prompt filter made of it."""

    id: str
    prompt: str
    images: tuple[str, ...]
    source: str
    response: str | None = None
    tag: str | None = None


@dataclass(frozen=True)
class PreparedExample:
    """An example as arrays; `response` ends with the end token, None where there is none."""

    example: Example
    prompt: PromptInputs
    response: Int32[np.ndarray, " T"] | None


@dataclass(frozen=True)
class DroppedExample:
    """An example that cannot be used, in one line: a broken picture, a prompt that is too long."""

    id: str
    source: str
    message: str


def read_examples(path: str | os.PathLike) -> list[Example | RecordError]:
    """Every line of a JSONL file that is not blank, in order; no picture is opened.

    A missing id becomes "line-N", a missing source the file's name without its ending.

    Raises:
        UserError: the file cannot be read.
    """
    return list(read_json_lines(path, "examples", partial(_example, path=Path(path))))


def load_pictures(example: Example) -> list[Image.Image]:
    """The pictures as upright RGB. Raises UserError for the first that cannot be used."""
    return [load_image(path) for path in example.images]


def answer_ids(processor: Processor, answer: str) -> list[int]:
    """Ids of an answer after "ASSISTANT:", with the end token."""
    return processor.encode_piece(f" {answer}{processor.tokenizer.eos_token}")


@dataclass(frozen=True)
class PrepareExample:
    """Example -> PreparedExample, or DroppedExample where it cannot be used.

    A class, not a closure, so that worker processes can receive it.
    """

    processor: Processor
    max_length: int | None = None
    """Longest prompt in tokens; the model's positions by default."""

    def __call__(self, example: Example) -> PreparedExample | DroppedExample:
        processor = self.processor
        try:
            pictures = load_pictures(example)
            rendered = build_prompt(processor, example.prompt, len(pictures))
            prompt = make_prompt(
                processor, processor.config, rendered, pictures, self.max_length
            )  # fmt: skip
        except UserError as error:
            return DroppedExample(example.id, example.source, str(error))
        response = example.response
        if response is not None:
            response = np.array(answer_ids(processor, response), np.int32)
        return PreparedExample(example, prompt, response)


def _example(fields: dict, default_id: str, path: Path) -> Example:
    values = check_fields(fields, _CHECKS, required=("images", "prompt"))
    placed, given = values["prompt"].count(IMAGE_TOKEN), len(values["images"])
    if placed not in (0, given):
        raise ValueError(
            f"prompt: expected no {IMAGE_TOKEN}, or one for each image ({given}), got {placed}"
        )
    values["images"] = tuple(str(path.parent / image) for image in values["images"])
    return Example(**{"id": default_id, "source": path.stem} | values)


def _unicode_text(name: str, value: Any) -> str:
    """A text that can be encoded: JSON may hold half of a surrogate pair, which no tokenizer can.

    An empty response is allowed: the end token alone.
    """
    if not (name == "response" and value == ""):
        text(name, value)
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"{name}: expected valid Unicode text ({error.reason})") from None
    return value


_CHECKS = {
    "id": identifier,
    "images": texts,
    "prompt": _unicode_text,
    "response": _unicode_text,
    "source": text,
}
