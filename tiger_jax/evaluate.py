"""Measure a pair.

    python -m tiger_jax.evaluate --config configs/eval/scenes.py
    python -m tiger_jax.evaluate --config configs/eval/scenes.py --config.scenes=50 \\
        --config.verifier=DIR --config.drafter=DIR --config.report=scenes.json
    python -m tiger_jax.evaluate --config configs/exact/selectors.py --config.report=selectors.json
    python -m tiger_jax.evaluate --config configs/exact/k_sweep.py --config.plot=k.png
    python -m tiger_jax.evaluate --config configs/eval/main_results.py --config.root=DATA
    python -m tiger_jax.evaluate --config configs/eval/benchmark.py:qwen3_vl --config.root=DATA \\
        --config.only="('textvqa', 'docvqa')" --config.verifier=DIR --config.drafter=DIR

configs/eval/             the paper's tables, on public data sets and held-out scenes
    benchmark.py          any data sets, or your own file, with answers scored and timed
    main_results.py       every method on the five main data sets
    context_heavy.py      Video-MME, NLVR2, MuirBench
    visual_interface.py   what the drafter alone says, by what it sees
    capability.py         OCR, VQA, captions, counting: verifier, pair, drafter alone
    ablation.py           without routing, alignment, distillation
    objectives.py         what the drafter was trained for
    routing_sparsity.py   k = 4, 8, 16, 32, all
    k_sensitivity.py      k in training and in inference
    routing_ablation.py   the parts of routing
    adapter_pruning.py    SparseVLM's and VisPruner's choice in the router's place
    prefix_distribution.py, temperature.py, batch_size.py
configs/eval/             and on held-out scenes only
    scenes.py             answers, acceptance and speed of one pair
    curves.py             training curves of runs
    routes.py             one answer: the patches that each round routed
    routing_cost.py       time and memory of routed against full drafting
    peer_transformers.py  speed beside transformers
    head_compile.py       what GPUs would do with heads at real sizes, compiled without one
configs/exact/            drafters compared exactly on the verifier's own answers
    drafters.py           any drafters; of these:
    heads.py              draft heads: chains, trees, batches, speed
    k_sweep.py            routed tokens: 4, 8, 16, 32, all of them
    selectors.py          what chooses the visual tokens
    objectives.py         training objectives, against as many further distillation steps
    ablation.py           without routing, without alignment, without distillation
    temperature.py        T = 0, 0.5, 0.7, 1
    batch.py              decoding at batch 1, 8, 16

The config file says what is measured; each of its fields can be set on the command line as
--config.FIELD=VALUE. Tables go to stdout, progress to stderr, everything to --config.report=FILE.
The paper's tables also keep a journal in --config.out: a run that was killed, or ended by ctrl-C,
goes on with the same command.
"""

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from tiger_jax import command_line
from tiger_jax.errors import UserError, exit_code
from tiger_jax.evaluation import tables

TASKS = {
    "scenes": "scene_run", "drafters": "exact_run", "routing_cost": "routing_cost",
    "routes": "route_picture", "curves": "curves", "peer_transformers": "peer_run",
    "head_compile": "head_compile", "benchmark": "benchmark_run",
}  # fmt: skip
"""Task of a config -> the module of tiger_jax.evaluation whose `evaluate` does it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point: 0 fine, 2 bad input, 130 interrupted."""
    argv = sys.argv[1:] if argv is None else argv
    return exit_code(lambda: _run(argv))


def _run(argv: Sequence[str]) -> int:
    if command_line.wants_help(argv):
        print(command_line.help_text(argv, __doc__))
        return 0
    config = command_line.parse(argv)
    task = config.get("task")
    if task not in TASKS:
        raise UserError(f"task: expected one of {', '.join(TASKS)}, got {task!r}")
    tables.check_report(config.report)
    from tiger_jax import runtime

    runtime.configure()
    report, text = _task(task)(config)
    print(text)
    tables.write_report(config.report, report)
    if config.get("plot"):
        from tiger_jax.evaluation import exact_report, plots

        plots.plot_k_sweep(exact_report.k_points(report), config.plot)
    if report.get("interrupted"):  # what was done until then is in the report
        raise KeyboardInterrupt
    return 0


def _task(name: str) -> Callable[[Any], tuple[dict, str]]:
    """The function behind a task; imported here so that only its own needs are asked for."""
    return import_module(f"tiger_jax.evaluation.{TASKS[name]}").evaluate


if __name__ == "__main__":
    sys.exit(main())
