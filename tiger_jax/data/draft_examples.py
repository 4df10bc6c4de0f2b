"""Prompts that a verifier answers and a drafter learns from: questions that share a prefix.

Letters: B examples, N questions of an example, S prompt tokens, T tokens of a text.

    prefix      <s> USER: <image> x 136            up to the last visual token; paid for once
    question 0  \\n Describe the picture. ASSISTANT:
    question 1  \\n How many stars are there? ASSISTANT:

Prefix + question is token by token the prompt of that question alone.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32
from PIL import Image

from tiger_jax.data.batches import PromptInputs, longest_prompt, make_prompt
from tiger_jax.data.clips import Clip
from tiger_jax.data.examples import (
    DroppedExample,
    Example,
    Pictures,
    load_pictures,
    shown_in,
)
from tiger_jax.data.processor import Processor
from tiger_jax.data.prompts import build_prompt
from tiger_jax.data.scenes import Scene
from tiger_jax.data.videos import Video
from tiger_jax.errors import UserError
from tiger_jax.models.frames import arrays_of


class DraftExample(NamedTuple):
    """A prefix with its questions; `key` names them in the teacher's cache."""

    key: str
    prefix: PromptInputs
    questions: tuple[Int32[np.ndarray, " T"], ...]
    responses: tuple[Int32[np.ndarray, " T"], ...] = ()
    """Reference responses with their end tokens, where they are to be learnt."""

    def prompt(self, question: int) -> PromptInputs:
        """The whole prompt of one question."""
        return self.prefix.followed_by(self.questions[question])

    def text_tokens(self, responses: Sequence[int] | np.ndarray) -> int:
        """Tokens without visual ones of the longest prompt, with responses of these lengths."""
        shared = int((self.prefix.image_ids < 0).sum())
        lengths = zip(self.questions, responses, strict=True)
        return shared + max(len(question) + int(said) for question, said in lengths)


def make_example(
    processor: Processor, texts: Sequence[str],
    images: Sequence[Image.Image | np.ndarray] = (), videos: Sequence[Video] = (),
) -> DraftExample:  # fmt: skip
    """Rendered prompts about the same pictures, cut behind the last of these.

    Raises:
        UserError: as `make_prompt`.
        ValueError: the prompts differ before the cut.
    """
    first = make_prompt(processor, processor.config, texts[0], images, videos=videos)
    head, question = _cut(processor, texts[0], len(videos))
    prefix = first.cut(len(first.tokens) - len(question))
    questions = [np.array(question, np.int32)]
    for text in texts[1:]:
        other, question = _cut(processor, text, len(videos))
        if other != head:
            raise ValueError(f"prompt {text!r}: expected to begin as {texts[0]!r} does")
        questions.append(np.array(question, np.int32))
    return DraftExample(_key(prefix, questions), prefix, tuple(questions))


def _cut(processor: Processor, text: str, n_videos: int) -> tuple[list[int], list[int]]:
    """Ids up to the last picture or video (the first id, without one), and those behind."""
    ids = processor.encode_prompt(text, n_videos)
    marks = {processor.placeholder("image"), processor.placeholder("video")}
    end = max((place + 1 for place, token in enumerate(ids) if token in marks), default=1)
    return ids[:end], ids[end:]


def _key(
    prefix: PromptInputs, questions: Sequence[np.ndarray], responses: Sequence[np.ndarray] = ()
) -> str:
    """A name that only equal prompts with equal given responses share."""
    digest = hashlib.sha256()
    parts = [prefix.tokens, prefix.image_rows, *arrays_of(prefix.tiles), *questions]
    if responses:
        parts += [np.full(1, len(questions)), *responses]  # where the responses begin
    for part in parts:
        digest.update(np.int64(part.shape[0]).tobytes())
        digest.update(np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()[:24]


@dataclass(frozen=True)
class AskQuestions:
    """Scene, Clip or Example -> DraftExample; DroppedExample where a picture or prompt cannot be
    used.

    A class, so that worker processes can receive it.
    """

    processor: Processor
    reference: bool = False
    """Bring the answers that the record holds, to be learnt instead of the verifier's own."""
    max_length: int = 0
    """Most tokens of a prompt's text with its response; 0 = as many as fit."""

    def __call__(self, record: Scene | Clip | Example) -> DraftExample | DroppedExample:
        if not isinstance(record, Example):
            questions = [pair.question for pair in record.qa]
            answers = [pair.answer for pair in record.qa]
            shown = shown_in(record)
            example = self._example(questions, answers, shown)
            name, source = example.key, "clips" if shown.videos else "scenes"
        else:
            name, source = record.id, record.source
            try:
                pictures = load_pictures(record, self.processor)
                if self.reference and record.response is None:
                    raise UserError("response: expected a text to learn, got none")
                example = self._example([record.prompt], [record.response], pictures)
            except UserError as error:
                return DroppedExample(name, source, str(error))
        # A response that is not known yet has a token at least.
        lengths = [len(said) for said in example.responses] or [1] * len(example.questions)
        fault = self.too_long(example, lengths)
        return DroppedExample(name, source, fault) if fault else example

    def too_long(self, example: DraftExample, responses: Sequence[int] | np.ndarray) -> str | None:
        """Why an example with responses of these lengths cannot be used; None if it can."""
        text = example.text_tokens(responses)
        if self.max_length and text > self.max_length:
            return f"text: expected at most {self.max_length} tokens (max_length), needs {text}"
        limit = longest_prompt(self.processor.config)
        whole = text + int((example.prefix.image_ids >= 0).sum())
        if whole > limit:
            return f"example: expected at most {limit} tokens with its response, needs {whole}"
        return None

    def _example(self, questions: list[str], answers: list, pictures: Pictures) -> DraftExample:
        counts = len(pictures.images), len(pictures.videos)
        texts = [build_prompt(self.processor, text, *counts) for text in questions]
        example = make_example(self.processor, texts, *pictures)
        if not self.reference:
            return example
        encode = self.processor.encode_answer
        said = tuple(np.array(encode(text), np.int32) for text in answers)
        # What is cached are laws along these responses: others must not find them.
        key = _key(example.prefix, example.questions, said)
        return example._replace(key=key, responses=said)
