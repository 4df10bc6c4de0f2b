"""The decode command in this process, on a pair with random weights."""

import jax
import jax.numpy as jnp

from tiger_jax import decode
from tiger_jax.data.scene_folder import write_tiny_folder
from tiger_jax.models.config_reader import read_config
from tiger_jax.models.interface import build_model
from tiger_jax.weights.export import save_hf_folder


def write_pair(root, name):
    """The embedded pair's shapes with random weights."""
    for role in ("verifier", "drafter"):
        source = write_tiny_folder(root / f"{role}_config", role=role, pair=name)
        params = build_model(read_config(source)).init_params(jax.random.key(1), jnp.bfloat16)
        save_hf_folder(params, source, root / role)
    return root


def run(*arguments):
    return decode.main([str(argument) for argument in arguments])


def models(pair):
    return ["--verifier", pair / "verifier", "--drafter", pair / "drafter"]
