"""Which programs run on one thread, and that each is made once."""

import jax
import numpy as np
import pytest

from tiger_jax.decoding import programs
from tiger_jax.decoding.engine import Engine
from tiger_jax.testing.tiny import tiny_model


def double(x):
    return x + x


def test_programs_are_made_once_and_counted():
    before = programs.compiles()
    one, many = (programs.program(double, alone, ()) for alone in (True, False))
    assert one is programs.program(double, True, ())
    assert one is not many
    assert (int(one(2)), int(many(3))) == (4, 6)
    assert programs.compiles() == before + 2


@pytest.mark.parametrize(("backend", "tokens", "small"), [
    ("cpu", 1, True), ("cpu", 16, True), ("cpu", 17, False), ("gpu", 1, False),
])  # fmt: skip
def test_small_passes_stay_on_one_thread(monkeypatch, backend, tokens, small):
    """2^26 multiplications at most: 16 tokens of 2^22 weights."""
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    assert programs.is_small(tokens, 2**22) is small


def test_an_engine_counts_its_decoders_weights(monkeypatch):
    """Rows times nodes times the weights that a pass multiplies, tower and embeddings not."""
    asked = []
    monkeypatch.setattr(
        "tiger_jax.decoding.engine.is_small", lambda *numbers: asked.append(numbers) or True
    )
    model, params = tiny_model()
    Engine(model, params, np.ones(97, bool), detokenize=str).is_small(3)
    text = dict(params["language_model"])
    text.pop("embed_tokens")
    kernels = sum(x.size for x in jax.tree.leaves(text) if x.ndim == 2)
    assert asked == [(3, kernels)]
