"""Heads as their authors publish them (safetensors) -> ours.

D: verifier width, V: verifier vocabulary, Vd: draft vocabulary, F: mlp width, H, K: query and
key/value heads, d: head dim, U: queries of the resampler. Shapes are torch's, [out, in].

    EAGLE-1/2   fc.weight [D, 2D], fc.bias?, layers.0.self_attn.{q,k,v,o}_proj.weight,
                layers.0.mlp.{gate,up,down}_proj.weight, layers.0.post_attention_layernorm.weight
    EAGLE-3     fc.weight [D, 3D], midlayer.{self_attn.*, mlp.*, input_layernorm, hidden_norm,
                post_attention_layernorm}.weight, norm.weight, lm_head.weight [Vd, D],
                d2t [Vd] (draft token i is the verifier's i + d2t[i]), t2d [V] (which ids those are)
    ViSpec      EAGLE-2's, img_fc.{weight [D, 2D], bias?}, imadpt.q [U, H, d],
                imadpt.{k,v,o}_proj.weight
    Medusa      {k}.0.linear.{weight [D, D], bias}, from 0; also below medusa_head.

embed_tokens.weight is the verifier's own and is dropped. All of them concatenate the embedding
before the feature, and img_fc the feature before the picture's vector, as models/head.py does.

Published EAGLE heads pair picture positions as they pair text, (E[t_{i+1}], f_i) with the next
visual token in E's place; our heads read (v_i, f_i) there. ViSpec counts its picture's vector one
position earlier than its last token for the same reason. Such a head drafts exactly, as every
drafter does, but a little worse than where it was trained, until it is fine-tuned here.

Names and orders read in SafeAILab/EAGLE @ 148042c (eagle/model/cnets.py, cnets1.py @ 2174a79),
KangJialiang/ViSpec @ 1637a32 (vispec/model/cnets_ours.py, cnets_medusa.py @ 9ec3a91) and
FasterDecoding/Medusa @ 11af0aa (medusa/model/medusa_model.py).
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from tiger_jax.errors import UserError
from tiger_jax.models.config import TextConfig
from tiger_jax.models.config_reader import read_json
from tiger_jax.models.head import DraftHead, HeadConfig
from tiger_jax.weights import safetensors_io
from tiger_jax.weights.head_io import HeadFolder, Params, read_integers, read_tensors, stored_tensor
from tiger_jax.weights.name_table import NameTable, Rule
from tiger_jax.weights.safetensors_io import TensorHeader
from tiger_jax.weights.tensor_ops import Transpose

MEDUSA_FILE = "medusa_lm_head.safetensors"
MIN_LAYERS = 7
"""Fewer, and two of EAGLE-3's three taps fall together or out of order."""

_MEDUSA_PREFIX = "medusa_head."
_MEDUSA_BLOCK = re.compile(r"(\d+)\.0\.linear\.(weight|bias)")
_MEDUSA_DEEPER = re.compile(r"\d+\.[1-9]\d*\.")
_MAPS = ("d2t", "t2d")
_TAP_FIELDS = ("eagle_config", "eagle_aux_hidden_state_layer_ids")


def _linear(hf: str, path: str) -> Rule:
    return Rule(f"{hf}.weight", f"{path}/kernel", Transpose())


def _layer(prefix: str) -> list[Rule]:
    parts = {"q": "query", "k": "key", "v": "value", "o": "out"}
    return [
        *(_linear(f"{prefix}.self_attn.{hf}_proj", f"attention/{our}")
          for hf, our in parts.items()),
        *(_linear(f"{prefix}.mlp.{part}_proj", f"mlp/{part}") for part in ("gate", "up", "down")),
        Rule(f"{prefix}.post_attention_layernorm.weight", "post_attention_norm/scale"),
    ]  # fmt: skip


_EAGLE2 = [_linear("fc", "fc"), Rule("fc.bias", "fc/bias"), *_layer("layers.0")]
TABLES = {
    "eagle2": NameTable(_EAGLE2),
    "vispec": NameTable([
        *_EAGLE2, _linear("img_fc", "glance"), Rule("img_fc.bias", "glance/bias"),
        Rule("imadpt.q", "resampler/queries"), _linear("imadpt.k_proj", "resampler/key"),
        _linear("imadpt.v_proj", "resampler/value"), _linear("imadpt.o_proj", "resampler/out"),
    ]),
    "eagle3": NameTable([
        _linear("fc", "fuse"), *_layer("midlayer"), _linear("lm_head", "lm_head"),
        Rule("midlayer.input_layernorm.weight", "embedding_norm/scale"),
        Rule("midlayer.hidden_norm.weight", "feature_norm/scale"),
        Rule("norm.weight", "final_norm/scale"),
    ]),
    "medusa": NameTable([
        _linear(_MEDUSA_PREFIX + "{i}.0.linear", "blocks_{i}"),
        Rule(_MEDUSA_PREFIX + "{i}.0.linear.bias", "blocks_{i}/bias"),
    ]),
}  # fmt: skip
_OPTIONAL_BIASES = {"fc.bias": "fc", "img_fc.bias": "glance"}


def read_published(folder: str | Path, verifier: TextConfig) -> HeadFolder:
    """An EAGLE-1/2, EAGLE-3, ViSpec or Medusa head, its weights in the stored dtype.

    Sizes come from the tensors; head_dim, rope_theta and rms_norm_eps from the config.json beside
    them (Medusa needs none).

    Args:
        verifier: whose head it is; its width and vocabulary must be those of the files.

    Raises:
        UserError: names of no such head, tensors that do not fit (all faults in one line), heads
            with an lm_head of each block's own, taps other than EAGLE-3's, an unusual rotary type.
    """
    folder = Path(folder)
    medusa = folder / MEDUSA_FILE
    every = safetensors_io.read_headers(medusa if medusa.is_file() else folder)
    headers = [header for header in every if not _is_dropped(header.name)]
    method = _method(headers, folder)
    names = {header: _table_name(header.name, method) for header in headers}
    shapes = {name: header.shape for header, name in names.items()}
    config = _config(method, shapes, folder, verifier)
    expected = TABLES[method].entries(DraftHead(config).abstract_params())
    without = [name for name in _OPTIONAL_BIASES if name in expected and name not in shapes]
    for name in without:
        del expected[name]
    stored = [stored_tensor(header, name) for header, name in names.items()]
    params = read_tensors(stored, expected, folder)
    for name in without:
        _add_bias(params[_OPTIONAL_BIASES[name]])
    try:
        return HeadFolder(method, config, params, _draft_ids(every, config))
    except UserError as error:
        raise UserError(f"{folder}: {error}") from None


def _is_dropped(name: str) -> bool:
    """The verifier's embeddings, the vocabulary maps, and tables that old files save."""
    return name == "embed_tokens.weight" or name in _MAPS or name.endswith("rotary_emb.inv_freq")


def _method(headers: Sequence[TensorHeader], folder: Path) -> str:
    names = [header.name for header in headers]
    for method, prefix in (("eagle3", "midlayer."), ("vispec", "imadpt."), ("eagle2", "layers.0.")):
        if any(name.startswith(prefix) for name in names):
            return method
    blocks = [name.removeprefix(_MEDUSA_PREFIX) for name in names]
    if not any(_MEDUSA_BLOCK.fullmatch(name) for name in blocks):
        got = ", ".join(sorted(names)[:4]) or "none"
        raise UserError(f"{folder}: expected an EAGLE-2, EAGLE-3, ViSpec or Medusa head, got {got}")
    if deeper := sorted(name for name in blocks if _MEDUSA_DEEPER.match(name)):
        raise UserError(
            f"{folder}: expected Medusa heads of one block that share the verifier's lm_head,"
            f" got {deeper[0]}"
        )
    return "medusa"


def _table_name(name: str, method: str) -> str:
    """Medusa's own files start with the block's number, ViSpec's copy of it with a prefix."""
    return _MEDUSA_PREFIX + name.removeprefix(_MEDUSA_PREFIX) if method == "medusa" else name


def _config(
    method: str, shapes: Mapping[str, tuple[int, ...]], folder: Path, verifier: TextConfig
) -> HeadConfig:
    """From shapes; a tensor that is not there counts one, and is reported as missing later."""
    sizes = {
        "hidden_size": verifier.hidden_size, "vocab_size": verifier.vocab_size,
        "num_layers": verifier.num_layers,
    }  # fmt: skip
    if method == "medusa":
        found = [_MEDUSA_BLOCK.fullmatch(name.removeprefix(_MEDUSA_PREFIX)) for name in shapes]
        heads = max(int(match[1]) for match in found if match) + 1
        eps = verifier.rms_norm_eps
        return HeadConfig("medusa", medusa_heads=heads, rms_norm_eps=eps, **sizes)

    def rows(*names: str) -> int:
        return next((shapes[name][0] for name in names if shapes.get(name)), 1)

    layer = "midlayer" if method == "eagle3" else "layers.0"
    sizes |= _read_layer(folder / "config.json", verifier, method == "eagle3")
    for name, parts in (("num_heads", "q"), ("num_kv_heads", "kv")):
        features = rows(*(f"{layer}.self_attn.{part}_proj.weight" for part in parts))
        # A share of a head cannot be; one head then, and the wrong shape is reported.
        sizes[name] = max(features // sizes["head_dim"], 1)
    gate, up = (f"{layer}.mlp.{part}_proj.weight" for part in ("gate", "up"))
    sizes["intermediate_size"] = rows(gate, up)
    if method == "eagle2":
        return HeadConfig("eagle2", visual="full", **sizes)
    if method == "vispec":
        queries = rows("imadpt.q")
        return HeadConfig("eagle2", visual="resampler", resampler_queries=queries, **sizes)
    drawable = rows("lm_head.weight")
    if drawable > verifier.vocab_size:
        wanted = f"at most {verifier.vocab_size} rows, the verifier's vocabulary"
        raise UserError(f"{folder}: lm_head.weight: expected {wanted}, got {drawable}")
    draft_vocab = drawable if drawable < verifier.vocab_size else 0
    taps = _taps(folder, verifier)
    return HeadConfig("eagle3", features=taps, visual="full", draft_vocab=draft_vocab, **sizes)


def _read_layer(file: Path, verifier: TextConfig, taps: bool) -> dict[str, Any]:
    """head_dim, rope_theta and rms_norm_eps; without the last two, Llama's and the verifier's."""
    raw = read_json(file)
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise UserError(f"{file}: expected rope type default, got {kind!r}")
    if taps and (named := [name for name in _TAP_FIELDS if raw.get(name)]):
        # vLLM counts inputs of layers and sglang outputs under the same name.
        raise UserError(f"{file}: expected EAGLE-3's own taps (2, L/2, L-3), got {named[0]}")
    head_dim = raw.get("head_dim")
    if head_dim is None:
        size, heads = raw.get("hidden_size"), raw.get("num_attention_heads")
        if not size or not heads:
            raise UserError(f"{file}: expected head_dim, or hidden_size and num_attention_heads")
        head_dim = size // heads
    return {
        "head_dim": int(head_dim),
        "rope_theta": float(rope.get("rope_theta", raw.get("rope_theta", 10_000.0))),
        "rms_norm_eps": float(raw.get("rms_norm_eps", verifier.rms_norm_eps)),
    }


def _taps(folder: Path, verifier: TextConfig) -> tuple[int, ...]:
    """What enters layers 2, L // 2 and L - 3: hidden states of these numbers."""
    layers = verifier.num_layers
    if layers < MIN_LAYERS:
        raise UserError(f"{folder}: expected {MIN_LAYERS} or more verifier layers, got {layers}")
    return 2, layers // 2, layers - 3


def _add_bias(weights: Params) -> None:
    kernel = weights["kernel"]
    weights["bias"] = jnp.zeros(kernel.shape[1], kernel.dtype)


def _draft_ids(headers: Sequence[TensorHeader], config: HeadConfig) -> Int[np.ndarray, "Vd"] | None:
    """i + d2t[i]; None of a whole vocabulary, whose maps stay empty in the authors' files."""
    if not config.draft_vocab:
        return None
    offsets, marked = (read_integers(headers, name) for name in _MAPS)
    if offsets is None or len(offsets) != config.draft_vocab:
        got = "none" if offsets is None else len(offsets)
        raise UserError(f"d2t: expected {config.draft_vocab} offsets (rows of lm_head), got {got}")
    ids = np.arange(len(offsets), dtype=np.int32) + offsets
    if marked is not None and not np.array_equal(np.flatnonzero(marked), np.sort(ids)):
        raise UserError("d2t: expected i + d2t[i] to be the ids that t2d marks, got others")
    return ids
