"""Qwen3-VL through every program: supervised, distilled and aligned on pictures and clips."""

import contextlib
import io
import json
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import grpo, kd, sft
from tiger_jax import train
from tiger_jax.data.batches import make_prompt
from tiger_jax.data.clips import make_clip
from tiger_jax.data.prompts import build_prompt
from tiger_jax.data.scene_folder import write_tiny_folder
from tiger_jax.data.scenes import HELD_OUT
from tiger_jax.decoding.engine import Options
from tiger_jax.models.config_reader import read_config
from tiger_jax.models.interface import build_model
from tiger_jax.pipeline import Pipeline
from tiger_jax.testing.tiny import lively_params
from tiger_jax.weights.export import save_hf_folder
from tiger_jax.weights.load import load_params
from tiger_jax.weights.router_io import read_router

pytestmark = pytest.mark.slow
PAIR = "tiny_qwen3_vl"
SMALL = {
    "scenes": 8, "clip_share": 0.5, "held_out_scenes": 0, "steps": 2, "warmup": 1, "batch": 4,
    "checkpoint_every": 100, "log_every": 1, "learning_rate": 1e-2,
    "mesh": {"data": 1, "fsdp": 1, "tensor": 1},
}  # fmt: skip
TEXT = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1}  # fmt: skip
VISION = {"hidden_size": 16, "intermediate_size": 16, "depth": 1, "num_heads": 2,
          "out_hidden_size": 32, "deepstack_visual_indexes": [0]}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def one_device():
    """A mesh of one of the suite's eight devices."""
    make = train.meshes.make_mesh
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            train.meshes, "make_mesh", lambda axes, **_: make(axes, devices=jax.devices()[:1])
        )
        yield


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("qwen")


def write_small(folder: Path, role: str) -> Path:
    """The pair's folder, narrow: one layer in the tower, two in the decoder, because what DeepStack
    adds behind the last one reaches no text."""
    written = write_tiny_folder(folder, role, pair=PAIR)
    config = json.loads((written / "config.json").read_text())
    config["text_config"] |= TEXT
    config["vision_config"] |= VISION
    (written / "config.json").write_text(json.dumps(config))
    return written


def run(config, root: Path, name: str, **changes) -> tuple[Path, str]:
    """(export, what was said) of a run to its end."""
    config.update(SMALL | {"run_dir": str(root / name)} | changes)
    with contextlib.redirect_stderr(io.StringIO()) as said:
        assert train.train(config) == config.steps
    return root / name / "export", said.getvalue()


def learn(get_config, root: Path, name: str, verifier: Path, **changes) -> tuple[Path, str]:
    config = get_config(PAIR)
    config.teacher.max_new_tokens = 12
    return run(
        config, root, name, verifier=str(verifier), cache_dir=str(root / "cache"),
        model=str(root / "drafter"), draft_length=3, teacher_batch=16,
        answer_mesh=SMALL["mesh"], verifier_mesh=SMALL["mesh"], **changes,
    )  # fmt: skip


@pytest.fixture(scope="module")
def verifier(root) -> Path:
    """Two steps from random weights, on questions about pictures and about clips."""
    return run(
        sft.get_config(PAIR), root, "sft", model=str(write_small(root / "source", "verifier")),
        tower_from="", freeze=(), learning_rate=0.05, extra_questions=(), extra_clip_questions=(),
    )[0]  # fmt: skip


@pytest.fixture(scope="module")
def distilled(root, verifier) -> tuple[Path, str]:
    source = write_small(root / "random", "drafter")
    model = build_model(read_config(source))
    save_hf_folder(jax.device_get(lively_params(model, 1)), source, root / "drafter")
    return learn(kd.get_config, root, "kd", verifier, steps=3)


@pytest.fixture(scope="module")
def aligned(root, verifier, distilled) -> tuple[Path, str]:
    """On the same clips alone, of which the verifier's answers are there."""
    return learn(
        grpo.get_config, root, "grpo", verifier, init_from=str(root / "kd"), prefixes=2,
        align={"objective": "grpo", "samples": 2}, scenes=4, clip_share=1.0,
    )  # fmt: skip


def leaves_of(folder: Path) -> dict[str, np.ndarray]:
    found = jax.tree_util.tree_leaves_with_path(load_params(folder, read_config(folder)))
    return {jax.tree_util.keystr(p): np.asarray(leaf, np.float32) for p, leaf in found}


def test_supervised_training_moves_the_whole_model(verifier):
    """Tower, mergers and decoder alike; what is exported is finite."""
    model = build_model(read_config(verifier))
    key, _ = jax.random.split(jax.random.key(sft.get_config(PAIR).seed))
    fresh = jax.tree_util.tree_leaves_with_path(jax.jit(model.init_params)(key))
    found = leaves_of(verifier)
    assert all(np.isfinite(leaf).all() for leaf in found.values())
    still = [  # but for the rounding of an export
        name for name, leaf in ((jax.tree_util.keystr(p), leaf) for p, leaf in fresh)
        if np.array_equal(found[name], leaf.astype(jnp.bfloat16).astype(jnp.float32))
    ]  # fmt: skip
    assert still == []


def test_distillation_moves_the_drafter_but_its_tower(root, distilled):
    export, said = distilled
    assert said.count("verifier answered 4 of 4 examples") == 2  # pictures, clips
    before, after = leaves_of(root / "drafter"), leaves_of(export)
    assert before.keys() == after.keys()
    moved = {name for name in before if not np.allclose(before[name], after[name], rtol=2**-7)}
    assert not any("vision_tower" in name for name in moved)
    for part in ("['merger']", "deepstack_mergers_0", "query_norm", "embed_tokens", "mlp"):
        assert any(part in name for name in moved), part
    router, weights = read_router(export)
    assert (router.selector, router.pooled_tokens, router.looks) == ("tiger", 9, 1)
    assert np.abs(np.asarray(weights["query"]["kernel"])).max() > 0


def test_alignment_goes_on_from_there_and_asks_nothing(distilled, aligned):
    assert "verifier answered" not in aligned[1]
    before, after = leaves_of(distilled[0]), leaves_of(aligned[0])
    near = partial(np.allclose, atol=0.1)  # two steps of 0.01
    assert all(near(before[name], after[name]) for name in before)
    assert any(not np.array_equal(before[name], after[name]) for name in before)


def test_what_came_out_drafts_losslessly_from_a_clip(verifier, aligned):
    pair = Pipeline.load(verifier, aligned[0], draft_length=3)
    assert pair.router.routes
    clip = make_clip(3, HELD_OUT)
    text = build_prompt(pair.processor, clip.qa[0].question, 0, 1)
    prompt = make_prompt(pair.processor, pair.config, text, videos=[clip.shown])
    plain, drafted = (
        each.engine.run(each.arrays([prompt]), [Options(max_new_tokens=12)]).outputs[0]
        for each in (pair.plain(), pair)
    )
    assert drafted.tokens == plain.tokens
    assert len(plain.tokens) > 2
    assert drafted.drafted > 0
