"""Task metrics of public data sets: text in, numbers out; no jax, no readers."""
