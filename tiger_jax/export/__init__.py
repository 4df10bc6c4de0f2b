"""Trained drafters outside of JAX."""
