"""Published heads: synthetic files of the authors' names, against their equations in torch.

B = 1, T: rows, D: verifier width, d: head dim, V: vocabulary, U: queries of the resampler.
"""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.torch
import torch
import torch.nn.functional as F

from tiger_jax.errors import UserError
from tiger_jax.models.config import TextConfig
from tiger_jax.models.head import DraftHead, Shared
from tiger_jax.ops.attention import attend_causal
from tiger_jax.weights.head_io import read_head, write_head
from tiger_jax.weights.published_heads import read_published

D, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB, DRAFT, T = 8, 2, 1, 6, 12, 20, 5, 7
"""head_dim is not D / heads, so that a reader who divides is found out."""
VERIFIER = TextConfig(
    vocab_size=VOCAB, hidden_size=D, intermediate_size=30, num_layers=12, num_heads=4,
    num_kv_heads=4, head_dim=2, rms_norm_eps=1e-5, rope_theta=1e4, max_positions=64,
)  # fmt: skip
EPS, THETA = 1e-2, 500.0  # of the head's own config.json; far from the verifier's
CONFIG = {
    "hidden_size": D, "num_attention_heads": HEADS, "head_dim": HEAD_DIM, "rms_norm_eps": EPS,
    "rope_theta": THETA, "num_hidden_layers": 1,
}  # fmt: skip
IDS = [0, 3, 4, 11, 19]
GENERATOR = torch.Generator().manual_seed(0)


def random(*shape):
    return torch.randn(*shape, generator=GENERATOR)


def layer(prefix, inputs):
    """The decoder layer that all of them share; `inputs` of q, k and v."""
    return {
        f"{prefix}.self_attn.q_proj.weight": random(HEADS * HEAD_DIM, inputs),
        f"{prefix}.self_attn.k_proj.weight": random(KV_HEADS * HEAD_DIM, inputs),
        f"{prefix}.self_attn.v_proj.weight": random(KV_HEADS * HEAD_DIM, inputs),
        f"{prefix}.self_attn.o_proj.weight": random(D, HEADS * HEAD_DIM),
        f"{prefix}.mlp.gate_proj.weight": random(FFN, D),
        f"{prefix}.mlp.up_proj.weight": random(FFN, D),
        f"{prefix}.mlp.down_proj.weight": random(D, FFN),
        f"{prefix}.post_attention_layernorm.weight": random(D),
    }


def eagle2():
    return {
        "embed_tokens.weight": random(VOCAB, D), "fc.weight": random(D, 2 * D),
        "fc.bias": random(D), **layer("layers.0", D),
    }  # fmt: skip


def eagle3():
    marks = torch.zeros(VOCAB, dtype=torch.bool)
    marks[IDS] = True
    return {
        "fc.weight": random(D, 3 * D), **layer("midlayer", 2 * D),
        "midlayer.hidden_norm.weight": random(D), "midlayer.input_layernorm.weight": random(D),
        "norm.weight": random(D), "lm_head.weight": random(DRAFT, D), "t2d": marks,
        "d2t": torch.tensor(IDS) - torch.arange(DRAFT),
    }  # fmt: skip


def vispec():
    return {
        **eagle2(), "img_fc.weight": random(D, 2 * D), "img_fc.bias": random(D),
        "imadpt.q": random(3, HEADS, HEAD_DIM),
        "imadpt.k_proj.weight": random(HEADS * HEAD_DIM, D),
        "imadpt.v_proj.weight": random(HEADS * HEAD_DIM, D),
        "imadpt.o_proj.weight": random(D, HEADS * HEAD_DIM),
    }  # fmt: skip


def medusa(prefix=""):
    blocks = {f"{prefix}{k}.0.linear.weight": random(D, D) for k in range(11)}
    return blocks | {f"{prefix}{k}.0.linear.bias": random(D) for k in range(11)}


def write(folder, tensors, config=CONFIG, name="model.safetensors"):
    safetensors.torch.save_file(tensors, folder / name)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))


def rms_norm(x, weight):
    return weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)


def turn(x):
    """Rotate [H, T, d] by position * theta^(-2i/d), half-split."""
    inverse = THETA ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    angles = torch.outer(torch.arange(T), inverse).repeat(1, 2)
    first, second = x.chunk(2, dim=-1)
    return x * angles.cos() + torch.cat([-second, first], -1) * angles.sin()


def torch_layer(tensors, prefix, x, residual):
    """Causal attention over x, added to the residual, then the gated MLP."""

    def weight(name):
        return tensors[f"{prefix}.{name}.weight"]

    def heads(part):
        return F.linear(x, weight(f"self_attn.{part}_proj")).view(T, -1, HEAD_DIM).transpose(0, 1)

    queries, keys, values = turn(heads("q")), turn(heads("k")), heads("v")
    keys, values = (y.repeat_interleave(HEADS // KV_HEADS, 0) for y in (keys, values))
    mixed = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
    x = residual + F.linear(mixed.transpose(0, 1).reshape(T, -1), weight("self_attn.o_proj"))
    y = rms_norm(x, weight("post_attention_layernorm"))
    y = F.silu(F.linear(y, weight("mlp.gate_proj"))) * F.linear(y, weight("mlp.up_proj"))
    return x + F.linear(y, weight("mlp.down_proj"))


def as_jax(tensor):
    return jnp.asarray(tensor.numpy())


def run(head, params, embeddings, f, glance=None):
    """Our head on one text of T pairs."""
    rows = (None if x is None else x[None] for x in (embeddings, f, glance))
    x, residual = head.rows(params, *rows)
    queries, keys, values = head.project(params, x, jnp.arange(T)[None])
    return head.finish(params, residual, attend_causal(queries, keys, values))[0]


def close(got, wanted):
    np.testing.assert_allclose(got, wanted.numpy(), rtol=2e-4, atol=2e-4)


def test_eagle2_as_in_torch(tmp_path):
    tensors = eagle2()
    write(tmp_path, tensors)
    found = read_published(tmp_path, VERIFIER)
    config = found.config
    assert (found.method, config.layout, config.features) == ("eagle2", "eagle2", ())
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (HEADS, KV_HEADS, HEAD_DIM)
    assert (config.intermediate_size, config.rms_norm_eps, config.rope_theta) == (FFN, EPS, THETA)
    assert found.draft_ids is None
    embeddings, f, lm_head = random(T, D), random(T, D), random(VOCAB, D)
    x = F.linear(torch.cat([embeddings, f], -1), tensors["fc.weight"], tensors["fc.bias"])
    wanted = torch_layer(tensors, "layers.0", x, x)
    head = DraftHead(config)
    g = run(head, found.params, as_jax(embeddings), as_jax(f))
    close(g, wanted)
    shared = Shared(jnp.zeros((VOCAB, D)), jnp.ones(D), as_jax(lm_head).T)
    close(head.logits(found.params, shared, g[None])[0], F.linear(wanted, lm_head))


def test_eagle3_as_in_torch(tmp_path):
    """Taps, both norms, the residual on f alone, and logits at the verifier's own ids."""
    tensors = eagle3()
    write(tmp_path, tensors)
    found = read_published(tmp_path, VERIFIER)
    assert (found.method, found.config.layout) == ("eagle3", "eagle3")
    assert found.config.features == (2, 6, 9)
    np.testing.assert_array_equal(found.draft_ids, IDS)
    embeddings, tapped = random(T, D), random(T, 3 * D)
    f = F.linear(tapped, tensors["fc.weight"])
    x = torch.cat([
        rms_norm(embeddings, tensors["midlayer.input_layernorm.weight"]),
        rms_norm(f, tensors["midlayer.hidden_norm.weight"]),
    ], -1)  # fmt: skip
    wanted = torch_layer(tensors, "midlayer", x, f)
    head = DraftHead(found.config)
    unit = jnp.zeros((VOCAB, D)), jnp.ones(D), jnp.zeros((D, VOCAB))
    shared = Shared(*unit, jnp.asarray(found.draft_ids))
    own = head.read(found.params, shared, as_jax(tapped)[None])[0]
    close(own, f)
    g = run(head, found.params, as_jax(embeddings), own)
    close(g, wanted)
    scores = F.linear(rms_norm(wanted, tensors["norm.weight"]), tensors["lm_head.weight"])
    logits = head.logits(found.params, shared, g[None])[0]
    close(logits[:, np.array(IDS)], scores)
    others = np.setdiff1d(np.arange(VOCAB), IDS)
    assert logits[:, others].max() < -1e9


def test_vispec_as_in_torch(tmp_path):
    tensors = vispec()
    write(tmp_path, tensors)
    found = read_published(tmp_path, VERIFIER)
    assert (found.method, found.config.layout) == ("vispec", "eagle2")
    assert (found.config.visual, found.config.resampler_queries) == ("resampler", 3)
    head, pictures = DraftHead(found.config), random(2, 4, D)

    def heads(part):
        return F.linear(pictures, tensors[f"imadpt.{part}_proj.weight"]).view(2, 4, HEADS, HEAD_DIM)

    keys, values = heads("k").transpose(1, 2), heads("v").transpose(1, 2)
    queries = tensors["imadpt.q"].transpose(0, 1)[None].expand(2, -1, -1, -1)
    mixed = F.scaled_dot_product_attention(queries, keys, values)
    vectors = F.linear(mixed.transpose(1, 2).reshape(2, 3, -1), tensors["imadpt.o_proj.weight"])
    rows = as_jax(pictures).reshape(1, 8, D)
    images = jnp.repeat(jnp.arange(2), 4)[None]
    stand, glance = head.resample(found.params, rows, images, 2)
    close(stand[0], vectors[:, :-1])
    close(glance[0], vectors[:, -1])
    embeddings, f, u = random(T, D), random(T, D), random(T, D)
    told = F.linear(torch.cat([f, u], -1), tensors["img_fc.weight"], tensors["img_fc.bias"])
    x = F.linear(torch.cat([embeddings, told], -1), tensors["fc.weight"], tensors["fc.bias"])
    g = run(head, found.params, as_jax(embeddings), as_jax(f), as_jax(u))
    close(g, torch_layer(tensors, "layers.0", x, x))


@pytest.mark.parametrize(
    ("prefix", "name"),
    [("", "medusa_lm_head.safetensors"), ("", "model.safetensors"),
     ("medusa_head.", "model.safetensors")],
)  # fmt: skip
def test_medusa_as_in_torch(tmp_path, prefix, name):
    """Also without a config.json: it has nothing to say."""
    tensors = medusa(prefix)
    write(tmp_path, tensors, None, name)
    found = read_published(tmp_path, VERIFIER)
    assert (found.method, found.config.medusa_heads) == ("medusa", 11)
    f = random(3, D)
    for k in (0, 2, 10):
        linear = (tensors[f"{prefix}{k}.0.linear.{part}"] for part in ("weight", "bias"))
        ahead = DraftHead(found.config).ahead(found.params, as_jax(f), k)
        close(ahead, f + F.silu(F.linear(f, *linear)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_kept_in_the_stored_dtype_and_written_as_ours(tmp_path, dtype):
    tensors = {name: value.to(dtype) for name, value in eagle2().items()}
    write(tmp_path, tensors)
    found = read_published(tmp_path, VERIFIER)
    write_head(tmp_path / "ours", found, str(dtype).removeprefix("torch."))
    kernel = read_head(tmp_path / "ours").params["fc"]["kernel"]
    assert kernel.dtype == str(dtype).removeprefix("torch.")
    np.testing.assert_array_equal(kernel.astype("float32"), tensors["fc.weight"].float().T.numpy())


def test_without_biases(tmp_path):
    """The authors' `bias: false`: ours are there, and zero."""
    tensors = {name: value for name, value in vispec().items() if not name.endswith(".bias")}
    write(tmp_path, tensors)
    params = read_published(tmp_path, VERIFIER).params
    for name in ("fc", "glance"):
        np.testing.assert_array_equal(params[name]["bias"], np.zeros(D, np.float32))


def test_defaults_of_config_json(tmp_path):
    """head_dim = hidden_size / heads, Llama's rope_theta, the verifier's eps."""
    tensors = eagle2()
    for part in "qkv":
        name = f"layers.0.self_attn.{part}_proj.weight"
        tensors[name] = tensors[name].new_ones((D, D))
    tensors["layers.0.self_attn.o_proj.weight"] = random(D, D)
    write(tmp_path, tensors, {"hidden_size": D, "num_attention_heads": HEADS})
    config = read_published(tmp_path, VERIFIER).config
    assert (config.head_dim, config.num_heads, config.num_kv_heads) == (4, 2, 2)
    assert (config.rope_theta, config.rms_norm_eps) == (10_000.0, 1e-5)


def test_old_tables_are_dropped(tmp_path):
    write(tmp_path, eagle2() | {"layers.0.self_attn.rotary_emb.inv_freq": random(3)})
    assert "inv_freq" not in str(read_published(tmp_path, VERIFIER).params)


def test_a_whole_draft_vocabulary_has_no_map(tmp_path):
    """Vd = V: the authors leave d2t and t2d empty, and ids are themselves."""
    maps = {"d2t": torch.zeros(VOCAB, dtype=torch.long), "t2d": torch.zeros(VOCAB).bool()}
    write(tmp_path, eagle3() | {"lm_head.weight": random(VOCAB, D), **maps})
    found = read_published(tmp_path, VERIFIER)
    assert (found.draft_ids, found.config.draft_vocab) == (None, 0)


def shifted(number):
    return {"d2t": torch.tensor(IDS) - torch.arange(DRAFT) + number}


@pytest.mark.parametrize(
    ("build", "change", "message"),
    [
        (eagle2, {"fc.weight": None, "layers.1.mlp.up_proj.weight": random(FFN, D)},
         r"does not fit the model; 1 missing: fc.weight \[8, 16\]; 1 unexpected: layers.1.mlp"),
        (eagle2, {"layers.0.self_attn.q_proj.bias": random(12)}, "1 unexpected: .*q_proj.bias"),
        (eagle2, {"layers.0.mlp.gate_proj.weight": None, "layers.0.self_attn.k_proj.weight": None},
         r"model; 2 missing: .*k_proj.weight \[6, 8\], .*gate_proj.weight \[12, 8\]$"),
        (eagle2, {"fc.weight": random(16, 32)}, r"fc.weight expected \[8, 16\], got \[16, 32\]"),
        (eagle2, {"layers.0.self_attn.q_proj.weight": random(13, D)},
         r"q_proj.weight expected \[12, 8\], got \[13, 8\]"),
        (eagle3, {"midlayer.hidden_norm.weight": None, "norm.weight": None},
         "2 missing: .*norm.weight"),
        (eagle3, {"d2t": None}, r"d2t: expected 5 offsets \(rows of lm_head\), got none"),
        (eagle3, {"d2t": torch.zeros(4).long()}, "d2t: expected 5 offsets .*, got 4"),
        (eagle3, {"d2t": torch.tensor(IDS)}, "to be the ids that t2d marks"),
        (eagle3, shifted(1) | {"t2d": None}, r"draft_ids: expected ids 0\.\.19, got 1\.\.20"),
        (eagle3, {"lm_head.weight": random(21, D)}, "expected at most 20 rows, .*, got 21"),
        (vispec, {"imadpt.q": None}, "1 missing: imadpt.q"),
        (medusa, {"3.1.weight": random(VOCAB, D)},
         "expected Medusa heads of one block that share the verifier's lm_head, got 3.1.weight"),
        (medusa, {"3.1.linear.weight": random(D, D)}, "of one block .*, got 3.1.linear.weight"),
        (medusa, {"3.0.linear.weight": None}, "1 missing: medusa_head.3.0.linear.weight"),
    ],
)  # fmt: skip
def test_faults(tmp_path, build, change, message):
    tensors = {name: value for name, value in (build() | change).items() if value is not None}
    write(tmp_path, tensors)
    with pytest.raises(UserError, match=message) as error:
        read_published(tmp_path, VERIFIER)
    assert "\n" not in str(error.value)
    assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "expected rope type default, got 'lin"),
        ({"head_dim": None, "hidden_size": None}, "expected head_dim, or hidden_size and num"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 5, 8]}},
         "expected EAGLE-3's own taps .*, got eagle_config"),
    ],
)  # fmt: skip
def test_config_faults(tmp_path, change, message):
    write(tmp_path, eagle3(), CONFIG | change)
    with pytest.raises(UserError, match=message):
        read_published(tmp_path, VERIFIER)


def test_other_folders(tmp_path):
    with pytest.raises(UserError, match="expected a checkpoint folder or file, found neither"):
        read_published(tmp_path / "nowhere", VERIFIER)
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(UserError, match="are not read: convert them first"):
        read_published(tmp_path, VERIFIER)
    write(tmp_path, {"decoder.weight": random(2, 2)}, None)
    with pytest.raises(UserError, match=r"ViSpec or Medusa head, got decoder\.weight"):
        read_published(tmp_path, VERIFIER)
    write(tmp_path, eagle2(), None)
    with pytest.raises(UserError, match=r"config\.json: file not found"):
        read_published(tmp_path, VERIFIER)


def test_too_shallow_a_verifier(tmp_path):
    write(tmp_path, eagle3())
    shallow = dataclasses.replace(VERIFIER, num_layers=6)
    with pytest.raises(UserError, match="expected 7 or more verifier layers, got 6"):
        read_published(tmp_path, shallow)
