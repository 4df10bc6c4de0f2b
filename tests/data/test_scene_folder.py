"""The embedded pair's folders: transformers opens them, and one grammar word is one token."""

import re

import pytest

from tiger_jax.data.scene_folder import (
    SPECIAL_TOKENS,
    VOCAB_ROWS,
    build_tokenizer,
    vocabulary,
    write_tiny_folder,
)
from tiger_jax.data.scenes import make_pair_question, make_scene
from tiger_jax.models.config import read_config


def test_same_bytes_every_time(tiny_folder, tmp_path):
    again = write_tiny_folder(tmp_path)
    names = sorted(path.name for path in tiny_folder.iterdir())
    assert names == sorted(path.name for path in again.iterdir())
    for name in names:
        assert (tiny_folder / name).read_bytes() == (again / name).read_bytes(), name


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


def test_rows_are_distinct():
    assert len(set(vocabulary())) == len(vocabulary())


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


def test_every_row_can_be_reached():
    """A row that no text encodes to would be dead weight and a trap in sampling."""
    tokenizer = build_tokenizer()
    for row, token in enumerate(vocabulary()):
        if re.fullmatch(r"<0x[0-9A-F]{2}>", token):
            continue
        text = token.replace("\u2581", " ")
        assert tokenizer.encode(text, add_special_tokens=False).ids == [row], token


def test_every_character_survives():
    tokenizer = build_tokenizer()
    points = [*range(0x3000), *range(0xFF00, 0x10100), *range(0x1F300, 0x1F700), 0x10FFFF]
    skip = {0x2581}  # stands for the space inside the vocabulary
    text = "".join(chr(point) for point in points if point not in skip and chr(point).isprintable())
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert 0 not in ids  # no <unk>
    assert tokenizer.decode(ids) == text
