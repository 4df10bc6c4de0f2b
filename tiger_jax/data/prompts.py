"""Prompt text, and the rule for placeholders: one for each picture, and nothing is ever cut."""

from typing import Literal

from tiger_jax.data.processor import Processor
from tiger_jax.data.visual import IMAGE_TOKEN, VIDEO_TOKEN
from tiger_jax.errors import UserError


def build_prompt(processor: Processor, question: str, n_images: int = 0, n_videos: int = 0) -> str:
    """The prompt in the folder's chat template, or in the family's own where the folder has none.

    A question that holds "<image>" or "<video>" itself says where its images or videos go: no
    placeholder of that kind is added, and each one counts. Without videos "<video>" is text.

    Raises:
        UserError: half a character, which no tokenizer reads.
    """
    try:
        question.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(f"prompt: expected valid Unicode text ({error.reason})") from None
    return processor.prompt(question, n_images, n_videos)


def check_placeholders(
    n_placeholders: int, n_pictures: int, kind: Literal["image", "video"] = "image"
) -> None:
    """UserError unless every picture has one placeholder and every placeholder one picture."""
    if n_placeholders == n_pictures:
        return
    token = {"image": IMAGE_TOKEN, "video": VIDEO_TOKEN}[kind]
    hint = f' (a literal "{token}" in the text counts)' if n_placeholders > n_pictures else ""
    raise UserError(
        f"prompt: expected one {token} placeholder for each {kind}, "
        f"got {n_placeholders} placeholders and {n_pictures} {kind}s{hint}"
    )


def check_length(needed: int, pictured: int, limit: int, n_videos: int = 0) -> None:
    """UserError if the prompt does not fit: nothing is ever cut, least of all visual tokens.

    Args:
        pictured: tokens of images and videos among the `needed` ones.
    """
    if needed <= limit:
        return
    kinds = "images and videos" if n_videos else "images"
    raise UserError(
        f"prompt: needs {needed} tokens ({pictured} of them for {kinds}), the limit is "
        f"{limit}; nothing is cut: shorten the text, or give {_less(n_videos)}"
    )


def check_tiles(needed: int, limit: int, n_videos: int = 0) -> None:
    """UserError if the pictures are cut into more pieces than the vision tower takes at once."""
    if needed > limit:
        raise UserError(
            f"prompt: needs {needed} tiles of its images and videos, the limit is {limit}: "
            f"give {_less(n_videos)}"
        )


def _less(n_videos: int) -> str:
    if n_videos:
        return "fewer, smaller or shorter images and videos (a lower fps or max_frames)"
    return "fewer or smaller images"
