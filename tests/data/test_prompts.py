"""Templates word by word, and the four ways in which pictures and placeholders can disagree."""

import dataclasses
import re

import numpy as np
import pytest

from tests.qwen3_folder import TEMPLATE, write_qwen3_folder
from tiger_jax.data.batches import make_prompt
from tiger_jax.data.llava_next_processor import vicuna_prompt
from tiger_jax.data.processor import Processor
from tiger_jax.data.prompts import build_prompt, check_length
from tiger_jax.data.videos import Video
from tiger_jax.errors import UserError

PICTURE = np.zeros((112, 112, 3), np.uint8)
FILM = Video(np.zeros((4, 64, 64, 3), np.uint8), (0.0, 0.5, 1.0, 1.5))
SHOWN = "<|vision_start|><|image_pad|><|vision_end|>"
PLAYED = "<|vision_start|><|video_pad|><|vision_end|>"


@pytest.fixture(scope="module", params=["template", "none"])
def qwen(tmp_path_factory, request) -> Processor:
    """With the published template, and with the family's own for a folder that has none."""
    template = TEMPLATE if request.param == "template" else None
    return Processor.from_folder(
        write_qwen3_folder(tmp_path_factory.mktemp("qwen") / "tiny", template=template)
    )


def expand(processor, text, n_images=0, n_videos=0, **settings):
    images, videos = [PICTURE] * n_images, [FILM] * n_videos
    return make_prompt(processor, processor.config, text, images, videos=videos, **settings)


def test_half_a_character_is_one_line(qwen):
    with pytest.raises(UserError, match="prompt: expected valid Unicode text"):
        build_prompt(qwen, "What is \ud800?")


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


def test_template_that_fails(processor):
    broken = dataclasses.replace(processor, chat_template="{{ messages[0].content + 'text' }}")
    with pytest.raises(UserError, match="chat template: cannot be rendered"):
        build_prompt(broken, "Hi?", 1)


def test_literal_placeholder_says_where_the_image_goes(processor):
    text = build_prompt(processor, "Look: <image>\nHi?", 1)
    assert text == "USER: Look: <image>\nHi? ASSISTANT:"
    prompt = make_prompt(processor, processor.config, text, [PICTURE])
    assert (prompt.tokens == processor.config.image_token_id).sum() == 136


@pytest.mark.parametrize(
    ("question", "n_images", "n_videos", "turn", "kinds"),
    [
        ("Hi?", 1, 2, "<image>\n<video>\n<video>\nHi?", "ivv"),
        ("Hi?", 0, 1, "<video>\nHi?", "v"),
        ("A <video> then\n<image>?", 1, 1, "A <video> then\n<image>?", "vi"),
        ("First <image>.", 1, 1, "<video>\nFirst <image>.", "vi"),
        ("Last <video>.", 1, 1, "<image>\nLast <video>.", "iv"),
        ("A <video> tag: <image>", 1, 0, "A <video> tag: <image>", "i"),
        ("What is <video>?", 0, 0, "What is <video>?", ""),
    ],
)
@pytest.mark.parametrize("template", [True, False])
def test_llava_prompt(processor, template, question, n_images, n_videos, turn, kinds):
    """Pictures have 136 tokens, films 4 frames of 64; without a video "<video>" is text."""
    if not template:
        processor = dataclasses.replace(processor, chat_template=None)
    text = build_prompt(processor, question, n_images, n_videos)
    assert text.endswith(f"USER: {turn} ASSISTANT:")
    prompt = expand(processor, text, n_images, n_videos)
    wanted = {"i": (128 + 8,), "v": (64,) * 4}
    assert prompt.tokens_per_frame == sum((wanted[kind] for kind in kinds), ())
    read = processor.decode(prompt.tokens)
    assert read.replace("\n", "") == text.replace("<image>", "").replace(
        "<video>", "" if n_videos else "<video>"
    ).replace("\n", "")  # fmt: skip


def test_placeholders_of_llava_without_their_videos(processor):
    with pytest.raises(UserError, match="0 placeholders and 1 videos"):
        expand(processor, "USER: Hi ASSISTANT:", n_videos=1)
    with pytest.raises(UserError, match="2 placeholders and 1 videos"):
        expand(processor, build_prompt(processor, "<video> is <video>?", 0, 1), n_videos=1)
    with pytest.raises(UserError, match="1 placeholders and 0 images"):
        expand(processor, build_prompt(processor, "<image> is <video>?", 0, 1), n_videos=1)


@pytest.mark.parametrize(
    ("question", "n_images", "n_videos", "turn"),
    [
        ("Hi?", 0, 0, "Hi?"),
        ("Hi?", 2, 1, f"{SHOWN}{SHOWN}{PLAYED}Hi?"),
        ("A <video> then\n<image>?", 1, 1, f"A {PLAYED} then\n{SHOWN}?"),
        ("First <image>.", 1, 1, f"{PLAYED}First {SHOWN}."),
        (f"Raw {SHOWN}?", 1, 0, f"Raw {SHOWN}?"),
        ("<image><video><image>", 2, 1, f"{SHOWN}{PLAYED}{SHOWN}"),
        ("What is <video>?", 0, 0, "What is <video>?"),
        ("<video>", 0, 0, "<video>"),
        ("A <video> tag: <image>", 1, 0, f"A <video> tag: {SHOWN}"),
    ],
)
def test_qwen_prompt(qwen, question, n_images, n_videos, turn):
    text = build_prompt(qwen, question, n_images, n_videos)
    assert text == f"<|im_start|>user\n{turn}<|im_end|>\n<|im_start|>assistant\n"
    prompt = expand(qwen, text, n_images, n_videos)
    # 112 x 112 grows to 256 x 256: 64 tokens; the film has two frames of 2 x 2
    assert (prompt.tokens == qwen.placeholder("image")).sum() == 64 * n_images
    assert (prompt.tokens == qwen.placeholder("video")).sum() == 8 * n_videos
    assert prompt.tiles.counts.sum() == 256 * n_images + 32 * n_videos
    assert (prompt.image_ids.max() + 1) == n_images + 2 * n_videos
    assert prompt.positions.shape == (len(prompt.tokens), 3)


def test_pictures_of_a_mixed_prompt_stand_in_the_order_of_their_placeholders(qwen):
    prompt = expand(qwen, build_prompt(qwen, "<video>a<image>b<video>", 1, 2), 1, 2)
    counts = [16, 16, 256, 16, 16]  # patches
    assert prompt.tiles.counts.tolist() == [32, 256, 32]
    seen = prompt.image_ids[prompt.image_ids >= 0]
    assert seen.tolist() == [k for k in range(5) for _ in range(counts[k] // 4)]
    rows = prompt.image_rows[prompt.image_rows >= 0]
    assert prompt.tile_rows == 64
    assert rows.tolist() == [*range(8), *range(64, 128), *range(128, 136)]


@pytest.mark.parametrize("question", ["What is <|image_pad|>?", f"{SHOWN} or <|image_pad|>"])
def test_a_placeholder_token_without_its_marks(qwen, question):
    message = re.escape(f"expected <image> or {SHOWN}, got <|image_pad|> alone")
    with pytest.raises(UserError, match=message):
        build_prompt(qwen, question, 1)


COUNTS = [
    ("{0}Hi", 2, "1 placeholders and 2 {1}s"),
    ("{0}{0}Hi", 1, "2 placeholders and 1 {1}s"),
    ("what is {0}?", 0, "1 placeholders and 0 {1}s"),
    ("Hi", 1, "0 placeholders and 1 {1}s"),
]


@pytest.mark.parametrize(("text", "n_images", "numbers"), COUNTS)
def test_count_mismatch(processor, text, n_images, numbers):
    with pytest.raises(UserError, match=numbers.format("", "image")):
        expand(processor, f"USER: {text.format('<image>')} ASSISTANT:", n_images)


@pytest.mark.parametrize(("text", "n", "numbers"), COUNTS)
@pytest.mark.parametrize("kind", ["image", "video"])
def test_count_mismatch_of_qwen(qwen, kind, text, n, numbers):
    text = text.format({"image": SHOWN, "video": PLAYED}[kind])
    with pytest.raises(UserError, match=numbers.format("", kind)):
        expand(qwen, text, **{f"n_{kind}s": n})


def test_placeholders_without_their_pictures(qwen):
    """One of an image always counts, one of a video only where a video is given."""
    with pytest.raises(UserError, match="1 placeholders and 0 images"):
        expand(qwen, build_prompt(qwen, "What is <image>?"))
    with pytest.raises(UserError, match="2 placeholders and 1 videos"):
        expand(qwen, build_prompt(qwen, "<video> is <video>?", 0, 1), 0, 1)


def test_nothing_is_truncated(processor):
    text = build_prompt(processor, "Hi?", 1)
    needed = len(make_prompt(processor, processor.config, text, [PICTURE]).tokens)
    make_prompt(processor, processor.config, text, [PICTURE], max_length=needed)
    with pytest.raises(UserError, match=rf"needs {needed} tokens \(136 of them for images\)"):
        make_prompt(processor, processor.config, text, [PICTURE], max_length=needed - 1)


def test_nothing_of_qwen_is_truncated(qwen):
    text = build_prompt(qwen, "Hi?", 1, 1)
    needed = len(expand(qwen, text, 1, 1).tokens)
    expand(qwen, text, 1, 1, max_length=needed)
    with pytest.raises(UserError, match=rf"needs {needed} tokens \(72 of them for images and vid"):
        expand(qwen, text, 1, 1, max_length=needed - 1)


def test_what_makes_a_prompt_shorter():
    check_length(9, 8, 9, n_videos=1)
    with pytest.raises(UserError) as caught:
        check_length(10, 8, 9)
    assert str(caught.value) == (
        "prompt: needs 10 tokens (8 of them for images), the limit is 9; nothing is cut: shorten "
        "the text, or give fewer or smaller images"
    )
    message = (
        r"8 of them for images and videos\).* or give fewer, smaller or shorter images and videos "
        r"\(a lower fps or max_frames\)$"
    )
    with pytest.raises(UserError, match=message):
        check_length(10, 8, 9, n_videos=1)


def test_default_limit_is_the_models_positions(processor):
    """Eleven pictures are 1,408 rows of the budget's 1,536; the text is too much beside them."""
    text = build_prompt(processor, "Hi? " * 200, 11)
    with pytest.raises(UserError, match=r"\(1496 of them for images\), the limit is 2048"):
        make_prompt(processor, processor.config, text, [PICTURE] * 11)
