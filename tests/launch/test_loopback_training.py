"""Distillation and alignment: two processes train what one process trains, killed or not.

One test holds all of it, because most of its time is compilation: the processes answer the prompts
together, one is killed in the third step, both start again, go on from the newest whole
checkpoint, and align one step. The oracle is one process with eight devices, left alone with the
same answers.
"""

import re
import textwrap

import jax
import numpy as np
import pytest
from two_processes import start

from tests.small_folder import write_small_folder
from tiger_jax.models.config_reader import read_config
from tiger_jax.models.interface import build_model
from tiger_jax.testing.tiny import lively_params
from tiger_jax.weights.export import save_hf_folder

TRAIN = textwrap.dedent(
    """
    import dataclasses, os, signal, sys
    import jax, optax
    import numpy as np
    from flax import traverse_util
    from configs import grpo, kd
    from tiger_jax import distributed, runtime, train
    from tiger_jax.errors import UserError
    from tiger_jax.sharding import processes

    models, folder, die_at = sys.argv[1], sys.argv[2], int(sys.argv[3])
    # Adam makes whole steps of gradients that are nothing but rounding.
    train.optimizer.make_optimizer = lambda settings: optax.sgd(0.1, momentum=0.9)

    def config(module, name, **changes):
        made = module.get_config()
        made.update({
            "verifier": f"{models}/verifier", "model": f"{models}/drafter",
            "scenes": 16, "held_out_scenes": 0, "steps": 3, "warmup": 1, "batch": 8,
            "draft_length": 3, "checkpoint_every": 1, "log_every": 1, "teacher_batch": 8,
            "mesh": {"data": 1, "fsdp": 8, "tensor": 1}, "run_dir": f"{folder}/{name}",
            "cache_dir": f"{models}/teacher", "router": {"pooled_tokens": 1, "looks": 0},
        } | changes)
        made.teacher.max_new_tokens = 8
        return made

    class Deadly:
        def __init__(self, inner):
            self.inner, self.drawn = inner, 0
        def __iter__(self):
            return self
        def __next__(self):
            self.drawn += 1
            if self.drawn == die_at and jax.process_index() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return next(self.inner)
        def __getattr__(self, name):
            return getattr(self.inner, name)

    def watched(make):
        def make_watched(*arguments):
            objective = make(*arguments)
            def export(params, target):  # what it writes is bfloat16
                flat = traverse_util.flatten_dict(params, sep="/")
                whole = {path: processes.fetch(leaf) for path, leaf in flat.items()}
                if processes.is_main():
                    np.savez(target.parent / "params.npz", **whole)
                objective.export(params, target)
            return dataclasses.replace(
                objective, export=export,
                stream=lambda held_out: Deadly(iter(objective.stream(held_out))),
            )
        return make_watched

    for name in ("distill", "align"):
        train.MAKERS[name] = watched(train.MAKERS[name])

    def main():
        runtime.configure()
        try:
            distributed.initialise(8)
            train.train(config(kd, "kd"))
            train.train(config(
                grpo, "grpo", init_from=f"{folder}/kd", steps=1, warmup=0, prefixes=2,
                align={"objective": "grpo", "samples": 2},
            ))
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        return 0

    sys.exit(distributed.leave(main()))
    """
)


QUICK = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_use_fusion_emitters=false"
)
"""Half the time of compilation; steps of this size are fast anyway."""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A verifier and a drafter of one layer each, with random float32 weights."""
    root = tmp_path_factory.mktemp("models")
    for seed, role in enumerate(("verifier", "drafter")):
        source = write_small_folder(root / f"{role}_config", role, dtype="float32")
        params = lively_params(build_model(read_config(source)), seed)
        save_hf_folder(jax.device_get(params), source, root / role)
    return root


@pytest.mark.slow
def test_two_processes_train_as_one_and_go_on_after_a_kill(models, tmp_path):
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "XLA_FLAGS": QUICK}

    def train(name: str, die_at: int = 0, **sizes: int):
        arguments = (str(models), str(tmp_path / name), str(die_at))
        return start(TRAIN, arguments, tmp_path / f"{name}_{die_at}", environment=environment,
                     **sizes)  # fmt: skip

    with train("two", die_at=3) as killed:
        assert killed.codes() == [3, -9], killed.output(0)
        assert "error: process 1 of 2 is gone" in killed.output(0)
        assert "Traceback" not in killed.output(0)
    with train("two") as again, train("one", processes=1, devices=8) as alone:
        assert again.codes() == [0, 0], again.output(0) + again.output(1)
        assert alone.codes() == [0], alone.output(0)
        assert "resumed" in again.output(0)
        assert re.search(r"at step [12]\b", again.output(0))  # step 2 may not have been whole
    before = dict(np.load(tmp_path / "two" / "kd" / "params.npz"))
    for stage in ("kd", "grpo"):
        ones, twos = (np.load(tmp_path / name / stage / "params.npz") for name in ("one", "two"))
        assert ones.keys() == twos.keys()
        for name, value in ones.items():
            assert value.dtype == np.float32
            np.testing.assert_allclose(twos[name], value, atol=1e-5, err_msg=f"{stage} {name}")
    moved = [name for name, value in before.items() if np.abs(twos[name] - value).max() > 1e-3]
    assert len(moved) > 5  # the alignment's step moves what it starts from
    assert (tmp_path / "two" / "grpo" / "export" / "tiger_router.safetensors").exists()
