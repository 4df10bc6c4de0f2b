"""What the name of a head method stands for: the head's shape, its loss, how far it is unrolled.

A config leaves these fields None; what it sets itself stays.
"""

from collections.abc import Mapping
from typing import Any

import ml_collections

from tiger_jax.errors import UserError
from tiger_jax.models.config import TextConfig
from tiger_jax.models.head import HeadConfig

FUSED, LAST = "fused", "last"
METHODS: dict[str, dict[str, Any]] = {
    "tiger_head": {
        "head": {"layout": "tiger", "features": FUSED, "visual": "routed"},
        "loss": {"objective": "kl", "decay": 1.0}, "draft_length": 8, "route_every": "step",
    },
    "eagle2": {
        "head": {"layout": "eagle2", "features": LAST, "visual": "full"},
        "loss": {"objective": "eagle2", "decay": 1.0}, "draft_length": 1,
    },
    "eagle3": {
        "head": {"layout": "eagle3", "features": FUSED, "visual": "full"},
        "loss": {"objective": "eagle3", "decay": 0.8}, "draft_length": 7,
    },
    "vispec": {
        "head": {"layout": "eagle2", "features": LAST, "visual": "resampler"},
        "loss": {"objective": "vispec", "decay": 1.0}, "draft_length": 2,
    },
    "medusa": {
        "head": {"layout": "medusa", "features": LAST, "visual": "none"},
        "loss": {"objective": "medusa", "decay": 0.8}, "draft_length": None,
    },
}  # fmt: skip
"""medusa drafts as many tokens as it has blocks."""
SIZES = ("num_heads", "num_kv_heads", "head_dim", "intermediate_size")


def resolve(config: ml_collections.ConfigDict) -> None:
    """Fill in what `config.method` stands for. Raises UserError for an unknown one."""
    if config.method not in METHODS:
        raise UserError(f"method: expected one of {', '.join(METHODS)}, got {config.method!r}")
    _fill(config, METHODS[config.method])
    config.run_dir = config.run_dir.replace("{method}", config.method)
    if config.route_every is None:
        config.route_every = "round"
    if config.draft_length is None:
        config.draft_length = config.head.medusa_heads


def _fill(config: ml_collections.ConfigDict, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if isinstance(value, Mapping):
            _fill(config[name], value)
        elif config[name] is None:
            config[name] = value


def head_config(fields: Mapping[str, Any], text: TextConfig) -> HeadConfig:
    """The architecture of a resolved config's `head`, for a verifier's decoder.

    Sizes that are 0 are the verifier's. Raises UserError.
    """
    fields = dict(fields)
    features = fields.pop("features")
    if features not in (FUSED, LAST):
        raise UserError(f"features: expected {FUSED} or {LAST}, got {features!r}")
    taps = tuple(fields.pop("taps")) or fused_taps(text.num_layers)
    if fields["layout"] == "medusa":
        fields["width"] = 0
    sizes = {name: fields.pop(name) or getattr(text, name) for name in SIZES}
    return HeadConfig(
        hidden_size=text.hidden_size, vocab_size=text.vocab_size, num_layers=text.num_layers,
        features=taps if features == FUSED else (), rms_norm_eps=text.rms_norm_eps,
        rope_theta=text.rope_theta, **sizes, **fields,
    )  # fmt: skip


def kept_taps(wanted: tuple[int, ...], layers: int) -> tuple[int, ...]:
    """Hidden states that are kept of a verifier, so that all methods can read one cache."""
    return tuple(sorted({*wanted, *fused_taps(layers), layers}))


def fused_taps(layers: int) -> tuple[int, int, int]:
    """Low, middle and high hidden states: EAGLE-3's for a deep verifier; the last of a shallow one
    takes the place of the high one, which would be its first."""
    if layers < 8:
        return 1, layers // 2, layers
    return 2, layers // 2, layers - 3
