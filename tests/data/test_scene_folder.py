"""The embedded pairs' folders: transformers opens them, and one grammar word is one token."""

import re

import numpy as np
import pytest

from tiger_jax.data.clip_language import ASKED_CLIP
from tiger_jax.data.clips import ask_more, make_clip
from tiger_jax.data.scene_folder import QWEN_VOCAB_ROWS, VOCAB_ROWS, write_tiny_folder
from tiger_jax.data.scene_tokenizer import (
    QWEN_SPECIAL_TOKENS,
    SPECIAL_TOKENS,
    build_tokenizer,
    vocabulary,
)
from tiger_jax.data.scenes import make_pair_question, make_scene
from tiger_jax.embedded import ASSETS
from tiger_jax.models.config_reader import read_config

PAIRS = ("tiny_llava", "tiny_qwen3_vl")
VISUAL = "<|vision_start|><|{}_pad|><|vision_end|>"


@pytest.fixture(scope="module")
def qwen_folder(tmp_path_factory):
    return write_tiny_folder(tmp_path_factory.mktemp("qwen"), "verifier", "tiny_qwen3_vl")


@pytest.mark.parametrize("pair", PAIRS)
def test_same_bytes_every_time(tmp_path, pair):
    first, again = (write_tiny_folder(tmp_path / name, pair=pair) for name in "ab")
    names = sorted(path.name for path in first.iterdir())
    assert names == sorted(path.name for path in again.iterdir())
    for name in names:
        assert (first / name).read_bytes() == (again / name).read_bytes(), name


@pytest.mark.parametrize("role", ["verifier", "drafter"])
def test_the_shipped_pair_has_these_files(tmp_path, role):
    """Its weights belong to this vocabulary and these sizes."""
    shipped = ASSETS / "tiny_llava" / role
    for path in write_tiny_folder(tmp_path, role).iterdir():
        assert path.read_bytes() == (shipped / path.name).read_bytes(), path.name


@pytest.mark.parametrize(("role", "width", "layers"), [("verifier", 256, 4), ("drafter", 128, 2)])
def test_transformers_and_own_config_agree(tmp_path, role, width, layers):
    transformers = pytest.importorskip("transformers")
    folder = write_tiny_folder(tmp_path, role)
    theirs = transformers.AutoConfig.from_pretrained(folder)
    ours = read_config(folder)
    assert (theirs.text_config.hidden_size, theirs.text_config.num_hidden_layers) == (width, layers)
    assert (ours.text.hidden_size, ours.text.num_layers) == (width, layers)
    assert ours.image_token_id == theirs.image_token_id == SPECIAL_TOKENS.index("<image>")
    assert (ours.bos_token_id, ours.eos_token_ids, ours.pad_token_id) == (1, (2,), 3)
    assert ours.pinpoints == tuple(map(tuple, theirs.image_grid_pinpoints))
    assert ours.text.vocab_size == theirs.text_config.vocab_size == VOCAB_ROWS


@pytest.mark.parametrize(
    ("role", "width", "layers", "heads"), [("verifier", 256, 4, 8), ("drafter", 128, 2, 4)]
)
def test_qwen_config_is_read_alike(tmp_path, role, width, layers, heads):
    transformers = pytest.importorskip("transformers")
    folder = write_tiny_folder(tmp_path, role, "tiny_qwen3_vl")
    theirs, ours = transformers.AutoConfig.from_pretrained(folder), read_config(folder)
    text, tower = theirs.text_config, theirs.vision_config
    assert (text.hidden_size, text.num_hidden_layers, text.num_attention_heads) == (
        width, layers, heads,
    )  # fmt: skip
    assert (ours.text.hidden_size, ours.text.num_layers, ours.text.num_heads) == (
        width, layers, heads,
    )  # fmt: skip
    assert text.num_key_value_heads == ours.text.num_kv_heads == heads // 2
    assert text.head_dim == ours.text.head_dim == 40
    assert text.rope_parameters["rope_theta"] == ours.text.rope_theta == 10000.0
    assert tuple(text.rope_parameters["mrope_section"]) == ours.text.mrope_section == (8, 6, 6)
    assert theirs.tie_word_embeddings == ours.text.tie_embeddings == (role == "drafter")
    assert text.vocab_size == ours.text.vocab_size == QWEN_VOCAB_ROWS
    assert tuple(tower.deepstack_visual_indexes) == ours.vision.deepstack_layers == (0, 1)
    assert tower.out_hidden_size == ours.vision.out_hidden_size == width
    assert tower.num_position_embeddings == ours.vision.num_positions == (112 // 7) ** 2
    assert theirs.image_token_id == ours.image_token_id == 5
    assert theirs.video_token_id == ours.video_token_id == 6
    assert (ours.vision_start_token_id, ours.vision_end_token_id) == (3, 4)
    assert (ours.eos_token_ids, ours.pad_token_id) == ((2, 0), 0)


def test_automatic_classes_open_the_folder(tiny_folder):
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_folder)
    assert len(tokenizer) == len(vocabulary()) < VOCAB_ROWS
    assert tokenizer("a").input_ids[0] == tokenizer.bos_token_id == 1
    assert tokenizer.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == [0, 1, 2, 3, 4]
    processor = transformers.AutoProcessor.from_pretrained(tiny_folder)
    assert type(processor).__name__ == "LlavaNextProcessor"
    assert (processor.patch_size, processor.num_additional_image_tokens) == (14, 1)
    turn = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Hi?"}]}]
    text = processor.apply_chat_template(turn, add_generation_prompt=True)
    assert text == "USER: <image>\nHi? ASSISTANT:"


def test_automatic_classes_open_the_qwen_folder(qwen_folder):
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(qwen_folder)
    assert len(tokenizer) == len(vocabulary("tiny_qwen3_vl")) < QWEN_VOCAB_ROWS
    assert tokenizer("a").input_ids == tokenizer.convert_tokens_to_ids(["a"])  # no first token
    assert tokenizer.convert_tokens_to_ids(list(QWEN_SPECIAL_TOKENS)) == list(range(7))
    assert (tokenizer.bos_token, tokenizer.eos_token_id, tokenizer.pad_token_id) == (None, 2, 0)
    assert (tokenizer.image_token_id, tokenizer.video_token_id) == (5, 6)
    generation = transformers.GenerationConfig.from_pretrained(qwen_folder)
    assert (generation.eos_token_id, generation.pad_token_id) == ([2, 0], 0)


def test_qwen_prompts_keep_the_order_of_their_content(qwen_folder):
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(qwen_folder)
    content = [
        {"type": "text", "text": "See "},
        {"type": "video"},
        {"type": "image"},
        {"type": "text", "text": "Hi?"},
    ]
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": content},
        {"role": "assistant", "content": "It is red."},
        {"role": "user", "content": "Why?"},
    ]
    text = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        f"<|im_start|>user\nSee {VISUAL.format('video')}{VISUAL.format('image')}Hi?<|im_end|>\n"
        "<|im_start|>assistant\nIt is red.<|im_end|>\n"
        "<|im_start|>user\nWhy?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_scene_is_64_visual_tokens(qwen_folder):
    """`size` holds areas: 112 x 112 pixels are the least, four times as many the most."""
    pytest.importorskip("transformers")
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    processor = Qwen2VLImageProcessorPil.from_pretrained(qwen_folder)
    pictures = [np.zeros((*size, 3), np.uint8) for size in ((112, 112), (28, 28), (448, 448))]
    out = processor(pictures, return_tensors="np")
    assert out["image_grid_thw"].tolist() == [[1, 16, 16], [1, 16, 16], [1, 32, 32]]
    assert out["pixel_values"].shape == (256 + 256 + 1024, 3 * 2 * 7 * 7)
    assert out["pixel_values"].min() == out["pixel_values"].max() == -1


@pytest.mark.parametrize("pair", PAIRS)
def test_rows_are_distinct(pair):
    assert len(set(vocabulary(pair))) == len(vocabulary(pair))


def test_every_grammar_word_is_one_token():
    """No word of a whole prompt with its answer is cut; marks and line ends stand alone."""
    tokenizer = build_tokenizer()
    texts = []
    for index in range(300):
        scene, other = make_scene(0, index), make_scene(1, index)
        for qa in (*scene.qa, make_pair_question(scene, other, index)):
            texts.append(f"USER: <image>\n{qa.question} ASSISTANT: {qa.answer}</s>")
    for text, encoding in zip(texts, tokenizer.encode_batch(texts), strict=True):
        words = re.findall(r"USER:| ASSISTANT:|<image>|</s>| ?\w+|[^\w ]| (?=<)", text)
        assert [token.replace("\u2581", " ") for token in encoding.tokens[1:]] == words


def test_every_word_about_clips_and_scenes_is_one_token():
    """Also where it starts an answer, which is a line of its own, and so are the times."""
    tokenizer = build_tokenizer("tiny_qwen3_vl")
    texts = []
    for index in range(300):
        scene, other, clip = make_scene(0, index), make_scene(1, index), make_clip(0, index)
        image, video = VISUAL.format("image"), f"<{index / 40:.1f} seconds>{VISUAL.format('video')}"
        asked = [(image, qa) for qa in (*scene.qa, make_pair_question(scene, other, index))]
        asked += [(video, qa) for qa in (*clip.qa, *ask_more(clip, ASKED_CLIP * 2, [index]))]
        texts += [
            f"<|im_start|>user\n{visual}{qa.question}<|im_end|>\n"
            f"<|im_start|>assistant\n{qa.answer}<|im_end|>"
            for visual, qa in asked
        ]
    encodings = tokenizer.encode_batch(texts)
    for text, encoding in zip(texts, encodings, strict=True):
        words = re.findall(r"<\|\w+\|>| ?\w+|[^\w ]", text)
        tokens = [token.replace("\u2581", " ") for token in encoding.tokens]
        assert tokens == words
    decoded = tokenizer.decode_batch([e.ids for e in encodings], skip_special_tokens=False)
    assert decoded == texts
    bare = [re.sub(r"<\|\w+\|>", "", text) for text in texts]
    assert tokenizer.decode_batch([e.ids for e in encodings]) == bare


@pytest.mark.parametrize("pair", PAIRS)
def test_every_row_can_be_reached(pair):
    """A row that no text encodes to would be dead weight and a trap in sampling."""
    tokenizer = build_tokenizer(pair)
    for row, token in enumerate(vocabulary(pair)):
        if re.fullmatch(r"<0x[0-9A-F]{2}>", token):
            continue
        text = token.replace("\u2581", " ")
        assert tokenizer.encode(text, add_special_tokens=False).ids == [row], token


@pytest.mark.parametrize("pair", PAIRS)
def test_every_character_survives(pair):
    tokenizer = build_tokenizer(pair)
    points = [*range(0x3000), *range(0xFF00, 0x10100), *range(0x1F300, 0x1F700), 0x10FFFF]
    skip = {0x2581}  # stands for the space inside the vocabulary
    text = "".join(chr(point) for point in points if point not in skip and chr(point).isprintable())
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert 0 not in ids  # no <unk>, and no <|endoftext|>
    assert tokenizer.decode(ids) == text
