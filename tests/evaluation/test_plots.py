"""Figures: what is drawn in them, and names that no file can have."""

import sys

import pytest

from tiger_jax.errors import UserError
from tiger_jax.evaluation import plots
from tiger_jax.evaluation.plots import KPoint, plot_k_sweep, plot_training

pytest.importorskip("matplotlib")

ROWS = [
    KPoint(8, 0.0, 5, 3.2, 0.03), KPoint(4, 0.0, 5, 3.1, 0.03), KPoint(16, 0.0, 5, 3.3),
    KPoint(None, 0.0, 5, 3.9, 0.03), KPoint(8, 1.0, 5, 2.85, 0.02), KPoint(4, 1.0, 5, 2.75, 0.02),
]  # fmt: skip


@pytest.fixture
def drawn(monkeypatch):
    """The axes of every figure that is written."""
    seen = []
    finish = plots._finish

    def keep(figure, axes, path):
        seen.append(axes)
        finish(figure, axes, path)

    monkeypatch.setattr(plots, "_finish", keep)
    return seen


def test_sweep(tmp_path, drawn):
    plot_k_sweep(ROWS, tmp_path / "k.png")
    assert (tmp_path / "k.png").read_bytes().startswith(b"\x89PNG")
    (axes,) = drawn
    names = axes.get_legend_handles_labels()[1]
    assert sorted(names) == ["T = 0, g = 5", "T = 0, g = 5, full", "T = 1, g = 5"]
    greedy, sampled = (bars.lines[0] for bars in axes.containers)
    assert greedy.get_xydata().tolist() == [[4, 3.1], [8, 3.2], [16, 3.3]]
    assert sampled.get_xydata().tolist() == [[4, 2.75], [8, 2.85]]
    full = next(line for line in axes.lines if line.get_label().endswith("full"))
    assert list(full.get_ydata()) == [3.9, 3.9]
    assert full.get_color() == greedy.get_color() != sampled.get_color()
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["4", "8", "16"]


def test_sweep_from_no_routed_token_and_of_full_alone(tmp_path, drawn):
    plot_k_sweep([KPoint(0, 0.0, 5, 2.5), KPoint(8, 0.0, 5, 3.2)], str(tmp_path / "k.svg"))
    plot_k_sweep([KPoint(None, 0.0, 5, 3.9)], tmp_path / "full.pdf")
    assert drawn[0].get_title(loc="left") == "T = 0, g = 5"
    assert (tmp_path / "k.svg").stat().st_size > 1000
    assert (tmp_path / "full.pdf").read_bytes().startswith(b"%PDF")


def test_training(tmp_path, drawn):
    curves = {"with teacher": ([0, 100, 200], [2.5, 3.0, 3.2]), "without": ([0, 200], [2.5, 2.6])}
    plot_training(curves, tmp_path / "training.png", "A")
    (axes,) = drawn
    assert [line.get_label() for line in axes.lines] == list(curves)
    assert axes.lines[0].get_xydata().tolist() == [[0, 2.5], [100, 3.0], [200, 3.2]]
    assert axes.get_ylabel() == "A"


def test_files_that_cannot_be_written(tmp_path):
    (tmp_path / "folder.png").mkdir()
    for path in (tmp_path / "none" / "k.png", tmp_path / "folder.png"):
        with pytest.raises(UserError, match="figure: expected a file that can be written, got /"):
            plot_k_sweep(ROWS, path)
    for name in ("k.txt", "k"):
        with pytest.raises(UserError, match=f"figure: expected a name that ends in .*got .*{name}"):
            plot_training({"A": ([0], [1.0])}, tmp_path / name)


def test_nothing_to_draw(tmp_path):
    with pytest.raises(ValueError, match="rows: expected at least one"):
        plot_k_sweep([], tmp_path / "k.png")
    with pytest.raises(ValueError, match="curves: expected at least one"):
        plot_training({}, tmp_path / "k.png")
    with pytest.raises(ValueError, match="A: expected 2 values, one a step, got 1"):
        plot_training({"A": ([0, 1], [1.0])}, tmp_path / "k.png")


def test_without_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UserError, match="matplotlib: expected to be installed"):
        plot_k_sweep(ROWS, tmp_path / "k.png")
