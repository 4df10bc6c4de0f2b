"""Reshapes against hand-made arrays, bit-exact in every dtype."""

import ml_dtypes
import numpy as np
import pytest

from tiger_jax.weights.tensor_ops import IDENTITY, FrameConv, PatchConv, Transpose, VocabularyRows

DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16)
CASES = (
    (IDENTITY, (3, 5)),
    (Transpose(), (3, 5)),
    (PatchConv(), (7, 3, 2, 2)),
    (FrameConv(3, 2, 4), (7, 3, 2, 4, 4)),
)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("op", "hf_shape"), CASES)
def test_round_trip_is_bit_exact(op, hf_shape, dtype):
    bits = np.random.default_rng(0).integers(0, 256, (*hf_shape, np.dtype(dtype).itemsize))
    value = bits.astype(np.uint8).reshape(*hf_shape, -1).view(dtype)[..., 0]  # NaNs and all
    there = op.to_jax(value)
    assert op.hf_shape(there.shape) == hf_shape
    assert op.to_hf(there).tobytes() == value.tobytes()
    assert there.dtype == value.dtype


def test_patch_rows_are_row_column_channel():
    """A kernel that is one at (channel 2, row 0, column 1) reads exactly that number of a patch."""
    kernel = np.zeros((1, 3, 2, 2), np.float32)
    kernel[0, 2, 0, 1] = 1
    patch = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    assert patch.reshape(-1) @ PatchConv().to_jax(kernel) == patch[0, 1, 2] == 5
    # a channel-first flattening would have read 9 = 2 * 4 + 1 instead
    with pytest.raises(ValueError, match=r"expected p\*p\*3 rows, got 13"):
        PatchConv().hf_shape((13, 8))


def test_frame_rows_are_channel_picture_row_column():
    """One at (channel 1, picture 1, row 0, column 1) of patches of 3 * 2 * 2 * 2 numbers."""
    kernel = np.zeros((1, 3, 2, 2, 2), np.float32)
    kernel[0, 1, 1, 0, 1] = 1
    patch = np.arange(24, dtype=np.float32)
    assert patch @ FrameConv(3, 2, 2).to_jax(kernel) == 13  # ((1 * 2 + 1) * 2 + 0) * 2 + 1
    # pictures outermost would have read 17 = ((1 * 3 + 1) * 2 + 0) * 2 + 1, channels innermost 16
    with pytest.raises(ValueError, match=r"expected 24 rows \(3 \* 2 \* 2 \* 2\), got 12"):
        FrameConv(3, 2, 2).hf_shape((12, 8))


@pytest.mark.parametrize("dtype", DTYPES)
def test_vocabulary_grows_by_the_column_mean_and_is_cut_back(dtype):
    stored = np.array([[1, 2], [3, 6]], dtype)
    op = VocabularyRows(Transpose(), 2, 4)
    grown = op.to_jax(stored)
    np.testing.assert_array_equal(grown.T, np.array([[1, 2], [3, 6], [2, 4], [2, 4]], dtype))
    assert grown.dtype == stored.dtype
    assert op.to_hf(grown).tobytes() == stored.tobytes()
    assert op.hf_shape(grown.shape) == (2, 2)
