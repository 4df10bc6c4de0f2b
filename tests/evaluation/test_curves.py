"""Metrics of a run, read back and drawn."""

import pytest

from configs.eval import curves as config_file
from tiger_jax.errors import UserError
from tiger_jax.evaluation import curves
from tiger_jax.training.metric_log import MetricLog, read_curve


def write(folder, points, prefix="train"):
    log = MetricLog(folder)
    for step, value in points:
        log.write(step, {"kl": value}, prefix)
    log.close()


def test_a_resumed_run_goes_on_in_its_file(tmp_path):
    """Steps 20 and 30 ran before a kill and again after it."""
    write(tmp_path, [(10, 3.0), (20, 2.5), (30, 2.4)])
    write(tmp_path, [(20, 2.0), (30, 1.0), (40, 0.5)])
    write(tmp_path, [(40, 9.0)], prefix="held_out")
    assert read_curve(tmp_path, "train/kl") == ([10, 20, 30, 40], [3.0, 2.0, 1.0, 0.5])
    assert read_curve(tmp_path, "held_out/kl") == ([40], [9.0])
    assert read_curve(tmp_path, "train/loss") == ([], [])


def test_runs_in_one_figure(tmp_path):
    write(tmp_path / "kd" / "tensorboard", [(10, 3.0), (20, 2.0)])
    config = config_file.get_config()
    config.update({"runs": str(tmp_path), "names": ("kd",), "metric": "train/kl",
                   "picture": str(tmp_path / "curves.png")})  # fmt: skip
    report, text = curves.evaluate(config)
    assert report["curves"]["kd"] == ([10, 20], [3.0, 2.0])
    assert "| kd  |" in text
    assert (tmp_path / "curves.png").stat().st_size > 1000
    config.metric = "train/loss"
    with pytest.raises(UserError, match=r"expected the metric 'train/loss'"):
        curves.evaluate(config)
    config.names = ("other",)
    with pytest.raises(UserError, match=r"other.*expected the metrics of a run"):
        curves.evaluate(config)
