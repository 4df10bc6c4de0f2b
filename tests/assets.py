"""Folders of the embedded pairs."""

from tiger_jax.embedded import ASSETS

TINY_LLAVA = ASSETS / "tiny_llava"
TINY_QWEN3_VL = ASSETS / "tiny_qwen3_vl"
