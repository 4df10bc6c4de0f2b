"""What `python -m tiger_jax.evaluate` measures: answers to scenes, speed beside transformers."""
