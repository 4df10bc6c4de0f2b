"""Tables of a dry run."""

from collections.abc import Sequence

from tiger_jax.dry_run.cards import Card
from tiger_jax.dry_run.measure import SPARE, Measured
from tiger_jax.dry_run.parts import KINDS
from tiger_jax.evaluation.tables import MISSING, markdown

GB = 1e9
MEMORY = ("program", *KINDS, "results", "temporaries", "peak", "waiting", "spare", "fits")
WORK = (
    "program", "TFLOP", "moved GB", "least GB", "moved / least", "kernels", "collectives",
    "sent GB", "roofline ms (prediction)",
)  # fmt: skip


def tables(rows: Sequence[Measured]) -> str:
    """Memory and work of each program on one device."""
    return "\n\n".join((
        "Memory of a device, GB:\n" + markdown(MEMORY, [_memory(row) for row in rows]),
        "Work of a device:\n" + markdown(WORK, [_work(row) for row in rows]),
    ))  # fmt: skip


def verdict(rows: Sequence[Measured], card: Card) -> tuple[str, bool]:
    """Whether every program fits, and which one decides about it."""
    worst = max(rows, key=lambda row: row.peak)
    fits = worst.fits
    said = "fits" if fits else "does not fit"
    margin = f"{worst.spare:.0%} to spare" if fits else f"{-worst.spare:.0%} too much"
    short = f"; less than {SPARE:.0%} to spare" if 0 <= worst.spare < SPARE else ""
    return (
        f"{said} {card.name} ({card.memory_bytes / GB:.1f} GB): the largest is {worst.name} with "
        f"{worst.peak / GB:.1f} GB, {margin}{short}"
    ), fits


def legend(card: Card) -> str:
    """What the columns mean."""
    return (
        "Columns of memory are what lies on a device while the program runs: its arguments, and "
        "(waiting) what is none but is kept meanwhile. results: what it makes that is not written "
        "over an argument. peak is the sum. TFLOP: matrix products counted in the compiled text. "
        "moved: what kernels read and write; least: each weight, state and cache row once. Loops "
        "count as often as they run; a step or round of decoding is one turn. Collectives: count "
        "and the whole arrays' size; sent: what a device sends in a ring. Roofline, a prediction "
        f"from below: max(FLOP / {card.peak_flops / 1e12:.0f} TFLOP/s, moved / "
        f"{card.bandwidth / GB:.0f} GB/s) + sent / {card.link_bandwidth / GB:.0f} GB/s "
        f"({card.link})."
    )


def _memory(row: Measured) -> list[str]:
    kinds = [_gigabytes(row.kinds[kind]) for kind in KINDS]
    rest = (row.results, row.temporaries, row.peak, row.waiting)
    return [
        row.name, *kinds, *map(_gigabytes, rest), f"{row.spare:.0%}", "yes" if row.fits else "NO"
    ]  # fmt: skip


def _work(row: Measured) -> list[str]:
    traffic = [
        f"{many.count} {kind} {_size(many.size)}" for kind, many in sorted(row.traffic.items())
    ]
    return [
        row.name, f"{row.flops / 1e12:.3g}", _gigabytes(row.moved), _gigabytes(row.least),
        f"{row.moved / row.least:.2f}" if row.least else MISSING, str(row.kernels),
        ", ".join(traffic) or MISSING, _gigabytes(row.link_bytes), f"{1e3 * row.seconds:.3g}",
    ]  # fmt: skip


def _gigabytes(size: int | float) -> str:
    return f"{size / GB:.2f}" if size else MISSING


def _size(size: int | float) -> str:
    return f"{size / GB:.2f} GB" if size >= 1e8 else f"{size / 1e6:.2f} MB"
