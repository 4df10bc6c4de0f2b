"""Prompt text: the Vicuna template, a checkpoint's own, and the rule for image placeholders."""

from typing import Literal

from tiger_jax.data.processor import Processor
from tiger_jax.errors import UserError

IMAGE_TOKEN = "<image>"
SYSTEM_HUMAN = (  # as the Hugging Face model card and conversion script write it
    "A chat between a curious human and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the human's questions."
)
SYSTEM_USER = (  # as the original vicuna_v1 conversation writes it; other words, other logits
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions."
)
_SYSTEM = {"human": SYSTEM_HUMAN, "user": SYSTEM_USER}


def vicuna_prompt(
    question: str, n_images: int = 0, system: Literal["human", "user"] | None = "human"
) -> str:
    """ "SYSTEM USER: <image>\\nQUESTION ASSISTANT:" with one placeholder line for each image."""
    start = f"{_SYSTEM[system]} " if system else ""
    return f"{start}USER: {_place_images(question, n_images)} ASSISTANT:"


def build_prompt(processor: Processor, question: str, n_images: int = 0) -> str:
    """The prompt in the folder's chat template, or in Vicuna's where the folder has none.

    A question that holds "<image>" itself says where its images go: no placeholder is added, and
    each one counts.
    """
    if processor.chat_template is None:
        return vicuna_prompt(question, n_images)
    placed = processor.image_token in question
    images = [] if placed else [{"type": "image"}] * n_images
    message = {"role": "user", "content": [*images, {"type": "text", "text": question}]}
    return processor.tokenizer.apply_chat_template(
        [message],
        chat_template=processor.chat_template,
        add_generation_prompt=True,
        tokenize=False,
    )


def check_placeholders(n_placeholders: int, n_images: int) -> None:
    """UserError unless every image has one placeholder and every placeholder one image."""
    if n_placeholders == n_images:
        return
    hint = ' (a literal "<image>" in the text counts)' if n_placeholders > n_images else ""
    raise UserError(
        f"prompt: expected one {IMAGE_TOKEN} placeholder for each image, "
        f"got {n_placeholders} placeholders and {n_images} images{hint}"
    )


def check_length(needed: int, image_tokens: int, limit: int) -> None:
    """UserError if the prompt does not fit: nothing is ever cut, least of all image tokens."""
    if needed > limit:
        raise UserError(
            f"prompt: needs {needed} tokens ({image_tokens} of them for images), the limit is "
            f"{limit}; nothing is cut: shorten the text, or give fewer or smaller images"
        )


def _place_images(question: str, n_images: int) -> str:
    return question if IMAGE_TOKEN in question else f"{IMAGE_TOKEN}\n" * n_images + question
