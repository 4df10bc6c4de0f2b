"""Kill -9 at random moments of distillation and of alignment; run by hand, some 15 minutes:

    JAX_PLATFORMS=cpu python -m tests.training.kill_runs --kills 20 --folder /tmp/kill_runs

The embedded pair cut down to one layer of everything, on 2 scenes (few shapes to compile), two
micro-batches a step. One run of each objective is left alone; others are killed and started again
until all kills are spent, then left to end. Each of them must export the very bytes of the first,
and report the same loss at every step. Exit code 1 if not.
"""

import argparse
import os
import random
import signal
import sys
import time
from pathlib import Path

import jax

from tests.small_folder import write_small_folder
from tests.training.kill_driver import start
from tiger_jax.models.config_reader import read_config
from tiger_jax.models.interface import build_model
from tiger_jax.training.metric_log import read_curve
from tiger_jax.training.run_folder import export_params

ACCUMULATE = 2
SETTINGS = {
    "scenes": 2, "held_out_scenes": 0, "steps": 12, "warmup": 1, "batch": 2,
    "accumulate": ACCUMULATE, "draft_length": 3, "checkpoint_every": 2, "log_every": 1,
    "teacher_batch": 8, "teacher.max_new_tokens": 4, "mesh.fsdp": 1, "router.looks": 0,
}  # fmt: skip
RUNS = {
    "kd": {},
    "grpo": {"align.objective": "grpo", "align.samples": 2, "prefixes": 2},
}


def write_small_pair(folder: Path) -> dict[str, str]:
    """Folders of a verifier and a drafter with random weights: {role: folder}."""
    for role in ("verifier", "drafter"):
        shape = write_small_folder(folder / f"{role}_shape", role)
        params = jax.jit(build_model(read_config(shape)).init_params)(jax.random.key(len(role)))
        export_params(params, shape, folder / role)
    return {role: str(folder / role) for role in ("verifier", "drafter")}


def main() -> int:
    """Both objectives; 0 if every run ended as the first."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=20, help="of each objective")
    parser.add_argument("--folder", type=Path, required=True, help="for the runs; should be new")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    # jax has read its environment by now; without the variable a run would move the cache
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(args.folder / "xla")
    jax.config.update("jax_compilation_cache_dir", str(args.folder / "xla"))
    writer = os.fork()  # a process that has used a device must not fork
    if not writer:
        write_small_pair(args.folder)
        os._exit(0)
    os.waitpid(writer, 0)
    good = [Killing(name, args.folder, args.seed).run(args.kills) for name in RUNS]
    return 0 if all(good) else 1


class Killing:
    """The runs of one objective."""

    def __init__(self, name: str, folder: Path, seed: int) -> None:
        self.name, self.folder, self.rng = name, folder, random.Random(f"{name} {seed}")
        folder.mkdir(parents=True, exist_ok=True)

    def run(self, kills: int) -> bool:
        """Spend the kills; whether all went well."""
        self._start("straight").wait()
        again = self._start("straight", fresh=True)  # without what only the first start compiles
        again.wait()
        began, seconds = again.first_draw, again.seconds
        print(f"{self.name}: a start takes {began:.1f} s, the {SETTINGS['steps']} steps "
              f"{seconds - began:.1f} s", flush=True)  # fmt: skip
        good, number, spent = True, 0, 0
        while spent < kills:
            run, number, finished = f"killed_{number}", number + 1, False
            while not finished:
                # a third of the moments anywhere, the rest while it trains
                early = self.rng.random() < 1 / 3
                moment = self.rng.uniform(0, began) if early else began + self.rng.uniform(
                    0, 0.7 * (seconds - began))  # fmt: skip
                process = self._start(run)
                finished = process.wait(moment if spent < kills else None)
                if not finished:
                    spent += 1
                    print(f"  {self.name} kill {spent}: after {moment:.2f} s, "
                          f"{self._where(run, process)}", flush=True)  # fmt: skip
            same = self._same("straight", run)
            print(f"{self.name}: {run} ended {'as' if same else 'NOT AS'} the first", flush=True)
            good = good and same
        return good

    def _start(self, run: str, fresh: bool = False) -> "Running":
        settings = SETTINGS | RUNS[self.name] | {
            "run_dir": str(self.folder / self.name / run), "resume": not fresh,
            "cache_dir": str(self.folder / "answers"), "verifier": str(self.folder / "verifier"),
            "model": str(self.folder / "drafter"), "init_from": str(self.folder / "drafter"),
        }  # fmt: skip
        return Running(self.name, settings, self.folder / f"{self.name}_{run}.log")

    def _where(self, run: str, process: "Running") -> str:
        """What a kill has hit."""
        checkpoints = self.folder / self.name / run / "checkpoints"
        names = [path.name for path in checkpoints.iterdir()] if checkpoints.exists() else []
        whole = sorted(int(name) for name in names if name.isdecimal())
        draws = process.draws()
        parts = [f"checkpoints {whole}", f"{draws} batches drawn"]
        parts += ["inside a step's accumulation"] if draws % ACCUMULATE else []
        parts += ["INSIDE A SAVE"] if any("tmp" in name for name in names) else []
        return ", ".join(parts)

    def _same(self, first: str, second: str) -> bool:
        folders = [self.folder / self.name / run for run in (first, second)]
        files = [sorted((folder / "export").glob("*.safetensors")) for folder in folders]
        weights = [[(path.name, path.read_bytes()) for path in found] for found in files]
        curves = [read_curve(folder / "tensorboard", "train/loss") for folder in folders]
        return bool(weights[0]) and weights[0] == weights[1] and curves[0] == curves[1]


class Running:
    """A run in a process of its own."""

    def __init__(self, name: str, settings: dict, log: Path) -> None:
        self.note = Path(f"{log}.draws")
        self.note.write_text("")
        self.log, self.began, self.first_draw = log, time.monotonic(), 0.0
        self.child = start(name, settings, str(log))

    def wait(self, moment: float | None = None) -> bool:
        """Until it ends (True), or for `moment` seconds and kill it (False)."""
        while True:
            ended, status = os.waitpid(self.child, os.WNOHANG)
            self.seconds = time.monotonic() - self.began
            if ended:
                if status:
                    raise SystemExit(f"a run failed:\n{self.log.read_text()}")
                return True
            if not self.first_draw and self.draws():
                self.first_draw = self.seconds
            if moment is not None and self.seconds >= moment:
                os.kill(self.child, signal.SIGKILL)
                os.waitpid(self.child, 0)
                return False
            time.sleep(0.002)

    def draws(self) -> int:
        """Batches that it has drawn."""
        return self.note.stat().st_size


if __name__ == "__main__":
    sys.exit(main())
