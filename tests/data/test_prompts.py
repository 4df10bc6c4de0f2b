"""Templates word by word, and the four ways in which images and placeholders can disagree."""

import dataclasses

import numpy as np
import pytest

from tiger_jax.data.batches import make_prompt
from tiger_jax.data.prompts import build_prompt, vicuna_prompt
from tiger_jax.errors import UserError

PICTURE = np.zeros((112, 112, 3), np.uint8)


def test_vicuna_prompt():
    assert vicuna_prompt("Hi?", 1, system=None) == "USER: <image>\nHi? ASSISTANT:"
    assert vicuna_prompt("Hi?", 2, "human") == (
        "A chat between a curious human and an artificial intelligence assistant. The assistant "
        "gives helpful, detailed, and polite answers to the human's questions. "
        "USER: <image>\n<image>\nHi? ASSISTANT:"
    )
    assert "curious user" in vicuna_prompt("Hi?", 0, "user")
    assert "<image>" not in vicuna_prompt("Hi?")


def test_folder_template_gives_the_tiny_form(processor):
    assert build_prompt(processor, "Hi?", 0) == "USER: Hi? ASSISTANT:"
    assert build_prompt(processor, "Hi?", 2) == "USER: <image>\n<image>\nHi? ASSISTANT:"


def test_without_template_vicuna_is_used(processor):
    bare = dataclasses.replace(processor, chat_template=None)
    assert build_prompt(bare, "Hi?", 1) == vicuna_prompt("Hi?", 1)


def test_finished_turn_of_the_template(processor):
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    text = processor.tokenizer.apply_chat_template(turns, tokenize=False)
    assert text == "USER: a ASSISTANT: b</s>"


def test_literal_placeholder_says_where_the_image_goes(processor):
    text = build_prompt(processor, "Look: <image>\nHi?", 1)
    assert text == "USER: Look: <image>\nHi? ASSISTANT:"
    prompt = make_prompt(processor, processor.config, text, [PICTURE])
    assert (prompt.tokens == processor.config.image_token_id).sum() == 136


@pytest.mark.parametrize(
    ("text", "n_images", "numbers"),
    [
        ("USER: <image>\nHi ASSISTANT:", 2, "1 placeholders and 2 images"),
        ("USER: <image>\n<image>\nHi ASSISTANT:", 1, "2 placeholders and 1 images"),
        ("USER: what is <image>? ASSISTANT:", 0, "1 placeholders and 0 images"),
        ("USER: Hi ASSISTANT:", 1, "0 placeholders and 1 images"),
    ],
)
def test_count_mismatch(processor, text, n_images, numbers):
    with pytest.raises(UserError, match=numbers):
        make_prompt(processor, processor.config, text, [PICTURE] * n_images)


def test_nothing_is_truncated(processor):
    text = build_prompt(processor, "Hi?", 1)
    needed = len(make_prompt(processor, processor.config, text, [PICTURE]).tokens)
    make_prompt(processor, processor.config, text, [PICTURE], max_length=needed)
    with pytest.raises(UserError, match=rf"needs {needed} tokens \(136 of them for images\)"):
        make_prompt(processor, processor.config, text, [PICTURE], max_length=needed - 1)


def test_default_limit_is_the_models_positions(processor):
    text = build_prompt(processor, "Hi?", 16)
    with pytest.raises(UserError, match="limit is 2048"):
        make_prompt(processor, processor.config, text, [PICTURE] * 16)
