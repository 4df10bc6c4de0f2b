"""The tokenizers of the embedded pairs.

Each is a BPE model without merges: a word of the scene grammar, with its leading space, is one row
of the vocabulary, and any other text falls back to characters and UTF-8 bytes, so nothing a person
types is lost.
"""

import re
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Literal, NamedTuple

from tiger_jax.data import clip_language, scene_language

Pair = Literal["tiny_llava", "tiny_qwen3_vl"]
SPECIAL_TOKENS = ("<unk>", "<s>", "</s>", "<pad>", "<image>")
UNK, BOS, EOS, PAD, IMAGE = range(5)
QWEN_SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)

_SPACE = "\u2581"  # the visible space of SentencePiece vocabularies
_WORD_OR_CHARACTER = rf"{_SPACE}?[A-Za-z]+|{_SPACE}?[0-9]+|[\s\S]"


class _Parts(NamedTuple):
    """What the tokenizer of a pair is made of."""

    special: tuple[str, ...]
    marks: tuple[str, ...]
    """Role marks that are one token although no word."""
    texts: Callable[[], Iterator[str]]
    """The texts whose words are rows."""


def _qwen_texts() -> Iterator[str]:
    """In this family's chat template answers start a line, and times stand before frames."""
    template = ("system\n", "user\n", "assistant\n", "<0.2 seconds>")
    return chain(
        template,
        scene_language.grammar_texts(),
        scene_language.opening_texts(),
        clip_language.grammar_texts(),
    )


_PARTS = {
    "tiny_llava": _Parts(
        SPECIAL_TOKENS, (f"{_SPACE}ASSISTANT:", "USER:"), scene_language.grammar_texts
    ),
    "tiny_qwen3_vl": _Parts(QWEN_SPECIAL_TOKENS, (), _qwen_texts),
}


def build_tokenizer(pair: Pair = "tiny_llava"):
    """The tokenizers.Tokenizer of a pair: special tokens are never cut.

    That of tiny_llava puts `<s>` first; the other family begins with no such token.
    """
    from tokenizers import (
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
    )

    parts = _PARTS[pair]
    vocab = {token: i for i, token in enumerate(vocabulary(pair))}
    unknown = "<unk>" if "<unk>" in parts.special else None
    tokenizer = Tokenizer(
        models.BPE(vocab, [], unk_token=unknown, byte_fallback=True, ignore_merges=True)
    )
    tokenizer.add_special_tokens(list(parts.special))
    tokenizer.normalizer = normalizers.Replace(" ", _SPACE)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_pieces(pair)), behavior="isolated")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    if "<s>" in parts.special:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", BOS)]
        )
    return tokenizer


def vocabulary(pair: Pair = "tiny_llava") -> list[str]:
    """Token texts in row order: special tokens, characters, bytes of all others, words."""
    characters = ["\n", _SPACE, *(chr(code) for code in range(33, 127))]
    others = [b for b in (*range(0x20), *range(0x7F, 0xC0), *range(0xC2, 0xF5)) if b != 0x0A]
    pieces = set(_PARTS[pair].marks)
    for text in _PARTS[pair].texts():
        pieces.update(re.findall(_pieces(pair), text.replace(" ", _SPACE)))
    words = sorted(piece for piece in pieces if len(piece) > 1)
    special = _PARTS[pair].special
    return [*special, *characters, *(f"<0x{b:02X}>" for b in others), *words]


def _pieces(pair: Pair) -> str:
    """How text is cut before look-up: role marks, words with their space, single characters."""
    return "|".join((*_PARTS[pair].marks, _WORD_OR_CHARACTER))
