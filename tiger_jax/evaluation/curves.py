"""Training curves of runs as one figure.

python -m tiger_jax.evaluate --config configs/eval/curves.py --config.picture=curves.png
"""

from pathlib import Path
from typing import Any

from tiger_jax.errors import UserError
from tiger_jax.evaluation import plots
from tiger_jax.evaluation.tables import markdown
from tiger_jax.training.metric_log import METRICS_FILE, read_curve
from tiger_jax.training.run_folder import TENSORBOARD


def evaluate(config: Any) -> tuple[dict, str]:
    """Read the runs that a config names: (report, table of their last values). Raises UserError."""
    curves = {name: _curve(Path(config.runs) / name, config.metric) for name in config.names}
    if config.picture:
        plots.plot_training(curves, config.picture, config.quantity or config.metric)
    rows = [
        [name, str(len(steps)), str(steps[-1]), f"{values[-1]:.4g}"]
        for name, (steps, values) in curves.items()
    ]
    report = {"metric": config.metric, "curves": curves}
    return report, markdown(("run", "points", "last step", f"last {config.metric}"), rows)


def _curve(run: Path, metric: str) -> plots.Curve:
    folder = run / TENSORBOARD
    if not (folder / METRICS_FILE).is_file():
        raise UserError(f"{folder / METRICS_FILE}: expected the metrics of a run, found none there")
    steps, values = read_curve(folder, metric)
    if not steps:
        raise UserError(f"{run}: expected the metric {metric!r} in its log, found none")
    return steps, values
