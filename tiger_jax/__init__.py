"""tiger_jax: fast, exact speculative decoding of vision-language models in JAX."""

__version__ = "0.1.0"
