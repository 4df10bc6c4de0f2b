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

from tiger_jax.data.batches import PromptInputs, make_prompt
from tiger_jax.data.examples import DroppedExample, Example, answer_ids, load_pictures
from tiger_jax.data.processor import Processor
from tiger_jax.data.prompts import build_prompt
from tiger_jax.data.scenes import Scene
from tiger_jax.errors import UserError


class DraftExample(NamedTuple):
    """A prefix with its questions; `key` names them in the teacher's cache."""

    key: str
    prefix: PromptInputs
    questions: tuple[Int32[np.ndarray, " T"], ...]
    responses: tuple[Int32[np.ndarray, " T"], ...] = ()
    """Reference responses with their end tokens, where they are to be learnt."""

    def prompt(self, question: int) -> PromptInputs:
        """The whole prompt of one question."""
        tokens = self.questions[question]
        text = np.full(len(tokens), -1, np.int32)
        prefix = self.prefix
        return PromptInputs(
            tokens=np.concatenate([prefix.tokens, tokens]),
            image_rows=np.concatenate([prefix.image_rows, text]),
            tiles=prefix.tiles,
            places=np.concatenate([prefix.places, np.full((len(tokens), 2), -1, np.float32)]),
            image_ids=np.concatenate([prefix.image_ids, text]),
        )

    def text_tokens(self, responses: Sequence[int] | np.ndarray) -> int:
        """Tokens without visual ones of the longest prompt, with responses of these lengths."""
        shared = int((self.prefix.image_ids < 0).sum())
        lengths = zip(self.questions, responses, strict=True)
        return shared + max(len(question) + int(said) for question, said in lengths)


def make_example(
    processor: Processor, texts: Sequence[str], images: Sequence[Image.Image | np.ndarray]
) -> DraftExample:
    """Rendered prompts about the same pictures, cut behind the last of these.

    Raises:
        UserError: as `make_prompt`.
        ValueError: the prompts differ before the cut.
    """
    first = make_prompt(processor, processor.config, texts[0], images)
    visual = np.flatnonzero(first.image_ids >= 0)
    cut = int(visual[-1]) + 1 if len(visual) else 1
    prefix = PromptInputs(
        first.tokens[:cut], first.image_rows[:cut], first.tiles, first.places[:cut],
        first.image_ids[:cut],
    )  # fmt: skip
    questions = [first.tokens[cut:]]
    head, _ = _cut(processor, texts[0])
    for text in texts[1:]:
        other, question = _cut(processor, text)
        if other != head:
            raise ValueError(f"prompt {text!r}: expected to begin as {texts[0]!r} does")
        questions.append(np.array(question, np.int32))
    return DraftExample(_key(prefix, questions), prefix, tuple(questions))


def _cut(processor: Processor, text: str) -> tuple[list[int], list[int]]:
    """Ids up to the last picture (the first id, without one), and those behind."""
    ids = processor.encode(text)
    image = processor.config.image_token_id
    end = max((place + 1 for place, token in enumerate(ids) if token == image), default=1)
    return ids[:end], ids[end:]


def _key(
    prefix: PromptInputs, questions: Sequence[np.ndarray], responses: Sequence[np.ndarray] = ()
) -> str:
    """A name that only equal prompts with equal given responses share."""
    digest = hashlib.sha256()
    parts = [prefix.tokens, prefix.image_rows, prefix.tiles, *questions]
    if responses:
        parts += [np.full(1, len(questions)), *responses]  # where the responses begin
    for part in parts:
        digest.update(np.int64(part.shape[0]).tobytes())
        digest.update(np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()[:24]


@dataclass(frozen=True)
class AskQuestions:
    """Scene or Example -> DraftExample; DroppedExample where a picture or prompt cannot be used.

    A class, so that worker processes can receive it.
    """

    processor: Processor
    reference: bool = False
    """Bring the answers that the record holds, to be learnt instead of the verifier's own."""
    max_length: int = 0
    """Most tokens of a prompt's text with its response; 0 = as many as the model has positions."""

    def __call__(self, record: Scene | Example) -> DraftExample | DroppedExample:
        if isinstance(record, Scene):
            questions = [pair.question for pair in record.qa]
            answers, images = [pair.answer for pair in record.qa], [record.image]
            example = self._example(questions, answers, images)
            name, source = example.key, "scenes"
        else:
            name, source = record.id, record.source
            try:
                images = load_pictures(record)
                if self.reference and record.response is None:
                    raise UserError("response: expected a text to learn, got none")
                example = self._example([record.prompt], [record.response], images)
            except UserError as error:
                return DroppedExample(name, source, str(error))
        # A response that is not known yet has a token at least.
        lengths = [len(said) for said in example.responses] or [1] * len(example.questions)
        fault = self.too_long(example, lengths)
        return DroppedExample(name, source, fault) if fault else example

    def too_long(self, example: DraftExample, responses: Sequence[int] | np.ndarray) -> str | None:
        """Why an example with responses of these lengths cannot be used; None if it can."""
        needed = example.text_tokens(responses)
        if not self.max_length or needed <= self.max_length:
            return None
        return f"text: expected at most {self.max_length} tokens (max_length), needs {needed}"

    def _example(self, questions: list[str], answers: list, images: list) -> DraftExample:
        texts = [build_prompt(self.processor, text, len(images)) for text in questions]
        example = make_example(self.processor, texts, images)
        if not self.reference:
            return example
        said = tuple(np.array(answer_ids(self.processor, text), np.int32) for text in answers)
        # What is cached are laws along these responses: others must not find them.
        key = _key(example.prefix, example.questions, said)
        return example._replace(key=key, responses=said)
