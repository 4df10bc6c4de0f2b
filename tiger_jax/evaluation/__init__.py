"""What `python -m tiger_jax.evaluate` measures: answers to scenes, and speed beside transformers."""
