"""Reversible tensor operations between Hugging Face (torch) and tiger_jax weights, on numpy.

Each operation says its reshape twice (to_jax, to_hf) and once for shapes alone (hf_shape), so that
a checkpoint's header can be judged before a single byte of data is read. All are bit-exact: they
move values and never do arithmetic, whatever the dtype (float32, float16, ml_dtypes' bfloat16).
The one exception, VocabularyRows, adds rows on the way in and cuts exactly those on the way out.

Axes: O = torch output features, I = torch input features, E = channels of the vision tower,
C = colours, T = pictures of a frame, p = patch side, V = rows of the vocabulary, D = width of the
language model.
"""

import dataclasses
import math
from typing import Protocol, runtime_checkable

import numpy as np

Shape = tuple[int, ...]


@runtime_checkable
class TensorOp(Protocol):
    """A weight's reshape in both directions; `hf_shape` is what to_hf does to shapes."""

    def to_jax(self, value: np.ndarray) -> np.ndarray: ...

    def to_hf(self, value: np.ndarray) -> np.ndarray: ...

    def hf_shape(self, jax_shape: Shape) -> Shape: ...


@dataclasses.dataclass(frozen=True)
class Identity:
    """Embeddings, norms, biases: the same array on both sides."""

    def to_jax(self, value: np.ndarray) -> np.ndarray:
        return value

    def to_hf(self, value: np.ndarray) -> np.ndarray:
        return value

    def hf_shape(self, jax_shape: Shape) -> Shape:
        return jax_shape


IDENTITY = Identity()


@dataclasses.dataclass(frozen=True)
class Transpose:
    """torch Linear weight [O, I] <-> kernel [I, O]."""

    def to_jax(self, value: np.ndarray) -> np.ndarray:
        return value.T

    def to_hf(self, value: np.ndarray) -> np.ndarray:
        return value.T

    def hf_shape(self, jax_shape: Shape) -> Shape:
        return jax_shape[::-1]


@dataclasses.dataclass(frozen=True)
class PatchConv:
    """torch Conv2d weight [E, 3, p, p] <-> matmul kernel [p*p*3, E].

    Rows are in (row, col, channel) order, as a channels-last patch flattens: pixels.reshape(-1).
    """

    channels: int = 3

    def to_jax(self, value: np.ndarray) -> np.ndarray:
        return value.transpose(2, 3, 1, 0).reshape(-1, value.shape[0])

    def to_hf(self, value: np.ndarray) -> np.ndarray:
        width, channels, side, _ = self.hf_shape(value.shape)
        return value.reshape(side, side, channels, width).transpose(3, 2, 0, 1)

    def hf_shape(self, jax_shape: Shape) -> Shape:
        rows, width = jax_shape
        side = math.isqrt(rows // self.channels)
        if side * side * self.channels != rows:
            raise ValueError(
                f"patch kernel {list(jax_shape)}: expected p*p*{self.channels} rows, got {rows}"
            )
        return (width, self.channels, side, side)


@dataclasses.dataclass(frozen=True)
class FrameConv:
    """torch Conv3d weight [E, C, T, p, p] <-> matmul kernel [C*T*p*p, E].

    Rows are in (channel, picture, row, column) order, the one in which Qwen3-VL's processor
    flattens a patch. The sizes are told: a number of rows does not say how they factor.
    """

    channels: int
    pictures: int
    side: int

    def to_jax(self, value: np.ndarray) -> np.ndarray:
        return value.reshape(value.shape[0], -1).T

    def to_hf(self, value: np.ndarray) -> np.ndarray:
        return value.T.reshape(self.hf_shape(value.shape))

    def hf_shape(self, jax_shape: Shape) -> Shape:
        rows, width = jax_shape
        shape = (self.channels, self.pictures, self.side, self.side)
        if math.prod(shape) != rows:
            raise ValueError(
                f"patch kernel {list(jax_shape)}: expected {math.prod(shape)} rows "
                f"({' * '.join(map(str, shape))}), got {rows}"
            )
        return (width, *shape)


@dataclasses.dataclass(frozen=True)
class VocabularyRows:
    """`op` around a vocabulary of `stored_rows` in the file and more rows in the model.

    New rows are the column mean of the stored ones (in float64, rounded once to the stored dtype).
    Hugging Face drew them at random when it made the llava-hf files, so no rule can reproduce
    those; the mean is deterministic, and decoding never draws such ids (models.md 4.1).
    """

    op: TensorOp
    stored_rows: int
    rows: int

    def to_jax(self, value: np.ndarray) -> np.ndarray:
        mean = value.mean(axis=0, keepdims=True, dtype=np.float64).astype(value.dtype)
        added = np.repeat(mean, self.rows - self.stored_rows, axis=0)
        return self.op.to_jax(np.concatenate([value, added], axis=0))

    def to_hf(self, value: np.ndarray) -> np.ndarray:
        return self.op.to_hf(value)[: self.stored_rows]

    def hf_shape(self, jax_shape: Shape) -> Shape:
        return (self.stored_rows, *self.op.hf_shape(jax_shape)[1:])
