"""Texts of different lengths packed into rows, on the host.

B: rows, L: packed tokens, N: texts of a row (segments), T: tokens of a text.

    host [B, N, T]                         packed [B, L]
    a1 a2 a3 a4 . . . .                    tokens    a1 a2 a3 a4 b1 b2 c1 c2 c3 .
    b1 b2 .  .  . . . .        ->          segments   1  1  1  1  2  2  3  3  3 0
    c1 c2 c3 .  . . . .                    offsets    0  1  2  3  0  1  0  1  2 0

A question takes 12 tokens or 50; padding each to the longest would more than double the work.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int


def pack_rows(
    lengths: Int[np.ndarray, "B N"], multiple: int = 16
) -> tuple[Int[np.ndarray, "B L"], Int[np.ndarray, "B L"]]:
    """(segments, offsets) of packed rows: which segment a place belongs to, and its token there.

    Segment n has the number n + 1; padding is segment 0, offset 0. L is the longest row rounded up
    to `multiple`, so that few widths have to be compiled.
    """
    totals = lengths.sum(axis=1)
    width = -(-int(totals.max()) // multiple) * multiple
    segments = np.zeros((len(lengths), width), np.int32)
    offsets = np.zeros((len(lengths), width), np.int32)
    for row, counts in enumerate(lengths):
        segments[row, : totals[row]] = np.repeat(np.arange(1, len(counts) + 1), counts)
        offsets[row, : totals[row]] = np.concatenate([np.arange(count) for count in counts])
    return segments, offsets


def take_packed(
    values: np.ndarray, segments: Int[np.ndarray, "B L"], offsets: Int[np.ndarray, "B L"]
) -> np.ndarray:
    """Values [B, N, T] at their packed places [B, L]; 0 at padding."""
    rows = np.arange(len(values))[:, None]
    taken = values[rows, np.maximum(segments - 1, 0), offsets]
    return np.where(segments > 0, taken, np.zeros((), values.dtype))


@dataclass(frozen=True)
class PackedTexts:
    """Questions with responses, packed into rows."""

    tokens: Int[np.ndarray, "B L"]
    segments: Int[np.ndarray, "B L"]
    offsets: Int[np.ndarray, "B L"]
    question_lengths: list[list[int]]
    response_lengths: list[list[int]]

    def responses(self, row: int, question: int) -> Int[np.ndarray, " n"]:
        """Where the tokens of a response stand in a row."""
        before = sum(self.question_lengths[row][: question + 1])
        before += sum(self.response_lengths[row][:question])
        return before + np.arange(self.response_lengths[row][question])


def pack_texts(texts: Sequence[Sequence[tuple[Any, Any]]], multiple: int = 32) -> PackedTexts:
    """Pack the (question, response) pairs of each example into one row."""
    asked = [[len(question) for question, _ in pairs] for pairs in texts]
    said = [[len(response) for _, response in pairs] for pairs in texts]
    most = max(map(len, texts))
    lengths = np.zeros((len(texts), most), np.int32)
    for row, (questions, responses) in enumerate(zip(asked, said, strict=True)):
        lengths[row, : len(questions)] = np.add(questions, responses)
    segments, offsets = pack_rows(lengths, multiple)
    tokens = np.zeros_like(segments)
    for row, pairs in enumerate(texts):
        flat = np.concatenate([np.asarray(part, np.int32) for pair in pairs for part in pair])
        tokens[row, : len(flat)] = flat
    return PackedTexts(tokens, segments, offsets, asked, said)
