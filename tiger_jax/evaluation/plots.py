"""Figures of the sweeps and of training. matplotlib is imported only when one is drawn."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tiger_jax.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Told apart by colour-blind readers too (Okabe and Ito)."""
INCHES = (6.4, 4.0)


class KPoint(NamedTuple):
    """A of one drafter at one setting."""

    routed_tokens: int | None
    """k; None for a drafter that sees all visual tokens."""
    temperature: float
    draft_length: int
    value: float
    error: float | None = None


Curve = tuple[Sequence[int], Sequence[float]]
"""Steps, and the value at each."""


def plot_k_sweep(rows: Sequence[KPoint], path: str | Path) -> None:
    """A against k with standard errors: one line a temperature and g; dashed: all visual tokens.

    Args:
        rows: in any order.
        path: the file; its ending tells the format (png, pdf, svg).

    Raises:
        UserError: the file cannot be written, or matplotlib is missing.
        ValueError: nothing to draw.
    """
    if not rows:
        raise ValueError("rows: expected at least one, got none")
    figure, axes = _figure("routed tokens k", "accepted drafts a round, A")
    settings = sorted({(row.temperature, row.draft_length) for row in rows})
    for number, setting in enumerate(settings):
        own = [row for row in rows if (row.temperature, row.draft_length) == setting]
        name = f"T = {setting[0]:g}, g = {setting[1]}"
        _draw_sweep(axes, own, name, COLOURS[number % len(COLOURS)])
    counts = sorted({row.routed_tokens for row in rows if row.routed_tokens is not None})
    # Doublings of k at equal distances, and k = 0 still has a place.
    axes.set_xscale("symlog", base=2, linthresh=1, linscale=0.5)
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.set_xticks([], minor=True)
    _finish(figure, axes, path)


def plot_training(
    curves: Mapping[str, Curve], path: str | Path, quantity: str = "accepted drafts a round, A"
) -> None:
    """One line a curve over training steps.

    Args:
        curves: name in the legend -> (steps, values).
        path: the file; its ending tells the format (png, pdf, svg).
        quantity: what the values are.

    Raises:
        UserError: the file cannot be written, or matplotlib is missing.
        ValueError: nothing to draw, or steps and values differ in number.
    """
    if not curves:
        raise ValueError("curves: expected at least one, got none")
    figure, axes = _figure("training step", quantity)
    for number, (name, (steps, values)) in enumerate(curves.items()):
        if len(steps) != len(values):
            raise ValueError(f"{name}: expected {len(steps)} values, one a step, got {len(values)}")
        colour = COLOURS[number % len(COLOURS)]
        axes.plot(steps, values, color=colour, linewidth=1.5, label=name)
    axes.xaxis.get_major_locator().set_params(integer=True)
    _finish(figure, axes, path)


def _draw_sweep(axes: "Axes", rows: Sequence[KPoint], name: str, colour: str) -> None:
    points = sorted((row for row in rows if row.routed_tokens is not None), key=lambda row: row[0])
    if points:
        axes.errorbar(
            [row.routed_tokens for row in points], [row.value for row in points],
            yerr=[math.nan if row.error is None else row.error for row in points],
            color=colour, marker="o", markersize=4, linewidth=1.5, capsize=3, label=name,
        )  # fmt: skip
    for row in rows:
        if row.routed_tokens is None:
            axes.axhline(
                row.value, color=colour, linestyle="--", linewidth=1.2, label=f"{name}, full"
            )


def _empty_figure(inches: tuple[float, float]) -> "Figure":
    """A figure of its own: no window, no global state."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError("matplotlib: expected to be installed for figures, got none") from error
    figure = Figure(figsize=inches, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _figure(across: str, up: str) -> tuple["Figure", "Axes"]:
    """An empty figure with its axes."""
    figure = _empty_figure(INCHES)
    axes = figure.add_subplot()
    axes.set(xlabel=across, ylabel=up)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def _finish(figure: "Figure", axes: "Axes", path: str | Path) -> None:
    """Legend beside the lines, never over them, and as a title if it names one; then the file."""
    handles, names = axes.get_legend_handles_labels()
    if len(names) > 1:
        # By name, so that a dashed line follows the solid one of its colour.
        order = sorted(range(len(names)), key=lambda number: names[number])
        axes.legend(
            [handles[number] for number in order], [names[number] for number in order],
            frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0),
        )  # fmt: skip
    else:
        axes.set_title(names[0], loc="left", fontsize="medium")
    _save(figure, path)


def _save(figure: "Figure", path: str | Path) -> None:
    kinds = sorted(figure.canvas.get_supported_filetypes())
    if Path(path).suffix[1:].lower() not in kinds:
        raise UserError(f"figure: expected a name that ends in {', '.join(kinds)}, got {path}")
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise UserError(
            f"figure: expected a file that can be written, got {path}: {error}"
        ) from None
